"""Time that passes and things that go wrong, in Redis and in the model alike."""

from __future__ import annotations

from typing import ClassVar

from queue_oracles import STRANGER
from redis import Redis
from state_model import Model
from state_places import TURN_MS

from foxqueue.keys import Keys


class Accidents:
    """Does them in one namespace.

    Args:
        redis: client of the server.
        keys: of the namespace.
        model: which learns of them.
    """

    KINDS: ClassVar = (
        "a job is due",
        "a lease runs out",
        "a deadline lies far ahead",
        "a lease key vanishes",
        "a stranger takes a lease",
        "the clock runs ahead",
        "scripts are forgotten",
        "idle workers age",
        "wake-ups expire",
        "requests expire",
        "the environment expires",
        "a worker falls silent",
        "a day passes",
        "ended jobs age",
        "a spec is lost",
        "a job expires",
        "a run is old",
        "a group is abandoned",
        "a notice is due",
        "a turn is over",
        "a waiter falls silent",
    )

    def __init__(self, redis: Redis, keys: Keys, model: Model) -> None:
        self.redis, self.keys, self.model = redis, keys, model

    def happen(self, kind: str, pick: int, now: int) -> bool:
        """Let one happen.

        Args:
            kind: of ``KINDS``.
            pick: which of several.
            now: the server's time, ms.

        Returns:
            Whether there was anything for it to happen to.
        """
        sets = self.model.sets
        match kind:
            case "a job is due":
                return self._due(pick)
            case "a lease runs out":
                return self._score("running", sets["running"], pick, 1)
            case "a deadline lies far ahead":
                return self._score("running", sets["running"], pick, 10**15)
            case "ended jobs age":
                of = ("failed", "finished", "dropped")[pick % 3]
                return all(self._score(of, sets[of], at, 1) for at in range(max(len(sets[of]), 1)))
            case "a group is abandoned":
                return self._score("filling", sets["filling"], pick, 1)
            case "a notice is due":
                return self._score("notices", sets["notices"], pick, 1)
            case "a worker falls silent":
                return self._score("workers", self.model.workers, pick, now - 60_000)
            case "a day passes":
                return self._score("workers", self.model.workers, pick, 1)
        return bool(getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))(pick, now))

    def before_sweep(self, now: int, looked: str, grace_over: bool, soon: bool) -> None:
        """Set the reaper's own time.

        Args:
            now: the server's time, ms.
            looked: when anybody looked last: now, leave (as it is), old, future or never.
            grace_over: whether the time of grace has passed.
            soon: whether the last sweep was within a second.
        """
        at = {"now": now, "old": now - 8_000, "future": now + 60_000, "never": 0}.get(looked)
        if at is not None:
            self.redis.set(self.keys.looked, at)
            self.model.looked = at
        if grace_over:
            self.redis.delete(self.keys.grace_until)
            self.model.grace = 0
        if not soon:
            self.redis.delete(self.keys.swept)
            self.model.swept = 0

    def _score(self, name: str, members: dict[str, float], pick: int, score: float) -> bool:
        if not members:
            return False
        member = sorted(members)[pick % len(members)]
        self.redis.zadd(self.keys.prefix + name, {member: score}, xx=True)
        members[member] = score
        return True

    def _field(self, n: str, name: str) -> None:
        self.redis.hset(self.keys.job(int(n)), name, "1")
        self.model.jobs[n][name] = "1"

    def _due(self, pick: int) -> bool:
        """One whose start time has come may be promoted, or is not yet put among the scheduled when it is unheld."""
        later = sorted(n for n, job in self.model.jobs.items() if len(job.get("due_at", "")) > 1)
        if later:
            self._field(later[pick % len(later)], "due_at")
        return self._score("scheduled", self.model.sets["scheduled"], pick, 1) or bool(later)

    def _a_job_expires(self, pick: int, now: int) -> bool:
        """The sweep or the claim finds it."""
        expiry = self.model.sets["expiry"]
        if not expiry:
            return False
        self._field(sorted(expiry)[pick % len(expiry)], "expires_at")
        return not pick % 3 or self._score("expiry", expiry, pick, 1)

    def _a_run_is_old(self, pick: int, now: int) -> bool:
        running = sorted(self.model.sets["running"])
        if running:
            self._field(running[pick % len(running)], "started_at")
        return bool(running)

    def _a_lease_key_vanishes(self, pick: int, now: int) -> bool:
        for device in sorted(self.model.leases)[pick % 2 :][:1]:
            self.redis.delete(self.keys.lease(device))
            del self.model.leases[device]
            return True
        return False

    def _a_stranger_takes_a_lease(self, pick: int, now: int) -> bool:
        if pick % 4:
            return False
        device = f"GPU-{pick % 2 + 1}"
        self.redis.set(self.keys.lease(device), STRANGER, px=60_000)
        self.model.leases[device] = STRANGER.decode()
        return True

    def _the_clock_runs_ahead(self, pick: int, now: int) -> bool:
        if not self.model.clock:
            return False
        self.model.clock = int(self.redis.incrby(self.keys.clock, (1, 10**6, 60 * 10**6)[pick % 3]))
        return True

    def _scripts_are_forgotten(self, pick: int, now: int) -> bool:
        self.redis.script_flush()
        return True

    def _idle_workers_age(self, pick: int, now: int) -> bool:
        """All but the newest ones, in their shapes' lists; the list of all forgets later."""
        for name, members in [("idle", self.model.idle), *((f"idle:{s}", m) for s, m in self.model.idle_for.items())]:
            for member in members:
                members[member] = now - (70_000 if name == "idle" and pick % 2 else 20_000)
                self.redis.zadd(self.keys.prefix + name, {member: members[member]})
        return bool(self.model.idle)

    def _a_turn_is_over(self, pick: int, now: int) -> bool:
        """Whoever was called did not come; or everybody has forgotten it."""
        for device in sorted(self.model.turns)[pick % 2 :][:1]:
            self._end_turn(device, now, forgotten=pick % 3 == 0)
            return True
        return False

    def _end_turn(self, device: str, now: int, forgotten: bool = False) -> None:
        who = self.model.turns.pop(device).split(" ")[0]
        self.redis.delete(self.keys.turn(device))
        if not forgotten:
            self.model.turns[device] = f"{who} {now - 2 * TURN_MS}"
            self.redis.set(self.keys.turn(device), self.model.turns[device], px=60_000)

    def _a_waiter_falls_silent(self, pick: int, now: int) -> bool:
        for token in sorted(self.model.waiters)[pick % 2 :][:1]:
            self._silence(token)
            return True
        return False

    def _silence(self, token: str) -> None:
        self.redis.delete(self.keys.waiter(token))
        del self.model.waiters[token]

    def only_those_live(self, tokens: set[str]) -> None:
        """All others that stand in line fall silent, and whose turn it was has missed it."""
        for token in {*self.model.waiters} - tokens:
            self._silence(token)
        for device in list(self.model.turns):
            self._end_turn(device, 0, forgotten=True)

    def _wake_ups_expire(self, pick: int, now: int) -> bool:
        for worker in list(self.model.wake):
            self.redis.delete(self.keys.wake(worker))
            del self.model.wake[worker]
            return True
        return False

    def _requests_expire(self, pick: int, now: int) -> bool:
        found = self.redis.keys(self.keys.prefix.replace("{", "?").replace("}", "?") + "requests:*")
        if found:
            self.redis.delete(*found)
        self.model.requests.clear()
        return bool(found)

    def _the_environment_expires(self, pick: int, now: int) -> bool:
        self.redis.delete(self.keys.env("d"))
        self.model.envs.clear()
        return True

    def _a_spec_is_lost(self, pick: int, now: int) -> bool:
        waiting = sorted({n for members in self.model.pending.values() for n in members} & {*self.model.kept["spec"]})
        if not waiting or pick % 4:
            return False
        self.redis.delete(self.keys.spec(int(waiting[0])))
        del self.model.kept["spec"][waiting[0]]
        return True
