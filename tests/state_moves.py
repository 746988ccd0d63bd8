"""The queue as it should be: what its scripts have in common."""

from __future__ import annotations

import copy
import itertools

from state_data import TIME, Data, Fields
from state_image import Image

IDLE_MS = 12_000

TAKEN_AWAY = "its device was taken from it by an operator"


class Moves(Data):
    """What the scripts have in common: ticks, ways into pending and out of running, waking."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.earlier = 0
        self.got: list[str] = []
        self.image = Image(0, "0")
        self.before = 0  # the clock before the call

    # --- ticks and times ---------------------------------------------------------------------------------

    def _tick(self, given: str | int | None) -> int:
        """A tick that the server gave out: later than all before."""
        tick = int(given or 0)
        assert self.clock < tick <= self.image.number("clock"), f"{tick} is no tick after {self.clock}"
        self.clock = tick
        return tick

    def _begin(self, candidate: str) -> None:
        if not self.life:
            self.life = candidate
            self.settings.setdefault("schema", "1")

    def _event(self, name: str, n: str, **more: str) -> None:
        self.events.append({"event": name, "job": n, **more})

    def _answer(self, token: str, text: str) -> str:
        self.requests[token] = text
        return text

    # --- ready and idle ----------------------------------------------------------------------------------

    def _ready(self, *numbers: str) -> None:
        """Jobs of one shape come into pending: each wakes a worker, those of a new shape together wake all."""
        shape = self.jobs[numbers[0]]["shape"]
        for n in numbers:
            self.pending[shape][n] = float(self.jobs[n]["rank"])
        if shape in self.shapes:
            for _ in numbers:
                self._wake_one(shape)
            return
        self.shapes.add(shape)
        self.version = self.image.keys["shapes_version"]
        assert int(self.version) > self.before, f"{self.version} is no tick after {self.before}"
        self.clock = max(self.clock, int(self.version))
        for _, worker in sorted(((since, worker) for worker, since in self.idle.items()), reverse=True)[:100]:
            self._leave_idle(worker)
            self._token(worker, "*")

    def _ready_all(self, numbers: list[str]) -> None:
        """Jobs of one request, by shapes. In which order the shapes come is the server's, and shows in who is woken."""
        by_shape: dict[str, list[str]] = {}
        for n in numbers:
            by_shape.setdefault(self.jobs[n]["shape"], []).append(n)
        woken = {key.removeprefix("wake:"): there for key, there in self.image.keys.items() if key.startswith("wake:")}
        names = ("pending", "idle", "idle_for", "idle_shapes", "wake", "shapes", "clock")
        before = copy.deepcopy({name: getattr(self, name) for name in names})
        for order in itertools.permutations(by_shape.values()):
            for name, value in copy.deepcopy(before).items():
                setattr(self, name, value)
            for of_shape in order:
                self._ready(*of_shape)
            if self.wake == woken:
                return

    def _wake_one(self, shape: str) -> None:
        standing = self.idle_for.get(shape)
        if not standing:
            return
        since, worker = max((since, worker) for worker, since in standing.items())
        if since < self.now - IDLE_MS:
            del self.idle_for[shape]
            return
        self._leave_idle(worker)
        self._token(worker, shape)

    def _leave_idle(self, worker: str) -> None:
        for shape in self.idle_shapes.pop(worker, ()):
            self.idle_for[shape].pop(worker, None)
        self.idle.pop(worker, None)

    def _token(self, worker: str, text: str) -> None:
        self.wake.setdefault(worker, []).insert(0, text)

    def _promote(self, limit: int) -> int:
        due = sorted((score, n) for n, score in self.sets["scheduled"].items() if score <= self.now)[:limit]
        for _, n in due:
            del self.sets["scheduled"][n]
            self.jobs[n]["state"] = "pending"
            self._ready(n)
            self._event("promote", n)
        return len(due)

    # --- ends of runs ------------------------------------------------------------------------------------

    def _guard(self, n: str, fence: str) -> str | None:
        job = self.jobs.get(n)
        if job is None:
            return "missing"
        if job.get("settled") == fence:
            return job["settled_as"]
        return None if (job["state"], job.get("fence")) == ("running", fence) else "stale"

    def _ended(self, n: str, word: str) -> None:
        job = self.jobs[n]
        device, fence = job["gpus"], job["fence"]
        del self.sets["running"][n]
        job |= {"settled": fence, "settled_as": word}
        if self.granted.get(device) in (f"{fence} job:{n}", f"{fence} released:{n}"):
            self.granted[device] = f"{fence} -"
        if self.leases.get(device) == fence:
            del self.leases[device]

    def _over(self, n: str, state: str, reason: str, detail: str) -> None:
        self.jobs[n] |= {"state": state, "reason": reason, "detail": detail, "finished_at": TIME}
        self.sets["failed" if state == "failed" else "finished"][n] = self.now

    def _over_cancelled(self, n: str, more: str = "") -> None:
        self._over(n, "cancelled", "cancelled_by_user", f"cancelled by {self.jobs[n]['cancel_requested']}{more}")

    def _back(self, n: str, reason: str, detail: str) -> None:
        self.jobs[n] |= {"state": "pending", "reason": reason, "detail": detail}
        self._ready(n)

    def _uncount(self, job: Fields) -> None:
        job["attempts"] = str(max(int(job["attempts"]) - 1, 0))

    def _taken_away(self, n: str) -> bool:
        """Whether an operator has taken the device of a run."""
        job = self.jobs[n]
        return bool(self.granted.get(job["gpus"]) == f"{job['fence']} released:{n}")

    def _lost(self, n: str, how: str) -> None:
        job = self.jobs[n]
        losses = int(job["losses"]) + 1
        released = self._taken_away(n)
        self._ended(n, "lost")
        job.pop("exit_code", None)
        job["losses"] = str(losses)
        self._uncount(job)
        self._event(how, n, worker=job["worker"], device=job["gpus"], fence=job["fence"])
        if "cancel_requested" in job:
            self._over_cancelled(n, "; its worker was lost")
        elif released:
            self._over(n, "failed", "lease_lost", TAKEN_AWAY)
        elif losses >= self.setting("max_losses"):
            self._over(n, "failed", "poison", f"lost its worker {losses} times")
        else:
            self._back(n, "worker_lost", f"worker {job['worker']} was lost")
