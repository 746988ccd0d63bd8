"""B6: between taking a job and owning it there is nothing that could be cut: one claim is one command to the server.

What follows a claim whose worker dies before it does anything is in ``test_reports_lost`` (A2).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_driver import Queue

from foxqueue.broker import Claimed
from foxqueue.codec import pack
from foxqueue.scripts import Call

LAST = "the end of the test"
GREETINGS = ("HELLO", "CLIENT")  # of a new connection


def commands(queue: Queue, do: Callable[[], object]) -> list[str]:
    """First words of the commands that clients send meanwhile; what scripts do themselves is left out."""
    with queue.broker.blocking(1.0).monitor() as monitor:
        do()
        queue.broker.redis.echo(LAST)
        found = []
        while LAST not in (command := monitor.next_command())["command"]:
            if command["client_type"] != "lua":
                found.append(command["command"].split()[0])
    return [word for word in found if word not in GREETINGS]


def test_a_claim_is_one_command(queue: Queue) -> None:
    queue.enqueue()
    worker = queue.worker()
    worker.ask_once()  # learns the shapes
    assert commands(queue, worker.claim) == ["EVALSHA"]
    assert queue.job(1)["state"] == "running"


@pytest.mark.parametrize("end", ["complete", "fail", "release", "lose"])
def test_the_end_of_a_run_and_the_next_claim_are_one_command_each(queue: Queue, end: str) -> None:
    queue.enqueue()
    queue.enqueue()
    worker = queue.worker()
    run = worker.claim()
    calls: list[Call] = [_end(queue, run, end), worker.claim_call()]
    queue.broker.send(queue.broker.heartbeat_call(run.number, run.fence))  # on its connection, scripts known
    assert commands(queue, lambda: queue.broker.send(*calls)) == ["EVALSHA", "EVALSHA"]
    assert queue.job(run.number)["settled"] == run.fence


def _end(queue: Queue, run: Claimed, end: str) -> Call:
    broker, record = queue.broker, pack({})
    return {
        "complete": broker.complete_call(run.number, run.fence, record),
        "fail": broker.fail_call(run.number, run.fence, "exit_code", "", 1, record, None),
        "release": broker.release_call(run.number, run.fence, "shutdown", ""),
        "lose": broker.lose_call(run.number, run.fence),
    }[end]
