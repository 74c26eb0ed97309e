"""Every Python process that has this directory on its path reads its wall clock with an offset, kept in a file.

`time.time`, `time.time_ns` and the "now" of `datetime` are moved; clocks that only measure durations are not.
"""

import datetime
import os
import time

_FILE, _SEEN = os.environ.get("RCRAY_CAMPAIGN_CLOCK"), os.environ.get("RCRAY_CAMPAIGN_CLOCK_SEEN")
_told: set[int] = set()


def _offset() -> int:
    try:
        with open(_FILE) as file:
            seconds = int(file.read())
        if seconds not in _told:
            _told.add(seconds)
            with open(os.path.join(_SEEN, str(os.getpid())), "a") as file:
                file.write(f"{seconds}\n")
    except (OSError, ValueError):
        return 0
    return seconds


_real_time, _real_time_ns, _real_datetime = time.time, time.time_ns, datetime.datetime


class _Kind(type(_real_datetime)):
    """What was made before, or by C, is an instance too."""

    def __instancecheck__(cls, found):
        return isinstance(found, _real_datetime)

    def __subclasscheck__(cls, found):
        return issubclass(found, _real_datetime)


class _Datetime(_real_datetime, metaclass=_Kind):
    """Makes ordinary datetimes; only "now" differs."""

    def __new__(cls, *args, **kwargs):
        return _real_datetime.__new__(_real_datetime if cls is _Datetime else cls, *args, **kwargs)

    @classmethod
    def now(cls, tz=None):
        return _real_datetime.now(tz) + datetime.timedelta(seconds=_offset())

    @classmethod
    def utcnow(cls):
        return _real_datetime.utcnow() + datetime.timedelta(seconds=_offset())

    @classmethod
    def today(cls):
        return cls.now()


if _FILE:
    time.time = lambda: _real_time() + _offset()
    time.time_ns = lambda: _real_time_ns() + _offset() * 10**9
    datetime.datetime = _Datetime
