"""The only place where a Redis key is spelt. All keys of a namespace share one hash tag."""

from __future__ import annotations

import re
from dataclasses import dataclass

from foxqueue.errors import InvalidInput

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


@dataclass(frozen=True)
class Keys:
    """The keys of one namespace.

    Args:
        namespace: 1-64 of ``A-Z a-z 0-9 . _ -``.

    Raises:
        InvalidInput: the namespace has another character or length.
    """

    namespace: str

    def __post_init__(self) -> None:
        if not _NAMESPACE.match(self.namespace):
            raise InvalidInput(
                f"namespace {self.namespace!r} is not usable: give 1 to 64 letters, digits, '.', '_' or '-'"
            )

    @property
    def prefix(self) -> str:
        """What every key starts with. Scripts build the keys of jobs they find out themselves from it."""
        return f"foxqueue:{{{self.namespace}}}:"

    def _key(self, name: str) -> str:
        return self.prefix + name

    def job(self, number: int) -> str:
        """HASH: short whole-word fields of one job."""
        return self._key(f"job:{number}")

    def spec(self, number: int) -> str:
        """STRING: msgpack, what to run."""
        return self._key(f"spec:{number}")

    def result(self, number: int) -> str:
        """STRING: msgpack, what came out."""
        return self._key(f"result:{number}")

    def value(self, number: int) -> str:
        """STRING: msgpack, what a call returned."""
        return self._key(f"value:{number}")

    def log(self, number: int) -> str:
        """STREAM: tail of the output, ids ``<fence>-<byte offset>``."""
        return self._key(f"log:{number}")

    def blocked_by(self, number: int) -> str:
        """HASH: parent -> ``<cond>:<born>`` while it counts, then ``met:<cond>:<born>``."""
        return self._key(f"blocked_by:{number}")

    def dependents(self, number: int) -> str:
        """ZSET: jobs that wait for this one, or did -> their numbers."""
        return self._key(f"dependents:{number}")

    def history(self, number: int) -> str:
        """LIST, at most 20: how earlier runs ended, newest last, each a text of lines."""
        return self._key(f"history:{number}")

    def awaited(self, name: str) -> str:
        """SET: jobs that jobs of a group wait for, while it is being filled."""
        return self._key(f"awaited:{name}")

    def group(self, name: str) -> str:
        """HASH: one group of jobs: its limits, counts, and whether it is paused or still being filled."""
        return self._key(f"group:{name}")

    def members(self, name: str) -> str:
        """ZSET: jobs of a group -> their numbers."""
        return self._key(f"members:{name}")

    def env(self, digest: str) -> str:
        """STRING, PX 90 days: a captured environment under its sha256."""
        return self._key(f"env:{digest}")

    def pending(self, shape: str) -> str:
        """ZSET: claimable jobs of one shape, score = rank. A shape of a group ends with ``@<group>``."""
        return self._key(f"pending:{shape}")

    def lease(self, device: str) -> str:
        """STRING, PX: fence, the grant's heartbeat."""
        return self._key(f"lease:{device}")

    def lease_waiting(self, device: str) -> str:
        """ZSET, PX 10 min: tokens of those who wait for a lease of the device -> rank."""
        return self._key(f"lease_waiting:{device}")

    def waiter(self, token: str) -> str:
        """HASH, PX 1 min: who waits for a lease: rank, devices, needs, holder. While it is there, the waiter lives."""
        return self._key(f"waiter:{token}")

    def turn(self, device: str) -> str:
        """STRING, PX 5 s: whose turn it is to take a free device, and since when, ms. That of the jobs that rank before
        a lease is that of ``jobs:<device>``."""
        return self._key(f"turn:{device}")

    def declared(self, device: str) -> str:
        """HASH: slot of a device -> MiB that its run or lease has declared."""
        return self._key(f"declared:{device}")

    def idle_for(self, shape: str) -> str:
        """ZSET: idle workers registered for one shape -> ms since when."""
        return self._key(f"idle:{shape}")

    def idle_shapes(self, worker: str) -> str:
        """SET: shapes under which one idle worker stands."""
        return self._key(f"idle_shapes:{worker}")

    def wake(self, worker: str) -> str:
        """LIST, PX: tokens that wake one worker: a shape, ``*`` (look at all) or ``cancel:<job>``."""
        return self._key(f"wake:{worker}")

    @property
    def shapes(self) -> str:
        """HASH: shape -> ms of its first use. The shape spells its own requirement."""
        return self._key("shapes")

    @property
    def shapes_version(self) -> str:
        """STRING: tick of the last new one in ``shapes``."""
        return self._key("shapes_version")

    @property
    def running(self) -> str:
        """ZSET: job -> lease deadline ms."""
        return self._key("running")

    @property
    def scheduled(self) -> str:
        """ZSET: job -> due ms (start times, retries)."""
        return self._key("scheduled")

    @property
    def blocked(self) -> str:
        """ZSET: jobs that wait for others, or are held -> ms since when."""
        return self._key("blocked")

    @property
    def expiry(self) -> str:
        """ZSET: jobs that have not started yet -> ms after which they are not worth it."""
        return self._key("expiry")

    @property
    def unsettled(self) -> str:
        """ZSET: ended jobs whose dependents are not all told -> the last one told."""
        return self._key("unsettled")

    @property
    def unfinished(self) -> str:
        """HASH: user -> how many of the user's jobs have not ended."""
        return self._key("unfinished")

    @property
    def unique(self) -> str:
        """HASH: unique key -> the last job that has it."""
        return self._key("unique")

    @property
    def groups(self) -> str:
        """ZSET: group -> ms when it began."""
        return self._key("groups")

    @property
    def filling(self) -> str:
        """ZSET: groups that nobody sees yet -> ms of their last chunk."""
        return self._key("filling")

    @property
    def paused(self) -> str:
        """HASH: ``*`` (the namespace) or a device -> by whom and why."""
        return self._key("paused")

    @property
    def notices(self) -> str:
        """ZSET: ended jobs whose end is to be told -> ms when."""
        return self._key("notices")

    @property
    def boots(self) -> str:
        """HASH: host -> boot id of its workers."""
        return self._key("boots")

    @property
    def finished(self) -> str:
        """ZSET: succeeded jobs, and cancelled ones that had started -> end ms."""
        return self._key("finished")

    @property
    def dropped(self) -> str:
        """ZSET: cancelled jobs that never started -> end ms. They count apart, so that they push out no run."""
        return self._key("dropped")

    @property
    def failed(self) -> str:
        """ZSET: dead letters -> end ms."""
        return self._key("failed")

    @property
    def granted(self) -> str:
        """HASH: device -> ``<fence> job:<n>``, ``<fence> released:<n>``, ``<fence> lease:<token>``, ``<fence>
        released_lease:<token>`` or ``<fence> -``: its last grant."""
        return self._key("granted")

    @property
    def holders(self) -> str:
        """HASH: device -> who has a lease of it without a job, tab-separated: see :mod:`foxqueue.holders`."""
        return self._key("holders")

    @property
    def withheld(self) -> str:
        """HASH: device -> why nobody gets it (dirty, quarantined), tab-separated: word, ms, boot id, kind, text."""
        return self._key("withheld")

    @property
    def lease_stats(self) -> str:
        """HASH: counters of leases without jobs: acquired, contended, released, lost, wait_ms, hold_ms."""
        return self._key("lease_stats")

    @property
    def claims(self) -> str:
        """HASH: worker -> ``<k>:<job>``, its last question and what it got."""
        return self._key("claims")

    @property
    def gpus(self) -> str:
        """HASH: device -> ``<worker> <seq> <msgpack>``, what its worker last saw."""
        return self._key("gpus")

    @property
    def workers(self) -> str:
        """ZSET: worker -> ms of its last register."""
        return self._key("workers")

    @property
    def idle(self) -> str:
        """ZSET: all idle workers -> ms since when."""
        return self._key("idle")

    @property
    def settings(self) -> str:
        """HASH: what belongs to the namespace: schema, clocks, ageing, limits, retention, priorities by model."""
        return self._key("settings")

    @property
    def events(self) -> str:
        """STREAM, capped: the audit trail."""
        return self._key("events")

    @property
    def next(self) -> str:
        """STRING: the last job number given out."""
        return self._key("next")

    @property
    def clock(self) -> str:
        """STRING: the last tick of the hybrid clock, microseconds."""
        return self._key("clock")

    @property
    def looked(self) -> str:
        """STRING: ms of the reaper's last look by anybody."""
        return self._key("looked")

    @property
    def swept(self) -> str:
        """STRING: ms of the last sweep."""
        return self._key("swept")

    @property
    def grace_until(self) -> str:
        """STRING: ms until which nothing is reaped."""
        return self._key("grace_until")

    @property
    def instance(self) -> str:
        """STRING: a random name of this namespace's life."""
        return self._key("instance")

    def requests(self, period: int) -> str:
        """HASH, PX 6 min: request token -> answer already given; a period is two minutes."""
        return self._key(f"requests:{period}")
