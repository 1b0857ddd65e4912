"""Task code as source: compiled once, with a ``return`` allowed at its top level and one namespace for everything.

Code without such a ``return`` (or ``await``) is compiled as the module that it is. With one it becomes the body of a
function in which every name bound at the top level is declared global: functions, comprehensions and classes in the
code see the same variables as in a module, whatever is assigned later, and ``return`` works inside ``try``, ``with``
and loops as it does in any function.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

FILENAME = "<task>"
#: the function made of code with a top-level ``return``, and what it returns when it comes to its end without one
ENTRY = "__task__"
NOTHING = "__nothing__"
_CACHED = 512


@dataclass(frozen=True, slots=True)
class Compiled:
    """Code ready to run. ``names``: bound at its top level; ``entry``: it is wrapped in the function ``ENTRY``."""

    source: str
    code: CodeType
    names: frozenset[str]
    entry: bool


@lru_cache(maxsize=_CACHED)
def compile_source(source: str) -> Compiled:
    """Compiles task code; cached by its text. Raises ``SyntaxError`` and ``ValueError`` (null bytes)."""
    try:
        return _compiled(source)
    except (RecursionError, MemoryError):
        raise SyntaxError("the code is nested too deeply") from None


def _compiled(source: str) -> Compiled:
    tree = ast.parse(source, FILENAME)
    scope = _TopLevel()
    rewritten = scope.visit(tree)
    if not scope.wrapped:
        plain = compile(source, FILENAME, "exec", dont_inherit=True)
        return Compiled(source, plain, frozenset(scope.names), entry=False)
    code = compile(_wrap(rewritten, scope), FILENAME, "exec", dont_inherit=True)
    return Compiled(source, code, frozenset(scope.names), entry=True)


def syntax_message(error: SyntaxError | ValueError) -> str:
    """``line 3: invalid syntax: `the line```."""
    if not isinstance(error, SyntaxError):
        return str(error)
    text = (error.text or "").strip()
    shown = f": `{text}`" if text else ""
    return f"line {error.lineno}: {error.msg}{shown}" if error.lineno else f"{error.msg}{shown}"


def _wrap(tree: ast.Module, scope: _TopLevel) -> ast.Module:
    # these two may only stand at the top of a module
    module_only = [node for node in tree.body if _is_module_only(node)]
    body: list[ast.stmt] = [node for node in tree.body if not _is_module_only(node)]
    if scope.names:
        body.insert(0, ast.Global(sorted(scope.names)))
    body.append(ast.Return(ast.Name(NOTHING, ast.Load())))
    template = ast.parse(f"{'async ' if scope.awaits else ''}def {ENTRY}(): pass")
    function = template.body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.body = body
    template.body = [*module_only, function]
    return ast.fix_missing_locations(template)


def _is_module_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*")


class _TopLevel(ast.NodeTransformer):
    """Finds what the top level binds and rewrites what a function body would not accept; stays out of inner scopes."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.returns = False
        self.awaits = False

    @property
    def wrapped(self) -> bool:
        return self.returns or self.awaits

    def _visit_all(self, *nodes: Any) -> None:
        for node in nodes:
            for item in node if isinstance(node, list) else [node]:
                if item is not None:
                    self.visit(item)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.names.add(node.name)
        self._visit_all(node.decorator_list, node.args.defaults, node.args.kw_defaults)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self._visit_all(node.args.defaults, node.args.kw_defaults)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.names.add(node.name)
        self._visit_all(node.decorator_list, node.bases, node.keywords)
        return node

    def _comprehension(self, node: Any) -> ast.AST:
        """Its loop variables are its own; only ``:=`` reaches out of it."""
        self._visit_all(getattr(node, "elt", None), getattr(node, "key", None), getattr(node, "value", None))
        for generator in node.generators:
            self.awaits = self.awaits or bool(generator.is_async)
            self._visit_all(generator.iter, generator.ifs)
        result: ast.AST = node
        return result

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.returns = True
        return self.generic_visit(node)

    def _awaiting(self, node: ast.AST) -> ast.AST:
        self.awaits = True
        return self.generic_visit(node)

    visit_Await = visit_AsyncFor = visit_AsyncWith = _awaiting

    def _yielding(self, node: ast.Yield | ast.YieldFrom) -> ast.AST:
        raise SyntaxError("'yield' outside function", (FILENAME, node.lineno, node.col_offset + 1, None))

    visit_Yield = visit_YieldFrom = _yielding

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            self.names.add(node.id)
        return node

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> ast.AST:
        if not isinstance(node, ast.ImportFrom) or node.module != "__future__":
            self.names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            self.names.discard("*")
        return node

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        return self._named(node, node.name)

    def visit_MatchAs(self, node: ast.MatchAs) -> ast.AST:
        return self._named(node, node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> ast.AST:
        return self._named(node, node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        return self._named(node, node.rest)

    def _named(self, node: ast.AST, name: str | None) -> ast.AST:
        if name is not None:
            self.names.add(name)
        return self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        """Everything is global already, and a second declaration after a use would be refused."""
        self.names.update(node.names)
        return ast.copy_location(ast.Pass(), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """An annotated name cannot be declared global: the annotation goes, the assignment stays."""
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``locals()`` and ``vars()`` of a module are its globals, and ``exec`` and ``eval`` work on them."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name):
            return node
        namespace = ast.Name("globals", ast.Load())
        if node.func.id in {"locals", "vars"} and not node.args:
            node.func = ast.copy_location(namespace, node.func)
        elif node.func.id in {"exec", "eval"} and len(node.args) == 1 and not node.keywords:
            node.args.append(ast.copy_location(ast.Call(namespace, [], []), node))
        return node
