"""The pace that a target bears: requests of an execution to a host are spaced so that few are sent away.

Nobody knows the rate beforehand. It doubles every second until the target says no (429, 503, a timeout): it bears
about what it did in the second before. From a tenth below that the rate grows slowly until it hears no again; now the
limit is known within a few percent. From then on the rate stays a little below, and after half a minute goes beyond,
along a cubic (as CUBIC does for TCP, RFC 9438): one request too many may cost a second of ``Retry-After``, in which
nothing is sent at all, so the limit is not tried more often than that.

Each request is given a slot, 1/rate after the one before (GCRA), so after a pause nobody returns in a herd; nor do
rows that were woken too late for their slots: they get another. ``Retry-After`` holds back all lanes of the execution
at once.

The state is one hash in Redis for each execution and host, changed by one script, and may be lost: then it is found
again. Without Redis each process keeps to the last rate that it heard of.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
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
#: targets that a process remembers the rate of
TARGETS_KEPT = 1000

#: KEYS: the state. ARGV: now ('' for the server's clock), epoch and time of a slot that was given before ('' for none),
#: good answers since the last call, 1 if this slot's request was sent away, seconds that the target asked for (0 if it
#: did not), horizon, keep.
#: Returns seconds to wait ('go' has been given if it is 0 or within the horizon), the epoch, the slot's time ('' if it
#: may be as late as it likes), the rate.
_SCRIPT = """
local START = 10
-- It is known what a target bears if the rate that was sent away was delivered, but for so much.
local SURE = 1.1
-- A no within the first second says that the target bears less, but not how much: so it is tried with this part.
local PART = 0.75
-- Not known: it is looked for from this part of it, and further and further away: so many seconds to twice the rate.
local SEARCH, DOUBLING = 0.9, 15
-- Known: the rate stays about this part of it, so many seconds after it began with somewhat less.
local STAY, LESS, BACK = 0.95, 0.03, 20
-- Rows that are late go together with those that are in time: a limit bears so many seconds' worth of them.
local LATE = 0.05
local PAUSE, LONGEST, GAP = 0.1, 5, 1

local s = {}
local raw = redis.call('HGETALL', KEYS[1])
for i = 1, #raw, 2 do s[raw[i]] = tonumber(raw[i + 1]) end
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local epoch, due = ARGV[2], ARGV[3]
local good, bad, asked, horizon = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

-- borne: what the target is taken to bear (0: it never said no). grown: seconds of growth since it last did
local borne, known, grown = s.borne or 0, s.known or 0, s.grown or 0
local last, slot, hold = s.last or now, s.slot or now, s.hold or now
-- good answers since so long, in the second before that, and in the best second since it last heard no
local count, since, before, most = s.count or 0, s.since or now, s.before or 0, s.most or 0
local fell, pause = s.fell or -GAP, s.pause or PAUSE
local version = s.epoch or 0

local function rate()
  if borne == 0 then return START * 2 ^ grown end
  if known == 0 then return SEARCH * borne * 2 ^ ((grown / DOUBLING) ^ 1.5) end
  return STAY * borne * (1 - LESS * (1 - grown / BACK) ^ 3)
end

-- It grows only while somebody has to wait for it: else there is nothing to learn.
if slot >= now - 2 / rate() and now > hold then grown = grown + math.min(now - last, 1) end

count = count + good
if now - since >= 1 then
  before, count, since = count / (now - since), 0, now
  most = math.max(most, before)
end

-- What was sent before the last bad news is no news.
if bad > 0 and (epoch == '' or tonumber(epoch) >= version) then
  if count + most == 0 then  -- Nothing has come through since: that is no news about the rate.
    if borne == 0 then grown = 0 end
    pause = math.min(pause * 2, LONGEST)
  elseif now - fell < GAP then
    pause = math.min(pause * 2, LONGEST)
  else
    local current = rate()
    borne, known = PART * current, 0
    if now - hold >= 1 then  -- else it has delivered for too short a time to tell
      local lately = count + before * (1 - (now - since))
      borne = math.min(current, math.max(most, lately))
      if current <= SURE * borne then known = 1 end
    end
    borne, grown = math.max(borne, 1), 0
    pause, fell = PAUSE, now
  end
  hold = math.max(hold, now + math.max(asked, pause))
  count, since, before, most = 0, hold, 0, 0
  version = version + 1
  slot = now  -- all slots that were given are void
