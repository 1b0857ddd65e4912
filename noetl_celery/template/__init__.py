"""Templates: compiled expressions with native values, the sandbox, and the names a template can see."""

from noetl_celery.template.environment import time_is
from noetl_celery.template.expressions import TemplateSyntax
from noetl_celery.template.jsonable import jsonable, to_json
from noetl_celery.template.lazy import Lazy, LazySequence, plain, reference
from noetl_celery.template.missing import Missing, NoError
from noetl_celery.template.rename import expression_of, renamed
from noetl_celery.template.scope import Scope, scope
from noetl_celery.template.value import Value, compile_condition, compile_value, constant, truth

__all__ = [
    "Lazy",
    "LazySequence",
    "Missing",
    "NoError",
    "Scope",
    "TemplateSyntax",
    "Value",
    "compile_condition",
    "compile_value",
    "constant",
    "expression_of",
    "jsonable",
    "plain",
    "reference",
    "renamed",
    "scope",
    "time_is",
    "to_json",
    "truth",
]
