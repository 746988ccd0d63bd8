"""What users do in a walk of the state machine: jobs with all their wishes, groups, pauses, settings, notices."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from queue_oracles import DEVICES, GROUPS, SHAPES, SLOTS, WHOLE
from state_walk import Walk, step

from foxqueue.broker import Environment, NewJob
from foxqueue.scripts import Call

MAX_READY, MAX_JOBS = 5, 12  # that could run or do, and that have not ended
HOUR_MS = 3_600_000
LEASED = (*DEVICES, WHOLE, *SLOTS)
ENV = Environment("d", b"env")
CHANGES = (
    {},
    {"max_losses": "1"}, {"max_losses": ""}, {"aging_us": "0"}, {"aging_us": "", "max_losses": "2"},
    {"retain_finished_count": "1"}, {"retain_failed_count": "0"},
    {"retain_finished_count": "", "retain_failed_count": ""},
    {"max_unfinished": "5"}, {"max_unfinished_user": "2"}, {"max_unfinished": "", "max_unfinished_user": ""},
    {"expires_ms": str(2 * HOUR_MS)}, {"expires_ms": ""},
)  # fmt: skip
CONDITIONS = ("succeeded", "any", "failed", "ended")
EXISTS = ("refuse", "return", "replace", "replace")
WISHES = ("", "", "", "after", "after", "after two", "delay", "expires", "both", "held", "notify", "all", "unknown")
ABOUT = ("cancel", "cancel", "requeue", "requeue", "requeue", "hold", "unhold", "unhold", "priority", "front", "told")
SCOPES = ("*", "@a", "@b", "@gone", *DEVICES)
PICK = st.integers(0, 11)
NEW = st.tuples(
    st.sampled_from((*SHAPES, *SHAPES, "g1@a", "g1.m1024@a", "g1@b")),
    st.sampled_from((5, 2, 9)),
    st.sampled_from((0, 2)),
    st.sampled_from(WISHES),
    PICK,
)
New = tuple[str, int, int, str, int]
BORN = st.sampled_from(("right", "", "wrong"))
USERS = st.sampled_from(("", "ann", "ben"))
LOST = st.integers(0, 4).map(lambda at: at == 4)


class Requests(Walk):
    """Rules of users."""

    def _number(self, pick: int) -> int:
        """Mostly of a job that is there."""
        there = sorted(map(int, self.model.jobs))[-8:]
        return there[pick % len(there)] if there and pick < 10 else max(self.model.next + pick - 15, 1)

    def _born(self, number: int, born: str) -> str:
        if born == "right":
            return self.model.jobs.get(str(number), {}).get("born", "")
        return "1" if born == "wrong" else born

    def _after(self, pick: int, condition: int) -> str:
        there = sorted(self.model.jobs, key=int)[-10:]
        number = there[pick % len(there)] if there else "99"
        born = self._born(int(number), ("right", "")[pick % 2])
        return f"after={number}:{born}:{CONDITIONS[condition % 4]}\n"

    def more(self, wish: str, pick: int) -> str:
        """The lines of a job's wishes."""
        start, end = f"delay_ms={HOUR_MS}\n", f"expires_ms={2 * HOUR_MS}\n"
        match wish:
            case "after":
                return self._after(pick, pick // 2)
            case "after two":
                first, second = self._after(pick, pick), self._after(pick + 1, pick // 3)
                return first if first.split(":")[0] == second.split(":")[0] else first + second
            case "all":
                return self._after(pick, 1) + start + end + "notify=1\n" + "held=me\n" * (pick % 2)
            case "unknown":
                return ("after=99::any\n", "after=1:1:any\n", *[self._after(pick, 0)] * 4)[pick % 6]
        return {"delay": start, "expires": end, "both": start + end, "held": "held=me\n", "notify": "notify=1\n"}.get(
            wish, ""
        )

    def enqueue_jobs(self, jobs: list[New], with_env: bool, lost: bool, user: str = "", filling: str = "") -> None:
        """One request."""
        new = [
            NewJob("job", shape, priority, retries, 1000, b"spec", self.more(wish, pick))
            for shape, priority, retries, wish, pick in jobs
        ]
        call = self.broker.enqueue_call(new, ENV, self.token(), with_env=with_env, user=user, filling=filling)
        self.send(call, lost=lost)

    def _has_room(self, how_many: int) -> bool:
        states = [job["state"] for job in self.model.jobs.values()]
        ready = states.count("running") + states.count("pending")
        waiting = ready + states.count("blocked") + states.count("scheduled")
        return ready <= MAX_READY and waiting + how_many <= MAX_JOBS

    @rule(jobs=st.lists(NEW, min_size=1, max_size=3), with_env=PICK, user=USERS, lost=LOST)
    @step
    def enqueue(self, jobs: list[New], with_env: int, user: str, lost: bool) -> bool | None:
        if not self._has_room(len(jobs)):
            return False
        self.enqueue_jobs(jobs, with_env < 9, lost, user)
        return None

    @rule(job=NEW, key=st.sampled_from("kl"), user=USERS, lost=LOST)
    @step
    def enqueue_unique(self, job: New, key: str, user: str, lost: bool) -> bool | None:
        """A job with a key that another may have."""
        if not self._has_room(1):
            return False
        shape, priority, retries, wish, pick = job
        more = f"unique={key}\nexists={EXISTS[pick % 4]}\n" + self.more(wish, pick)
        new = NewJob("job", shape, priority, retries, 1000, b"spec", more)
        self.send(self.broker.enqueue_call([new], ENV, self.token(), with_env=True, user=user), lost=lost)
        return None

    @rule(
        what=st.sampled_from(("fill", "fill", "open", "open", "give up")),
        job=NEW,
        group=st.sampled_from(GROUPS),
        pick=PICK,
        lost=LOST,
    )
    @step
    def sweep_of_jobs(self, what: str, job: New, group: str, pick: int, lost: bool) -> bool | None:
        """A group comes in pieces, is opened or given up."""
        known = self.model.groups.get(group, {}).get("filling", "")
        sweep = known if pick < 9 and known else f"s{pick % 2}"
        if what == "fill" or (pick < 9 and not known):
            if not self._has_room(2):
                return False
            shape, *rest = job
            new = (f"{shape.partition('@')[0]}@{group}", *rest)
            joins = not known and group in self.model.groups and pick < 9  # not as a piece of a sweep
            self.enqueue_jobs([new, new][: 1 + pick % 2], True, lost, "ann", "" if joins else sweep)
            return None
        filled = int(self.model.groups.get(group, {}).get("filled", 1))
        total = None if what == "give up" else filled + (pick == 11)
        limits = {"max_concurrent": (0, 1, 2)[pick % 3], "max_fails": (0, 2, 1)[pick % 3]}
        self.send(self.broker.open_call(group, sweep, total, "me", self.token(), **limits), lost=lost)
        return None

    @rule(what=st.sampled_from(ABOUT), pick=PICK, born=BORN, lost=LOST)
    @step
    def wish(self, what: str, pick: int, born: str, lost: bool) -> None:
        """Something about a job, mostly one that is there."""
        number = self._number(pick)
        states = {"requeue": ("failed", "cancelled"), "unhold": ("blocked",), "cancel": ("running",) * (pick % 2)}
        meant = [int(n) for n, job in self.model.jobs.items() if job["state"] in states.get(what, ())]
        if pick < 9 and meant:
            number = meant[pick % len(meant)]
        if what == "told":
            ended = self.image.keys.get(f"job:{number}", {}).get("finished_at", "1")
            call = self.broker.told_call(number, self._born(number, born), int(ended) + (pick == 7), "w1")
            self.send(call, lost=lost)
            return
        self.send(self._about(what, number, self._born(number, born), pick), lost=lost)

    @rule(pick=PICK, lost=LOST)
    @step
    def change_one_s_mind(self, pick: int, lost: bool) -> bool | None:
        """Cancel what runs, requeue what was cancelled or has failed."""
        running = sorted(self.model.sets["running"])
        ended: dict[bool, list[str]] = {}
        for n, job in self.model.jobs.items():
            if job["state"] in ("cancelled", "failed"):
                ended.setdefault("cancel_requested" in job, []).append(n)
        meant = running if running and pick % 2 else ended.get(True) or ended.get(False, [])
        if not meant:
            return False
        n = meant[pick % len(meant)]
        self.send(self._about("cancel" if meant is running else "requeue", int(n), "", pick), lost=lost)
        return None

    def _about(self, what: str, number: int, born: str, pick: int) -> Call:
        broker, token = self.broker, self.token()
        match what:
            case "priority":
                return broker.reprioritize_call(number, born, (0, 5, 9)[pick % 3], "me", token)
            case "front":
                return broker.reprioritize_call(number, born, None, "me", token, front=True)
        calls = {
            "cancel": broker.cancel_call, "requeue": broker.requeue_call, "hold": broker.hold_call,
            "unhold": broker.unhold_call,
        }  # fmt: skip
        return calls[what](number, born, "me", token)

    @rule(
        what=st.sampled_from(("pause", "resume", "resume", "settings", "release a device", "notice")),
        scope=st.sampled_from(SCOPES),
        pick=PICK,
        lost=LOST,
    )
    @step
    def order(self, what: str, scope: str, pick: int, lost: bool) -> None:
        """Something about a device, a group or all."""
        broker = self.broker
        paused = [*self.model.paused, *(f"@{name}" for name, group in self.model.groups.items() if "paused" in group)]
        if paused and pick < 9 and (what == "resume" or (what == "pause" and pick % 3)):  # else all stands still
            what, scope = "resume", paused[pick % len(paused)]
        match what:
            case "pause":
                why = ("", "why")[pick % 2]
                call = broker.pause_call(scope, why, "me", self.token(), requeue_running=pick % 3 == 0)
            case "resume":
                call = broker.resume_call(scope, "me", self.token())
                self.hint_lost |= scope in DEVICES  # wakes the worker that registered last, and another may stand there
            case "settings":
                call = broker.configure_call(None, CHANGES[pick % len(CHANGES)], "me", self.token())
            case "notice":
                call = broker.notice_call(1 + pick)
            case _:
                call = broker.force_release_call(LEASED[pick % 5], "me", self.token())
        self.send(call, lost=lost)
        for seat in self.seats:
            if call.script.name == "force_release" and seat.run and pick % 3:  # its worker is woken and beats at once
                self.send(broker.heartbeat_call(seat.run.number, seat.run.fence))
