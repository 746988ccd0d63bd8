"""Hypothesis drives all scripts of a real server against a model of the queue: users, workers, accidents, time.

Each call is answered by the server and by the model, and all data are compared after it. Lost replies are calls
that are sent again at once, replays are calls that are sent again at any later time. Time does not pass here:
scores and times in Redis are moved instead, in the model too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from queue_driver import Queue
from state_accidents import Accidents
from state_holders import Holders
from state_requests import HOUR_MS, LOST, NEW, PICK, New
from state_walk import Seat, step

from foxqueue.broker import Claimed
from foxqueue.codec import pack
from foxqueue.scripts import Call

ENDS = (
    "complete", "complete", "value", "retry now", "retry later", "fail", "fail", "lease lost",
    "release", "later", "paused", "lose", "lose", "lose after a reboot",
)  # fmt: skip
BROUGHT = ("a lease runs out", "a group is abandoned", "a job expires", "ended jobs age", "a job is due")
OFTEN = ("a lease key vanishes", "ended jobs age", "a turn is over") * 2


class QueueMachine(Holders):
    """Rules of workers, of what arrives late, and of time; those of users are inherited."""

    @initialize(jobs=st.lists(NEW, min_size=1, max_size=4), asking=st.integers(0, 4))
    def begin(self, jobs: list[New], asking: int) -> None:
        """So that something happens in each walk, whatever rules hypothesis leaves out."""
        self.enqueue_jobs(jobs, True, False)
        for seat in self.seats[:asking]:
            self.ask(seat)

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
        if all(seat.run is None for seat in self.seats):
            self.ask(self.seats[pick % len(self.seats)])
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
                return self.broker.release_call(number, fence, "shutdown", "worker stops")
            case "later" | "paused":
                delay = HOUR_MS if how == "later" else None
                return self.broker.release_call(number, fence, how, "exited with 75", delay)
            case "lose" | "lose after a reboot":
                return self.broker.lose_call(number, fence, "another" if how != "lose" else "")
            case "lease lost":
                return self.broker.fail_call(number, fence, "lease_lost", "", None, outcome, None)
        delay = {"retry now": 0, "retry later": HOUR_MS}.get(how)
        return self.broker.fail_call(number, fence, "exit_code", "exited with 1", 1, outcome, delay)

    @rule(how=st.sampled_from(ENDS), rounds=st.integers(1, 4))
    @step
    def come_to_rest(self, how: str, rounds: int) -> None:
        """All runs end and all workers ask, so that some are idle in the end."""
        for _ in range(rounds):
            for seat in self.seats:
                if seat.run is not None:
                    self.send(self._end_call(seat.run, how))
                    self._drop(seat)
                self.ask(seat)

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
            name, device = worker.name, worker.device
            self.send(self.broker.register_call(name, device, seat.registered, b"seen", "host", worker.boot), lost=lost)
            return
        self.boots += pick == 11  # of its machine
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
        jobs = self.model.jobs
        again = [
            run
            for run in self.left
            if (job := jobs.get(str(run.number), {})).get("state") == "running" and job["fence"] != run.fence
        ]
        meant = again if again and pick % 4 else self.left
        self.send(self._end_call(meant[-1 - pick % len(meant)], how))
        return None

    # --- time and accidents ----------------------------------------------------------------------------

    @rule(
        limit=st.sampled_from((100, 1)),
        looked=st.sampled_from(("now", "now", "leave", "old", "future", "never")),
        grace_over=st.booleans(),
        soon=st.sampled_from((False, False, True)),
        brought=st.sampled_from(("", *BROUGHT)),
        pick=PICK,
    )
    @step
    def sweep(self, limit: int, looked: str, grace_over: bool, soon: bool, brought: str, pick: int) -> None:
        """Sometimes there is surely something to do."""
        if brought and self.accidents.happen(brought, pick, self.image.now):
            looked, grace_over, soon = "now", True, False
        self.accidents.before_sweep(self.broker.server_time_ms(), looked, grace_over, soon)
        self.send(self.broker.sweep_call(limit))
        self._forget_claims(lambda worker: worker in self.model.claims)

    @rule(kind=st.sampled_from((*Accidents.KINDS, *OFTEN)), pick=PICK)
    @step
    def accident(self, kind: str, pick: int) -> None:
        first = Accidents.KINDS.index(kind)
        kinds = (*Accidents.KINDS[first:], *Accidents.KINDS[:first])  # what nothing is there for gives way to the next
        kind = next(kind for kind in kinds if self.accidents.happen(kind, pick, self.image.now))
        self.done[f"accident {kind}"] += 1
        if kind == "requests expire":  # nothing is sent again after a minute
            self.sent = [(call, word) for call, word in self.sent if "token" not in call.script.arguments]
        if kind == "a day passes":
            self._forget_claims(lambda _: False)
        self.hint_lost |= kind in ("idle workers age", "wake-ups expire", "a lease key vanishes")
        self.image = self.camera.take()
        self.compare(self.image.now, kind)

    def _forget_claims(self, known: Callable[[str], bool]) -> None:
        """Questions of workers that nobody has heard of for a day do not come again."""

        def stays(call: Call) -> bool:
            return call.script.name != "claim" or known(str(call.parts[len(call.script.keys) + 1]))

        self.delayed = [call for call in self.delayed if stays(call)]
        self.sent = [(call, word) for call, word in self.sent if stays(call)]


def machine(queue: Queue) -> type[QueueMachine]:
    """The machine on this server; ``done`` counts what happened."""
    return type("Machine", (QueueMachine,), {"queue": queue, "done": Counter()})
