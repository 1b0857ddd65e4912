"""The pace that a target bears: requests of an execution to a host are spaced so that few are sent away.

Nobody knows the rate beforehand. It doubles every second until the target says no (429, 503, a timeout), falls to a
part of what was delivered, and grows back along a cubic that is flat around the rate at which it last heard no (as
CUBIC does for TCP, RFC 9438): most of the time is spent just below the limit. Each request is given a slot, 1/rate
after the one before (GCRA), so after a pause nobody returns in a herd. ``Retry-After`` holds back all lanes of the
execution at once.

The state is one hash in Redis for each execution and host, changed by one script, and may be lost: then it is found
again. Without Redis each process keeps to the last rate that it heard of.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from redis import Redis
from redis.commands.core import Script
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

#: a state that nobody asks for is forgotten after this
KEEP_SECONDS = 3600
#: slots are given for the next moment only: what is further away may change before
HORIZON_SECONDS = 1.0

#: KEYS: the state. ARGV: now ('' for the server's clock), epoch of a slot that was given before ('' for none), good
#: answers since the last call, 1 if this slot's request was sent away, seconds that the target asked for (0 if it did
#: not), horizon, keep.
#: Returns seconds to wait ('go' has been given if it is 0 or within the horizon), the epoch, the rate.
_SCRIPT = """
local START, DOUBLING, SOFT = 10, 1, 0.98
local WILD = {beta = 0.8, back = 5}
local TAME = {beta = 0.95, back = 20}
local PAUSE, LONGEST, GAP = 0.1, 5, 1

local s = {}
local raw = redis.call('HGETALL', KEYS[1])
for i = 1, #raw, 2 do s[raw[i]] = tonumber(raw[i + 1]) end
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local epoch, good, bad, asked = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local horizon = tonumber(ARGV[6])

-- top: the rate that it grows back to (0: never heard no). grown: seconds of growth since it last fell
local top, grown, tame = s.top or 0, s.grown or 0, s.tame or 0
local last, slot, hold = s.last or now, s.slot or now, s.hold or 0
local count, since, delivered = s.count or 0, s.since or now, s.delivered or 0
local fell, pause = s.fell or -GAP, s.pause or PAUSE
local version = s.epoch or 0

local function rate()
  if top == 0 then return START * 2 ^ (grown / DOUBLING) end
  local way = tame == 1 and TAME or WILD
  return top * (1 - (1 - way.beta) * (1 - grown / way.back) ^ 3)
end

-- It grows only while somebody has to wait for it: else there is nothing to learn.
if slot >= now - 2 / rate() and now > hold then grown = grown + math.min(now - last, 1) end

count = count + good
if now - since >= 1 then
  delivered, count, since = count / (now - since), 0, now
end

-- What was sent before the last bad news is no news.
if bad > 0 and (epoch == '' or tonumber(epoch) >= version) then
  local current = rate()
  if now - fell >= GAP then
    local before = top
    if top == 0 then
      top, tame = math.max(math.min(current, math.max(delivered, count / math.max(now - since, 0.5))), 1), 0
    else
      top, tame = current, (math.abs(current - before) <= 0.1 * before) and 1 or 0
    end
    top, grown = top * SOFT, 0
    if now - fell > 3 * GAP then pause = PAUSE end
    fell = now
  else
    pause = math.min(pause * 2, LONGEST)
  end
  hold = math.max(hold, now + math.max(asked, pause))
  version = version + 1
  slot = now  -- all slots that were given are void
end

local wait = 0
if bad > 0 then
  hold = math.max(hold, now + asked)
elseif epoch == '' or tonumber(epoch) ~= version then
  local at = math.max(now, slot, hold)
  wait = at - now
  if wait <= horizon then slot = at + 1 / rate() else slot = math.max(slot, hold) end
end

redis.call('HSET', KEYS[1], 'top', top, 'grown', grown, 'tame', tame, 'last', now, 'slot', slot, 'hold', hold,
  'count', count, 'since', since, 'delivered', delivered, 'fell', fell, 'pause', pause, 'epoch', version)
redis.call('EXPIRE', KEYS[1], ARGV[7])
return {tostring(wait), tostring(version), tostring(rate())}
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """When a request may go: in so many seconds, if nothing has happened by then. ``given``: nobody else has it."""

    seconds: float
    given: bool
    epoch: str = ""


class Pace:
    """The paces that a process keeps to. Safe to share between threads."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        """``clock``: instead of the server's, in seconds."""
        self._url, self._clock = url, clock
        self._run: Script | None = None
        self._lock = threading.Lock()
        #: good answers that Redis has not heard of yet, and the last rate of each target
        self._good: Counter[str] = Counter()
        self._rates: dict[str, float] = {}
        self._away = False

    def slot(self, target: str, before: Slot | None = None) -> Slot:
        """When the next request to this target may go. Wait for it, and ask again with it: it may go if 0 is left."""
        return self._tell(target, before.epoch if before is not None and before.given else "")

    def good(self, target: str) -> None:
        """The target has done a request (also with an error of its own)."""
        with self._lock:
            self._good[target] += 1

    def bad(self, target: str, slot: Slot, retry_after: float | None = None) -> None:
        """The target has sent the request of this slot away, or did not answer it in time."""
        self._tell(target, slot.epoch, bad=1, asked=retry_after or 0.0)

    def _tell(self, target: str, epoch: str, *, bad: int = 0, asked: float = 0.0) -> Slot:
        with self._lock:
            good = self._good.pop(target, 0)
        now = "" if self._clock is None else repr(self._clock())
        try:
            wait, version, rate = self._script()(
                [f"noetl.pace:{target}"], [now, epoch, good, bad, asked, HORIZON_SECONDS, KEEP_SECONDS]
            )
        except (RedisError, OSError) as error:
            return self._without(target, good, error)
        self._away = False
        self._rates[target] = float(rate)
        seconds = float(wait)
        return Slot(seconds, seconds <= HORIZON_SECONDS, version.decode())

    def _script(self) -> Callable[..., list[bytes]]:
        with self._lock:
            if self._run is None:
                client = Redis.from_url(self._url, socket_timeout=2.0, socket_connect_timeout=1.0)
                self._run = client.register_script(_SCRIPT)
            return self._run

    def close(self) -> None:
        """Ends the connections; it may be called twice, and used again."""
        with self._lock:
            if self._run is not None:
                self._run.registered_client.close()
            self._run = None

    def _without(self, target: str, good: int, error: Exception) -> Slot:
        if not self._away:
            log.warning("Redis is away, requests keep to the last pace: %s", error)
        self._away = True
        with self._lock:
            self._good[target] += good
        rate = self._rates.get(target)
        return Slot(0.0 if rate is None else 1 / rate, True)