end

local wait = 0
local given = epoch ~= '' and tonumber(epoch) == version
local missed = given and due ~= '' and now - tonumber(due) > math.max(LATE, 1 / rate())
if bad > 0 then
  hold = math.max(hold, now + asked)
elseif missed or not given then
  local at = math.max(now, slot, hold)
  wait = at - now
  if wait <= horizon then slot = at + 1 / rate() else slot = math.max(slot, hold) end
  -- Once only: on a machine that is always late the second slot is as good as any.
  due = missed and '' or string.format('%.6f', at)
end

redis.call('HSET', KEYS[1], 'borne', borne, 'known', known, 'grown', grown, 'last', now, 'slot', slot, 'hold', hold,
  'count', count, 'since', since, 'before', before, 'most', most, 'fell', fell, 'pause', pause, 'epoch', version)
redis.call('EXPIRE', KEYS[1], ARGV[8])
return {tostring(wait), tostring(version), due, tostring(rate())}
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """When a request may go: in so many seconds, if nothing has happened by then. ``given``: nobody else has it;
    ``due``: on the server's clock, '' if it cannot be missed."""

    seconds: float
    given: bool
    epoch: str = ""
    due: str = ""


@dataclass(slots=True)
class _Target:
    """What a process knows by itself: the last rate, good answers that Redis has not heard of yet; and when the next
    request may go that Redis gives no slot for."""

    rate: float
    good: int = 0
    free: float = 0.0


class Pace:
    """The paces that a process keeps to. Safe to share between threads."""

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        """``clock``: instead of the server's, in seconds."""
        self._url, self._clock = url, clock
        self._run: Script | None = None
        self._lock = threading.Lock()
        #: those that were asked for last, the latest at the end
        self._targets: OrderedDict[str, _Target] = OrderedDict()
        self._away = False

    def slot(self, target: str, before: Slot | None = None) -> Slot:
        """When the next request to this target may go. Wait for it, and ask again with it: it may go if 0 is left."""
        return self._tell(target, before if before is not None and before.given else Slot(0.0, False))

    def good(self, target: str) -> None:
        """The target has done a request (also with an error of its own)."""
        with self._lock:
            if target in self._targets:
                self._targets[target].good += 1

    def bad(self, target: str, slot: Slot, retry_after: float | None = None) -> None:
        """The target has sent the request of this slot away, or did not answer it in time."""
        self._tell(target, slot, bad=1, asked=retry_after or 0.0)

    def _tell(self, target: str, slot: Slot, *, bad: int = 0, asked: float = 0.0) -> Slot:
        with self._lock:
            own = self._targets.get(target)
            good = 0 if own is None else own.good
            if own is not None:
                own.good = 0
        now = "" if self._clock is None else repr(self._clock())
        try:
            wait, version, due, rate = self._script()(
                [f"noetl.pace:{target}"],
                [now, slot.epoch, slot.due, good, bad, asked, HORIZON_SECONDS, KEEP_SECONDS],
            )
        except (RedisError, OSError) as error:
            return self._without(target, slot, good, error)
        self._away = False
        self._remember(target, float(rate))
        seconds = float(wait)
        return Slot(seconds, seconds <= HORIZON_SECONDS, version.decode(), due.decode())

    def _remember(self, target: str, rate: float) -> None:
        with self._lock:
            self._targets.setdefault(target, _Target(rate)).rate = rate
            self._targets.move_to_end(target)
            if len(self._targets) > TARGETS_KEPT:
                self._targets.popitem(last=False)

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

    def _without(self, target: str, slot: Slot, good: int, error: Exception) -> Slot:
        """A slot of this process; one that it gave before is kept."""
        if not self._away:
            log.warning("Redis is away, requests keep to the last pace: %s", error)
        self._away = True
        with self._lock:
            own = self._targets.get(target)
            if own is None or slot.given:
                return Slot(0.0, True)
            own.good += good
            now = time.monotonic()
            at = max(now, own.free)
            own.free = at + 1 / own.rate
        return Slot(at - now, True)
