"""The server forgets its scripts at any moment: a restart, a failover, SCRIPT FLUSH."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queue_driver import Queue

from foxqueue import scripts
from foxqueue.broker import Claimed
from foxqueue.codec import pack
from foxqueue.scripts import Call, load


@dataclass(frozen=True)
class Flush(Call):
    """SCRIPT FLUSH, as one command of a pipeline."""

    def evalsha(self) -> tuple[Any, ...]:
        return ("SCRIPT", "FLUSH")


FLUSH = Flush(load("sweep"), ())


def known(queue: Queue) -> set[str]:
    names = scripts.names()
    there = queue.broker.redis.script_exists(*(load(name).sha for name in names))
    return {name for name, exists in zip(names, there, strict=True) if exists}


def test_between_any_two_operations(queue: Queue) -> None:
    def forgetting(act: Callable[[], Any]) -> Any:
        queue.broker.redis.script_flush()
        assert known(queue) == set()
        return act()

    worker = queue.worker()
    assert forgetting(lambda: worker.ask().word) == "empty"
    number = forgetting(lambda: queue.enqueue(retries=2))
    run = forgetting(worker.claim)
    assert forgetting(lambda: queue.beat(run)) == "ok"
    assert forgetting(lambda: queue.send(queue.broker.log_call(number, run.fence, 0, 0, b"a"))) == "ok"
    assert forgetting(lambda: queue.release(run)) == "released"
    run = forgetting(worker.claim)
    assert forgetting(lambda: queue.lose(run)) == "lost"
    run = forgetting(worker.claim)
    assert forgetting(lambda: queue.fail(run)) == "failed"
    run = forgetting(worker.claim)
    assert forgetting(lambda: queue.send(queue.broker.register_call("w1", "GPU-1", 1, b""))) == "ok"
    queue.overdue(number)
    assert forgetting(queue.reap).rest[:3] == (b"0", b"1", b"0")
    run = forgetting(worker.claim)
    assert forgetting(lambda: queue.broker.cancel(number, "", "me")) == "ok"
    assert forgetting(lambda: queue.complete(run)) == "cancelled"
    assert forgetting(queue.broker.settings).max_losses == 3


def test_whoever_meets_a_forgotten_script_loads_them_all(queue: Queue) -> None:
    """Otherwise an idle worker loads claim alone, and a busy one's [complete, claim] runs claim first."""
    queue.broker.redis.script_flush()
    queue.broker.sweep()
    assert known(queue) == set(scripts.names())


def test_while_somebody_does_nothing_else(queue: Queue) -> None:
    over = threading.Event()

    def flush() -> None:
        other = queue.broker.blocking(1)
        while not over.is_set():
            other.script_flush()
        other.close()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        worker = queue.worker()
        for _ in range(30):
            queue.enqueue()
            run = worker.claim()
            assert queue.beat(run) == "ok"
            ended, swept = queue.broker.send(
                queue.broker.complete_call(run.number, run.fence, b""), queue.broker.sweep_call()
            )
            assert ended.word == "succeeded" and swept.word in ("ok", "no")
    finally:
        over.set()
        thread.join()
    assert queue.broker.redis.zcard(queue.broker.keys.finished) == 30


def pipeline(queue: Queue, *, before: bool = False, between: bool = False) -> tuple[Claimed, list[str]]:
    """[complete, claim] with a flush somewhere; returns the run and the two words."""
    for _ in range(2):
        queue.enqueue()
    worker = queue.worker()
    run = worker.claim()
    complete, claim = queue.broker.complete_call(run.number, run.fence, pack({})), worker.claim_call()
    calls = [*[FLUSH] * before, complete, *[FLUSH] * between, claim]
    replies = [reply for reply in queue.broker.connection.evalsha(calls) if isinstance(reply, list)]
    return run, [reply[0].decode() for reply in replies]


def test_before_a_pipeline(queue: Queue) -> None:
    run, words = pipeline(queue, before=True)
    assert words == ["succeeded", "ok"]
    assert queue.job(run.number)["state"] == "succeeded"


def test_inside_a_pipeline(queue: Queue) -> None:
    run, words = pipeline(queue, between=True)
    assert words == ["succeeded", "ok"]
    running = queue.broker.redis.zrange(queue.broker.keys.running, 0, -1)
    assert running == [str(run.number + 1).encode()]
    assert queue.job(run.number + 1)["attempts"] == "1"


def test_a_pipeline_of_which_only_the_second_half_is_known(queue: Queue) -> None:
    """Another version's client may load claim alone: the device is still the first job's, nothing is doubled."""
    for _ in range(2):
        queue.enqueue()
    worker = queue.worker()
    run = worker.claim()
    queue.broker.redis.script_flush()
    queue.broker.redis.script_load(load("claim").text)
    ended, claimed = queue.broker.send(queue.broker.complete_call(run.number, run.fence, pack({})), worker.claim_call())
    assert (ended.word, claimed.word) == ("succeeded", "taken")
    assert worker.claim().number == 2
    assert queue.job(2)["attempts"] == "1"
