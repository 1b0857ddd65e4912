"""``celery -A skewed_app worker``: the app, in a process whose clock is NOETL_TEST_SKEW seconds wrong.

Only what tells the time of day is wrong, also in Celery, kombu and redis; clocks that only measure (``time.monotonic``)
are as right as on a machine whose time is wrong.
"""

import datetime
import os
import sys
import time

from noetl_celery.app import app

__all__ = ["app"]

SKEW = float(os.environ["NOETL_TEST_SKEW"])

_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


def _skewed_time() -> float:
    return _time() + SKEW


def _skewed_time_ns() -> int:
    return _time_ns() + round(SKEW * 1e9)


class _Kind(type):
    """Dates that were made with the other class are dates as well."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)


class _Skewed(_datetime, metaclass=_Kind):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return _datetime.fromtimestamp(_skewed_time(), tz)

    @classmethod
    def utcnow(cls) -> datetime.datetime:  # type: ignore[override]
        return _datetime.fromtimestamp(_skewed_time(), datetime.UTC).replace(tzinfo=None)


_wrong = {_time: _skewed_time, _time_ns: _skewed_time_ns, _datetime: _Skewed}

for _module in list(sys.modules.values()):
    for _name, _value in list(vars(_module).items()):
        if _module is not sys.modules[__name__] and any(_value is right for right in _wrong):
            setattr(_module, _name, _wrong[_value])
