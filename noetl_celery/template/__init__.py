"""Templates: compiled expressions with native values, the sandbox, and the names a template can see."""

from noetl_celery.template.jsonable import jsonable, to_json

__all__ = ["jsonable", "to_json"]
