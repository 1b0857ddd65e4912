"""Templates: compiled expressions with native values, the sandbox, and the names a template can see."""

from noetl_celery.template.expressions import TemplateSyntax
from noetl_celery.template.jsonable import jsonable, to_json
from noetl_celery.template.missing import Missing
from noetl_celery.template.scope import Scope, scope
from noetl_celery.template.value import Value, compile_condition, compile_value, constant, truth

__all__ = [
    "Missing",
    "Scope",
    "TemplateSyntax",
    "Value",
    "compile_condition",
    "compile_value",
    "constant",
    "jsonable",
    "scope",
    "to_json",
    "truth",
]
