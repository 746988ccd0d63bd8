"""Hypothesis drives all scripts of a real server against a model of the queue: users, workers, accidents, time.

Each call is answered by the server and by the model, and all data are compared after it. Lost replies are calls
that are sent again at once, replays are calls that are sent again at any later time. Time does not pass here:
scores and times in Redis are moved instead, in the model too.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from queue_driver import Queue
from queue_oracles import DEVICES, SHAPES
from state_accidents import Accidents
from state_walk import Seat, Walk, step

from foxqueue.broker import Claimed, Environment, NewJob
from foxqueue.codec import pack
from foxqueue.scripts import Call

MAX_JOBS = 12  # waiting and running
ENV = Environment("d", b"env")
ENDS = ("complete", "value", "retry now", "retry later", "fail", "lease lost", "release", "lose")
WISHES = ("cancel", "cancel", "requeue", "requeue", "requeue", "release a device", "settings")
CHANGES = (
    {},
    {"max_losses": "1"}, {"max_losses": ""}, {"aging_us": "0"}, {"aging_us": "", "max_losses": "2"},
    {"retain_finished_count": "1"}, {"retain_failed_count": "0"},
    {"retain_finished_count": "", "retain_failed_count": ""},
)  # fmt: skip
PICK = st.integers(0, 11)
NEW = st.tuples(st.sampled_from(SHAPES), st.sampled_from((5, 2, 9)), st.sampled_from((0, 2)))
BORN = st.sampled_from(("right", "", "wrong"))
LOST = st.integers(0, 4).map(lambda at: at == 4)


class QueueMachine(Walk):
    """The rules."""

    # --- users -----------------------------------------------------------------------------------------

    @initialize(jobs=st.lists(NEW, min_size=1, max_size=4), asking=st.integers(0, 4))
    def begin(self, jobs: list[tuple[str, int, int]], asking: int) -> None:
        """So that something happens in each walk, whatever rules hypothesis leaves out."""
        self.enqueue_jobs(jobs, True, False)
        for seat in self.seats[:asking]:
            self.ask(seat)

    @rule(
        jobs=st.lists(
            st.tuples(st.sampled_from(SHAPES), st.sampled_from((5, 2, 9)), st.sampled_from((0, 2))),
            min_size=1,
            max_size=3,
        ),
        with_env=PICK,
        lost=LOST,
    )
    @step
    def enqueue(self, jobs: list[tuple[str, int, int]], with_env: int, lost: bool) -> bool | None:
        busy = len(self.model.sets["running"]) + sum(map(len, self.model.pending.values()))
        if busy + len(jobs) > MAX_JOBS:
            return False
        self.enqueue_jobs(jobs, with_env < 9, lost)
        return None

    def enqueue_jobs(self, jobs: list[tuple[str, int, int]], with_env: bool, lost: bool) -> None:
        """One request."""
        new = [NewJob("job", shape, priority, retries, 1000, b"spec") for shape, priority, retries in jobs]
        self.send(self.broker.enqueue_call(new, ENV, self.token(), with_env=with_env), lost=lost)

    @rule(what=st.sampled_from(WISHES), pick=PICK, born=BORN, lost=LOST)
    @step
    def wish(self, what: str, pick: int, born: str, lost: bool) -> None:
        """Something about a job, mostly one that is there, or about a device."""
        number = max(self.model.next + 1 - pick, 1) if pick < 10 else 99
        ended = [int(n) for n, job in self.model.jobs.items() if job["state"] in ("failed", "cancelled")]
        if what == "requeue" and pick % 2 and ended:
            number = ended[pick % len(ended)]
        if born == "right":
            born = self.model.jobs.get(str(number), {}).get("born", "")
        born = "1" if born == "wrong" else born
        match what:
            case "cancel":
                call = self.broker.cancel_call(number, born, "me", self.token())
            case "requeue":
                call = self.broker.requeue_call(number, born, "me", self.token())
            case "release a device":
                call = self.broker.force_release_call(tuple(DEVICES)[pick % 2], "me", self.token())
            case _:
                call = self.broker.configure_call(None, CHANGES[pick % len(CHANGES)], "me", self.token())
        self.send(call, lost=lost)

    # --- workers ---------------------------------------------------------------------------------------

    @rule(pick=PICK, waits=st.sampled_from((True, True, False)), pops=st.booleans(), lost=LOST)
    @step
    def claim(self, pick: int, waits: bool, pops: bool, lost: bool) -> bool | None:
        seats = [seat for seat in self.seats if seat.run is None]
        if not seats:
            return False
        self.ask(seats[pick % len(seats)], waits, pops, lost)
        return None

    @rule(pops=st.booleans())
    @step
    def all_ask(self, pops: bool) -> None:
        for seat in self.seats:
            if seat.run is None:
                self.ask(seat, pops=pops)

    @rule(pick=PICK, what=st.sampled_from(("beat", "log", "log", "trim")), offset=st.integers(0, 40), lost=LOST)
    @step
    def work(self, pick: int, what: str, offset: int, lost: bool) -> bool | None:
        seat = self._busy(pick)
        if seat is None or seat.run is None:
            return False
        number, fence = seat.run.number, seat.run.fence
        if what != "beat":
            self.send(self.broker.log_call(number, fence, offset, offset // 2 * (what == "trim"), b"x"), lost=lost)
            return None
        if self.send(self.broker.heartbeat_call(number, fence), lost=lost)[0].word not in ("ok", "taken"):
            self._drop(seat)
        return None

    def _busy(self, pick: int) -> Seat | None:
        busy = [seat for seat in self.seats if seat.run is not None]
        return busy[pick % len(busy)] if busy else None

    def _drop(self, seat: Seat) -> None:
        if seat.run is not None:
            self.left.append(seat.run)
        seat.run = None

    def _end_call(self, run: Claimed, how: str) -> Call:
        number, fence, outcome = run.number, run.fence, pack({"fence": run.fence})
        match how:
            case "complete" | "value":
                return self.broker.complete_call(number, fence, outcome, b"v" if how == "value" else b"")
            case "release":
                return self.broker.release_call(number, fence, "worker stops")
            case "lose":
                return self.broker.lose_call(number, fence)
            case "lease lost":
                return self.broker.fail_call(number, fence, "lease_lost", "", None, outcome, None)
        delay = {"retry now": 0, "retry later": 3_600_000}.get(how)
        return self.broker.fail_call(number, fence, "exit_code", "exited with 1", 1, outcome, delay)

    @rule(pick=PICK, how=st.sampled_from(ENDS), lost=LOST)
    @step
    def finish(self, pick: int, how: str, lost: bool) -> bool | None:
        seat = self._busy(pick)
        if seat is None or seat.run is None:
            return False
        self.send(self._end_call(seat.run, how), lost=lost)
        self._drop(seat)
        return None

    @rule(pick=PICK, how=st.sampled_from(ENDS), lost=LOST)
    @step
    def finish_and_claim(self, pick: int, how: str, lost: bool) -> bool | None:
        """In one round trip, as a busy worker does."""
        seat = self._busy(pick)
        if seat is None or seat.run is None:
            return False
        reply = self.send(self._end_call(seat.run, how), seat.worker.claim_call(), lost=lost)[1]
        self._drop(seat)
        self.take(seat, reply)
        return None

    @rule(pick=PICK, how=st.sampled_from(("registers", "registers", "dies", "is succeeded", "dies asking")), lost=LOST)
    @step
    def live(self, pick: int, how: str, lost: bool) -> None:
        """A worker says that it lives, or dies. What it had just sent may arrive later, for the first time; its
        successor may know its run."""
        seat = self.seats[pick % len(self.seats)]
        run, worker = seat.run, seat.worker
        if how == "registers":
            seat.registered += 1
            self.send(self.broker.register_call(worker.name, worker.device, seat.registered, b"seen"), lost=lost)
            return
        self.hint_lost |= worker.name in self.model.idle or worker.name in self.model.wake or bool(worker.woken)
        if how == "dies asking":
            self.delayed.append(self._end_call(run, ENDS[pick % len(ENDS)]) if run else worker.claim_call())
        self._drop(seat)
        seat.worker, seat.registered = self.new_worker(worker.device), 0
        if how == "is succeeded" and run:
            self.send(self.broker.lose_call(run.number, run.fence), lost=lost)

    # --- what arrives late -----------------------------------------------------------------------------

    @rule(pick=st.integers(0, 99))
    @step
    def replay(self, pick: int) -> bool | None:
        """Any earlier call again: nothing changes."""
        if not self.sent:
            return False
        call, _ = self.sent[-1 - pick % len(self.sent)]
        before = self.image
        reply = self.exchange(call)[0]
        if (call.script.name, reply.word) != ("register", "ok"):  # its device's other worker has been silent
            self.unchanged((call,), before)
        return None

    @rule(pick=PICK, how=st.sampled_from(ENDS))
    @step
    def late(self, pick: int, how: str) -> bool | None:
        """The first copy of a call whose worker has given up its run, or is dead by now."""
        if self.delayed and pick % 2:
            self.hint_lost = True  # it may stand idle now
            self.send(self.delayed.pop(pick % len(self.delayed)))
            return None
        if not self.left:
            return False
        self.send(self._end_call(self.left[-1 - pick % len(self.left)], how))
        return None

    # --- time and accidents ----------------------------------------------------------------------------

    @rule(
        limit=st.sampled_from((100, 1)),
        looked=st.sampled_from(("now", "now", "leave", "old", "future", "never")),
        grace_over=st.booleans(),
        soon=st.sampled_from((False, False, True)),
    )
    @step
    def sweep(self, limit: int, looked: str, grace_over: bool, soon: bool) -> None:
        self.accidents.before_sweep(self.broker.server_time_ms(), looked, grace_over, soon)
        self.send(self.broker.sweep_call(limit))

    @rule(kind=st.sampled_from(Accidents.KINDS), pick=PICK)
    @step
    def accident(self, kind: str, pick: int) -> bool | None:
        if not self.accidents.happen(kind, pick, self.image.now):
            return False
        self.done[f"accident {kind}"] += 1
        if kind == "requests expire":  # nothing is sent again after a minute
            self.sent = [(call, word) for call, word in self.sent if "token" not in call.script.arguments]
        if kind == "a day passes":
            names = {call.parts[len(call.script.keys) + 1] for call in self.delayed if call.script.name == "claim"}
            self.delayed = [call for call in self.delayed if call.script.name != "claim"] if names else self.delayed
            self.sent = [(call, word) for call, word in self.sent if call.script.name != "claim"]
        self.hint_lost |= kind in ("idle workers age", "wake-ups expire")
        self.image = self.camera.take()
        self.compare(self.image.now, kind)
        return None


def machine(queue: Queue) -> type[QueueMachine]:
    """The machine on this server; ``done`` counts what happened."""
    return type("Machine", (QueueMachine,), {"queue": queue, "done": Counter()})
