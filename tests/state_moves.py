"""The queue as it should be: ticks, ways into pending, waking, what an old run may say."""

from __future__ import annotations

import copy
import itertools
import math

from state_data import Data, Fields
from state_image import Image

IDLE_MS = 12_000
Edge = tuple[str, str, str, str]  # parent, condition, its born, what it means now
SHOWN = ("pending", "idle", "idle_for", "idle_shapes", "wake", "shapes")  # what the order of shapes changes


class Moves(Data):
    """What all scripts have in common."""

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

    def _time(self, n: str, name: str, from_now_ms: int) -> str:
        """A time that the server wrote into a job, so far from when it was called."""
        given = self.image.keys.get(f"job:{n}", {}).get(name, "0")
        first, last = self.earlier + from_now_ms, self.now + from_now_ms
        assert first <= int(given) <= last, f"{name} of job {n} is {given}, not between {first} and {last}"
        return str(given)

    def _rank(self, tick: int, priority: str) -> str:
        return str(tick - int(priority) * self.setting("aging_us"))

    def _begin(self, candidate: str) -> None:
        if not self.life:
            self.life = candidate
        self.settings.setdefault("schema", "2")

    def _event(self, name: str, n: str, **more: str) -> None:
        fields = {key.rstrip("_"): value for key, value in more.items()}
        self.events.append({"event": name, "job": n, **fields})

    def _answer(self, token: str, text: str) -> str:
        self.requests[token] = text
        return text

    # --- groups ------------------------------------------------------------------------------------------

    def may_start(self, shape: str) -> bool:
        """Whether the group of a shape lets its jobs start."""
        group = self.groups.get(group_of(shape), {})
        limit = group.get("max_concurrent")
        return (
            "filling" not in group
            and "paused" not in group
            and (limit is None or int(group.get("running", 0)) < int(limit))
        )

    def _count(self, shape: str, name: str, by: int) -> None:
        if group_of(shape):
            counts = self.groups[group_of(shape)]
            counts[name] = str(int(counts.get(name, 0)) + by)

    def _shapes_of(self, group: str) -> list[str]:
        """In the server's order, which shows in who is woken."""
        return [shape for shape in self.image.keys.get("shapes", {}) if group_of(shape) == group]

    def _wake_group(self, group: str) -> None:
        for shape in self._shapes_of(group):
            self._wake(shape, min(len(self.pending.get(shape, ())), 100))

    # --- ready and idle ----------------------------------------------------------------------------------

    def _ready(self, *numbers: str) -> None:
        """Jobs of one shape come into pending: each wakes a worker, those of a new shape together wake all."""
        shape = self.jobs[numbers[0]]["shape"]
        for n in numbers:
            self.pending[shape][n] = float(self.jobs[n]["rank"])
        if shape in self.shapes:
            if self.may_start(shape):
                self._wake(shape, len(numbers))
            return
        self.shapes.add(shape)
        self.version = self.image.keys["shapes_version"]
        assert int(self.version) > self.before, f"{self.version} is no tick after {self.before}"
        self._wake_all()

    def _ready_all(self, numbers: list[str]) -> None:
        """Jobs of one request, by shapes. In which order the shapes come is the server's, and shows in who is woken."""
        by_shape: dict[str, list[str]] = {}
        for n in numbers:
            by_shape.setdefault(self.jobs[n]["shape"], []).append(n)
        woken = {key.removeprefix("wake:"): there for key, there in self.image.keys.items() if key.startswith("wake:")}
        before = copy.deepcopy({name: getattr(self, name) for name in SHOWN})
        for order in itertools.permutations(by_shape.values()):
            for name, value in copy.deepcopy(before).items():
                setattr(self, name, value)
            for of_shape in order:
                self._ready(*of_shape)
            if self.wake == woken:
                return

    def _wake(self, shape: str, how_many: int) -> None:
        for _ in range(how_many):
            standing = self.idle_for.get(shape)
            if not standing:
                return
            since, worker = max((since, worker) for worker, since in standing.items())
            if since < self.now - IDLE_MS:
                del self.idle_for[shape]
                return
            self._leave_idle(worker)
            self._token(worker, shape)

    def _wake_all(self) -> None:
        for _, worker in sorted(((since, worker) for worker, since in self.idle.items()), reverse=True)[:100]:
            self._leave_idle(worker)
            self._token(worker, "*")

    def _leave_idle(self, worker: str) -> None:
        for shape in self.idle_shapes.pop(worker, ()):
            self.idle_for[shape].pop(worker, None)
        self.idle.pop(worker, None)

    def _token(self, worker: str, text: str) -> None:
        self.wake.setdefault(worker, []).insert(0, text)

    def _freed(self, device: str) -> None:
        """A device may be free: a worker that waits for it asks, and the first of its line."""
        self._wake(device, 1)
        self._call_line(device)

    def _call_line(self, device: str) -> None:
        for _, token in sorted((rank, token) for token, rank in self.lines.get(device, {}).items())[:3]:
            self._token(token, device)

    def _promote(self, limit: int) -> int:
        due = sorted((score, n) for n, score in self.sets["scheduled"].items() if score <= self.now)[:limit]
        for _, n in due:
            del self.sets["scheduled"][n]
            self.jobs[n]["state"] = "pending"
            self._ready(n)
            self._event("promote", n)
        return len(due)

    def _schedule(self, n: str, due: int) -> None:
        """It is due before all others: the newest idle worker is told, which knows another time."""
        sooner = due < min(self.sets["scheduled"].values(), default=math.inf)
        self.sets["scheduled"][n] = due
        if sooner and self.idle:
            worker = max((since, worker) for worker, since in self.idle.items())[1]
            self._leave_idle(worker)
            self._token(worker, "*")

    # --- jobs --------------------------------------------------------------------------------------------

    def _guard(self, n: str, fence: str) -> str | None:
        job = self.jobs.get(n)
        if job is None:
            return "missing"
        if job.get("settled") == fence:
            return job["settled_as"]
        return None if (job["state"], job.get("fence")) == ("running", fence) else "stale"

    def _meant(self, a: Fields) -> str:
        """The answer of a request about a job that was answered before, or means no job that is there; else empty."""
        job = self.jobs.get(a["number"])
        if a["token"] in self.requests:
            return self.requests[a["token"]]
        if job is None:
            return self._answer(a["token"], "missing")
        return self._answer(a["token"], "stale") if a["born"] not in ("", job["born"]) else ""

    def _is_filling(self, shape: str) -> bool:
        """Whether nobody sees the jobs of a group yet."""
        return "filling" in self.groups.get(group_of(shape), {})

    def _runs_before(self, holder: str) -> list[Edge]:
        """Runs of a unique key's earlier jobs that have still to end."""
        found = []
        for parent, text in self.blocked_by.get(holder, {}).items():
            condition, _, born = text.partition(":")
            job = self.jobs.get(parent, {})
            if condition == "ended" and job.get("born") == born and not has_ended(job):
                found.append((parent, "ended", born, "open"))
        return found

    def _take_out(self, n: str) -> None:
        """A waiting job leaves its place."""
        state = self.jobs[n]["state"]
        (self.pending[self.jobs[n]["shape"]] if state == "pending" else self.sets[state]).pop(n, None)


def group_of(shape: str) -> str:
    """The group at the end of a shape, or nothing."""
    return shape.partition("@")[2]


def is_waiting(job: Fields | None) -> bool:
    """Whether a job waits."""
    return job is not None and job["state"] in ("pending", "scheduled", "blocked")


def has_ended(job: Fields | None) -> bool:
    """Whether a job has ended."""
    return job is not None and job["state"] in ("succeeded", "failed", "cancelled")
