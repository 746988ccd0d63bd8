"""Requeueing by selection and in cascades, and dead letters."""

from __future__ import annotations

import pytest
from queue_driver import Queue
from shell import Shell

from foxqueue import Client, NotRequeued, QueueFull


def fail(queue: Queue, number: int) -> None:
    run = queue.worker(f"w{number}", f"GPU-{number}").claim()
    assert run.number == number
    queue.fail(run, delay_ms=None)


def states(queue: Queue, count: int) -> list[str]:
    return [queue.job(number)["state"] for number in range(1, count + 1)]


@pytest.fixture
def tree(fox: Client, queue: Queue) -> list[int]:
    """1 fails and takes along 2, 3 (of 1 and 2) and 4 (of 3). 5 waited for that, 7 for 2 and 6, which is cancelled."""
    root = fox.submit(["true"])
    two = fox.submit(["true"], after=root)
    three = fox.submit(["true"], after=[root, two])
    fox.submit(["true"], after=three)
    fox.submit(["true"], after_failed=root)
    six = fox.submit(["true"])
    fox.submit(["true"], after=[two, six])
    six.cancel()
    fail(queue, 1)
    fox.look()
    assert states(queue, 7) == ["failed", "cancelled", "cancelled", "cancelled", "pending", "cancelled", "cancelled"]
    return [1, 2, 3, 4]


def test_a_cascade_brings_back_children_and_theirs(shell: Shell, queue: Queue, tree: list[int]) -> None:
    out, err = shell.fox("requeue", "1", "--cascade", code=1)
    assert out.splitlines() == ["1 pending", "2 blocked", "3 blocked", "4 blocked"]
    assert "job 7 cannot be requeued: what it waits for can never be met, job 6 cancelled (cancelled_by_user)" in err
    assert states(queue, 7) == ["pending", "blocked", "blocked", "blocked", "pending", "cancelled", "cancelled"]


def test_a_cascade_goes_on_where_an_earlier_one_ended(shell: Shell, queue: Queue, tree: list[int], fox: Client) -> None:
    assert shell.fox("requeue", "1")[0] == "1 pending\n"
    with pytest.raises(NotRequeued, match=r"job 4 cannot be requeued: .* requeue that one with --cascade"):
        fox.job(4).requeue()
    assert fox.job(2).requeue().state == "blocked"
    assert fox.job(1).requeue(cascade=True).state == "pending"
    assert states(queue, 4) == ["pending", "blocked", "blocked", "blocked"]
    assert shell.fox("requeue", "2", "--cascade", "--json", code=1)[0], "6 is still in the way"
    assert shell.fox("requeue", "6")[0] == "6 pending\n"
    assert shell.fox("requeue", "2", "--cascade")[0] == "7 blocked\n"


def test_requeue_chooses_failed_and_cancelled_jobs(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit_many([{"argv": ["true"], "name": f"n{at}"} for at in range(4)])
    fail(queue, 1)
    fail(queue, 2)
    shell.fox("cancel", "3")
    assert shell.fox("requeue", "--state", "failed", "--name", "n[1-9]")[0] == "2 pending\n"
    assert shell.fox("requeue", "--all")[0] == "1 pending\n3 pending\n"
    assert [job.number for job in fox.jobs("pending")] == [4, 2, 1, 3], "behind what waits, in the order of numbers"


def test_no_room_is_another_exit_code(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit_many([{"argv": ["true"]} for _ in range(2)])
    fail(queue, 1)
    queue.broker.change_settings({"max_unfinished": "1"}, "me")
    assert "the queue is full: 1 unfinished jobs in the queue, at most 1" in shell.fox("requeue", "1", code=75)[1]
    with pytest.raises(QueueFull) as caught:
        fox.job(1).requeue()
    assert (caught.value.limit, caught.value.current, caught.value.whose) == (1, 1, None)
    queue.broker.change_settings({"max_unfinished": None}, "me")


def test_the_key_of_another_job_is_in_the_way(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit(["true"], unique="k").cancel()
    newer = fox.submit(["true"], unique="k")
    err = shell.fox("requeue", "1", code=1)[1]
    assert f"job 1 cannot be requeued: its unique key is job {newer.number}'s, which has not ended" in err
    newer.cancel()
    assert shell.fox("requeue", "1")[0] == "1 pending\n"


def test_failed_tells_reason_history_and_last_lines(shell: Shell, fox: Client, queue: Queue) -> None:
    assert "no job has failed" in shell.fox("failed")[1]
    fox.submit(["true"], name="evil\x1b[2J", retries=1)
    for at in range(2):
        worker = queue.worker(f"w{at}", f"GPU-{at}")
        reply = worker.ask()
        assert reply.word == "ok"
        fence = reply.rest[1].decode()
        queue.send(queue.broker.log_call(1, fence, 0, 0, b"".join(b"line %d\n" % n for n in range(9))))
        queue.send(
            queue.broker.fail_call(1, fence, "exit_code", f"exited with {at}", at, b"\x80", 0 if at == 0 else None)
        )
        fox.look()
    out = shell.fox("failed")[0]
    lines = out.splitlines()
    assert lines[0] == "job 1  evil\\x1b[2J"
    assert lines[1] == "  exit_code: exited with 1"
    assert lines[2].startswith("  attempt 1 on host (GPU-0), 0s until 20") and lines[2].endswith("exited with 0")
    assert lines[3].startswith("  attempt 2 on host (GPU-1), 0s until 20") and lines[3].endswith("exited with 1")
    assert lines[-5:] == [f"  line {n}" for n in range(4, 9)]
    found = shell.json("failed", "last", "--lines", "1")
    assert [run["exit_code"] for run in found[0]["history"]] == [0, 1]
    assert found[0]["output"] == ["line 8"] and found[0]["reason"] == "exit_code"
    pending = fox.submit(["true"])
    assert f"job {pending.number} has not failed: it is pending" in shell.fox("failed", "1-2", code=1)[1]
    assert shell.json("failed", "--name", "other") == []
    assert shell.fox("requeue", "--state", "failed")[0] == "1 pending\n"


def test_failed_shows_some_and_says_that_there_are_more(shell: Shell, fox: Client, queue: Queue) -> None:
    fox.submit_many([{"argv": ["true"], "name": f"n{at}"} for at in range(3)])
    for number in range(1, 4):
        fail(queue, number)
    out, err = shell.fox("failed", "--limit", "2")
    assert [line for line in out.splitlines() if line.startswith("job")] == ["job 3  n2", "job 2  n1"]
    assert "the first 2 of them" in err
