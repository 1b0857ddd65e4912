"""Numbers and times as people read them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """``3.2 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def rate_text(rate: float) -> str:
    """``250/s``, ``2.5/s``, ``3.0/min``."""
    if rate >= 10:
        return f"{rate:,.0f}/s"
    return f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``1,200 retries``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"
