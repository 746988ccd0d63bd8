"""A job that can run wakes exactly one worker that can take it, and none is forgotten."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from changed_rules import changed
from queue_driver import Queue, Worker

from foxqueue.broker import Claimed

BIG = "g1.m8192"


def idle(queue: Queue, name: str, *shapes: str) -> Worker:
    """A worker that asked in vain, and waits."""
    worker = queue.worker(name, f"GPU-{name}", shapes or ("g1",))
    reply = worker.ask()
    assert reply.word == "empty", reply
    return worker


def known(queue: Queue, *shapes: str) -> None:
    """Shapes that everybody has seen before."""
    for shape in shapes or ("g1",):
        queue.broker.cancel(queue.enqueue(shape=shape), "", "me")


def older(queue: Queue, worker: Worker, by_ms: int) -> None:
    """As if the worker had asked that much earlier."""
    redis, keys = queue.broker.redis, queue.broker.keys
    for key in (keys.idle, *map(keys.idle_for, worker.shapes)):
        if redis.zscore(key, worker.name) is not None:
            redis.zincrby(key, -by_ms, worker.name)


def standing(queue: Queue, name: str) -> list[str]:
    """The keys under which a worker stands idle."""
    redis, keys = queue.broker.redis, queue.broker.keys
    lists = [key for key in redis.keys("*idle*") if redis.type(key) == b"zset"]
    found = [key.decode() for key in lists if redis.zscore(key, name) is not None]
    return found + [keys.idle_shapes(name)] * int(redis.exists(keys.idle_shapes(name)))


def test_one_worker_is_woken_the_newest_and_removed_everywhere(queue: Queue) -> None:
    known(queue, "g1", BIG)
    workers = [idle(queue, name, "g1", BIG) for name in ("a", "b", "c")]
    older(queue, workers[0], 2_000)
    older(queue, workers[2], 1_000)
    assert len(standing(queue, "b")) == 4
    queue.enqueue()
    assert [worker.tokens() for worker in workers] == [[], ["g1"], []]
    assert standing(queue, "b") == []
    queue.enqueue(shape=BIG)
    assert [worker.tokens() for worker in workers] == [[], [], [BIG]]
    queue.enqueue()
    assert [worker.tokens() for worker in workers] == [["g1"], [], []]
    queue.enqueue()
    assert not queue.broker.redis.exists(queue.broker.keys.idle)


def test_a_worker_that_does_not_fit_is_left_alone(queue: Queue) -> None:
    known(queue, "g1", BIG)
    small = idle(queue, "small", "g1")
    queue.enqueue(shape=BIG)
    assert small.tokens() == [] and standing(queue, "small")


def test_a_new_shape_wakes_all_that_wait(queue: Queue) -> None:
    known(queue)
    workers = [idle(queue, name) for name in ("a", "b", "c")]
    queue.enqueue(shape=BIG)
    assert [worker.tokens() for worker in workers] == [["*"]] * 3
    for worker in workers:
        assert standing(queue, worker.name) == []
        reply = worker.ask_once()
        assert reply.word == "shapes" and BIG.encode() in reply.rest


@pytest.mark.parametrize("how", ["release", "lose", "reap"])
def test_whatever_makes_a_job_pending_wakes(queue: Queue, how: str) -> None:
    number = queue.enqueue(retries=1)
    run = queue.worker("runs", "GPU-9").claim()
    waiting = idle(queue, "waits")
    if how == "release":
        queue.release(run)
    elif how == "lose":
        queue.lose(run)
    else:
        queue.overdue(number)
        queue.reap()
    assert waiting.tokens() == ["g1"]
    assert waiting.claim().number == number


def test_a_job_that_is_due_before_all_others_wakes_who_would_ask_too_late(queue: Queue) -> None:
    queue.enqueue(retries=1)
    run = queue.worker("runs", "GPU-9").claim()
    waiting = idle(queue, "waits")
    queue.fail(run, delay_ms=60_000)
    assert waiting.tokens() == ["*"]
    reply = waiting.ask()
    assert reply.word == "empty" and 59_000 < int(reply.rest[0]) <= 60_000
    other = queue.enqueue(more="delay_ms=90000\n")
    assert waiting.tokens() == []
    queue.enqueue(more="delay_ms=30000\n")
    assert waiting.tokens() == ["*"]
    assert other and 29_000 < int(waiting.ask().rest[0]) <= 30_000


def test_a_dead_workers_entry_is_skipped(queue: Queue) -> None:
    known(queue)
    dead = idle(queue, "dead")
    older(queue, dead, 13_000)
    queue.enqueue()
    assert dead.tokens() == []
    assert not queue.broker.redis.exists(queue.broker.keys.idle_for("g1"))
    live = idle(queue, "live", "other")
    live.shapes = ("g1",)
    assert live.claim().number == 2


def test_a_live_worker_behind_dead_ones_is_woken(queue: Queue) -> None:
    known(queue)
    live = idle(queue, "live")
    for name in ("dead1", "dead2"):
        older(queue, idle(queue, name), 13_000)
    queue.enqueue()
    assert live.tokens() == ["g1"]


def test_wake_lists_and_idle_lists_expire(queue: Queue) -> None:
    known(queue)
    worker = idle(queue, "a")
    redis, keys = queue.broker.redis, queue.broker.keys
    assert 0 < redis.pttl(keys.idle_for("g1")) <= 60_000
    assert 0 < redis.pttl(keys.idle_shapes("a")) <= 60_000
    queue.enqueue()
    assert 0 < redis.pttl(keys.wake(worker.name)) <= 20_000


def test_the_sweep_forgets_who_has_been_idle_for_long(queue: Queue) -> None:
    known(queue)
    worker = idle(queue, "a")
    older(queue, worker, 61_000)
    queue.reap()
    assert queue.broker.redis.zscore(queue.broker.keys.idle, "a") is None


def test_a_claim_takes_its_own_tokens_and_entries(queue: Queue) -> None:
    known(queue)
    worker = idle(queue, "a")
    queue.enqueue()
    queue.broker.redis.zadd(queue.broker.keys.idle, {"a": 1})
    assert worker.ask().word == "ok"  # it asks by itself, before it has read its token
    assert worker.tokens() == [] and standing(queue, "a") == []


def two_idle_one_woken(queue: Queue) -> tuple[Worker, Worker]:
    """`first` was woken for g1 and has its token; `second` waits for g1 too."""
    known(queue, "g1", BIG)
    second = idle(queue, "second", "g1")
    older(queue, second, 1_000)
    first = idle(queue, "first", "g1", BIG)
    queue.enqueue()
    assert second.tokens() == []
    return first, second


@pytest.mark.parametrize("read", [True, False], ids=["token read", "token unread"])
def test_a_woken_worker_that_takes_something_else_wakes_one_more(queue: Queue, read: bool) -> None:
    first, second = two_idle_one_woken(queue)
    better = queue.enqueue(shape=BIG, priority=9)
    if read:
        first.tokens()
    assert first.claim().number == better
    assert second.tokens() == ["g1"]


@pytest.mark.parametrize("read", [True, False], ids=["token read", "token unread"])
@pytest.mark.parametrize("why", ["taken", "does not fit now", "leaves", "new shape", "leaves at a new shape"])
def test_a_woken_worker_that_takes_nothing_wakes_one_more(queue: Queue, why: str, read: bool) -> None:
    first, second = two_idle_one_woken(queue)
    if read:
        first.tokens()
    if why == "taken":
        queue.broker.redis.hset(queue.broker.keys.withheld, first.device, "dirty\t1\t\tmemory\twhy")
    elif why == "does not fit now":
        first.shapes = (BIG,)
    elif why.endswith("new shape"):
        first.version = "before"
    word = first.ask_once(waits=not why.startswith("leaves")).word
    assert word == ("taken" if why == "taken" else "shapes" if why.endswith("new shape") else "empty")
    assert second.tokens() == ["g1"]
    if why.startswith("leaves"):
        assert standing(queue, first.name) == []


def test_a_woken_worker_wakes_nobody_when_there_is_no_more(queue: Queue) -> None:
    first, second = two_idle_one_woken(queue)
    first.tokens()
    first.claim()
    assert second.tokens() == [] and standing(queue, "second")


# --- a search: whatever the order of things, nobody waits while a job waits that it could take --------------


@dataclass
class Walk:
    """One random order of enqueues, questions, wake-ups and ends, until nothing moves."""

    queue: Queue
    chance: random.Random
    workers: dict[str, tuple[str, ...]]
    todo: list[tuple[str, int]]
    asking: set[str] = field(default_factory=set)
    running: dict[str, Claimed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driven = {name: self.queue.worker(name, f"GPU-{name}", shapes) for name, shapes in self.workers.items()}
        self.asking |= set(self.driven)
        self.leaver = self.chance.choice([*self.driven, *[""] * 8])
        self.ends = self.chance.choice((0, 0, 1, 2))
        self.polls = self.chance.choice((0, 0, 0, 2))

    def steps(self) -> list[tuple[str, str]]:
        redis, keys = self.queue.broker.redis, self.queue.broker.keys
        found = [("enqueue", "")] if self.todo else []
        found += [("ask", name) for name in sorted(self.asking)]
        waiting = set(self.driven) - self.asking - set(self.running)
        found += [("wake", name) for name in sorted(waiting) if redis.exists(keys.wake(name))]
        found += [("end", name) for name in sorted(self.running) if self.ends]
        found += [("poll", name) for name in sorted(waiting) if self.polls and found]
        return found

    def step(self, what: str, name: str) -> None:
        if what == "enqueue":
            shape, priority = self.todo.pop(self.chance.randrange(len(self.todo)))
            self.queue.enqueue(shape=shape, priority=priority)
        elif what == "wake":
            if self.chance.random() < 0.7:  # else the script reads them itself
                self.driven[name].tokens()
            self.asking.add(name)
        elif what == "poll":  # an idle worker asks by itself from time to time
            self.polls -= 1
            self.asking.add(name)
        elif what == "end":
            self.ends -= 1
            run = self.running.pop(name)
            (self.queue.complete if self.chance.random() < 0.5 else self.queue.release)(run)
            self.asking.add(name)
        elif name == self.leaver and self.chance.random() < 0.3:
            self.driven.pop(name).ask_once(waits=False)
            self.asking.discard(name)
        else:
            self._ask(self.driven[name])
        if self.driven and self.chance.random() < 0.3:  # which of the idle ones is the newest
            older(self.queue, self.driven[self.chance.choice(sorted(self.driven))], self.chance.randint(1, 50))

    def _ask(self, worker: Worker) -> None:
        reply = worker.ask_once()
        if reply.word == "shapes":
            return
        self.asking.discard(worker.name)
        if reply.word == "ok":
            self.running[worker.name] = Claimed.of(reply)

    def forgotten(self) -> list[tuple[str, str]]:
        """Walk to the end; return who waits next to a job that it could take."""
        while self.asking and self.chance.random() < 0.9:  # most of them wait before the first job comes
            self.step("ask", self.chance.choice(sorted(self.asking)))
        while steps := self.steps():
            self.step(*self.chance.choice(steps))
        redis, keys = self.queue.broker.redis, self.queue.broker.keys
        waiting = set(self.driven) - set(self.running)
        return [
            (name, shape)
            for name in sorted(waiting)
            for shape in self.workers[name]
            if redis.exists(keys.pending(shape))
        ]


# Of two that asked in the same millisecond, the one later in the alphabet counts as the newest.
FLEETS: list[tuple[dict[str, tuple[str, ...]], list[tuple[str, int]]]] = [
    ({"b": ("s1",), "z": ("s1", "s2")}, [("s1", 2), ("s2", 8)]),
    ({"b": ("s1",), "c": ("s2",), "z": ("s1", "s2")}, [("s1", 2), ("s2", 8), ("s1", 5)]),
    ({"b": ("s1", "s3"), "c": ("s2", "s3"), "z": ("s1", "s2", "s3")}, [("s1", 2), ("s2", 8), ("s3", 5), ("s1", 8)]),
    ({"a": ("s1", "s2"), "b": ("s1", "s2")}, [("s1", 2), ("s2", 8), ("s2", 5)]),
]


def search(queue: Queue, walks: int) -> None:
    for seed in range(walks):
        workers, todo = FLEETS[seed % len(FLEETS)]
        queue.broker.redis.flushall()
        if seed % 3:  # in two of three walks the shapes are known before
            known(queue, "s1", "s2", "s3")
        forgotten = Walk(queue, random.Random(seed), workers, list(todo)).forgotten()
        assert not forgotten, f"walk {seed}: {forgotten}"


def test_no_wake_up_is_lost(queue: Queue) -> None:
    search(queue, 200)


RULES = [
    ("claim", "answered_with(n)\nreturn granted_reply", "return granted_reply"),
    ("_ready", "    wake(shape_name, #rows / 2)", "    local _ = shape_name"),
    ("_ready", "    wake_all()", "    local _ = shape_name"),
]


@pytest.mark.parametrize("rule", RULES, ids=range(len(RULES)))
def test_the_search_finds_a_rule_that_is_missing(queue: Queue, rule: tuple[str, str, str]) -> None:
    with changed(*rule), pytest.raises(AssertionError, match="walk"):
        search(queue, 800)
