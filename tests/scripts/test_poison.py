"""Poison: a job that takes down its worker again and again ends; one that had bad luck with machines does not."""

from __future__ import annotations

import pytest
from queue_driver import Queue

HOURS_AGO = 1


def lost(queue: Queue, boot: str = "", *, after_boot: str | None = None, old: bool = False, how: str = "lose") -> None:
    """The job starts on a machine and is lost; ``after_boot``: who finds it sees another boot id."""
    number = int(queue.broker.redis.incr("lives"))
    worker = queue.worker(f"w{number}", f"GPU-{number}")
    worker.boot = boot
    if boot:
        queue.send(queue.broker.register_call(worker.name, worker.device, 1, b"seen", "host", boot))
    run = worker.claim()
    if old:
        queue.broker.redis.hset(queue.broker.keys.job(run.number), "started_at", HOURS_AGO)
    if how == "reap":
        queue.overdue(run.number)
        queue.reap()
    else:
        queue.send(queue.broker.lose_call(run.number, run.fence, boot if after_boot is None else after_boot))


@pytest.mark.parametrize("how", ["lose", "reap"])
@pytest.mark.parametrize("boot", ["", "b1"])
def test_three_losses_soon_after_the_start_are_the_job_s_fault(queue: Queue, how: str, boot: str) -> None:
    number = queue.enqueue()
    for _ in range(2):
        lost(queue, boot, how=how)
        assert queue.state(number) == "pending"
    lost(queue, boot, how=how)
    job = queue.job(number)
    assert (job["state"], job["reason"], job["detail"]) == ("failed", "poison", "lost its worker 3 times")
    assert job["attempts"] == "0" and job["losses"] == "3"


def test_losses_long_after_the_start_do_not_count(queue: Queue) -> None:
    number = queue.enqueue()
    for _ in range(5):
        lost(queue, "b1", old=True)
    assert queue.job(number)["losses"] == "5" and queue.state(number) == "pending"
    for _ in range(3):
        lost(queue, "b1")
    assert queue.job(number)["reason"] == "poison"


def test_a_reboot_that_the_successor_sees_was_the_machine_s_own(queue: Queue) -> None:
    number = queue.enqueue()
    for at in range(5):
        lost(queue, f"b{at}", after_boot=f"b{at + 1}")
    assert queue.job(number)["losses"] == "5" and queue.state(number) == "pending"


def test_a_reboot_that_shows_only_later_is_taken_back(queue: Queue) -> None:
    """The machine dies: another's sweep reaps the run, before anybody knows that it was a reboot."""
    number = queue.enqueue()
    for at in range(5):
        lost(queue, f"b{at}", how="reap")  # at the next start the host has another boot id
    assert queue.state(number) == "pending"
    assert queue.job(number)["poison"].split() == ["b0", "b1", "b2", "b3", "b4"]
    for _ in range(2):
        lost(queue, "b4", how="reap")
    assert queue.job(number)["reason"] == "poison"


def test_requeued_it_has_all_its_chances_again(queue: Queue) -> None:
    number = queue.enqueue()
    for _ in range(3):
        lost(queue)
    assert queue.broker.requeue(number, "", "me").word == "ok"
    assert "poison" not in queue.job(number)
    lost(queue)
    assert queue.state(number) == "pending"


def test_the_limit_is_a_setting(queue: Queue) -> None:
    queue.broker.change_settings({"max_losses": "1"}, "me")
    number = queue.enqueue()
    lost(queue)
    assert queue.job(number)["reason"] == "poison"


def test_how_each_run_ended_is_remembered_the_last_twenty(queue: Queue) -> None:
    number = queue.enqueue(retries=1)
    lost(queue, "b1", how="reap")
    run = queue.worker("mine").claim()
    queue.release(run)
    run = queue.worker("mine2").claim()
    queue.fail(run, delay_ms=0)
    rows = [row.decode().split("\n") for row in queue.broker.redis.lrange(queue.broker.keys.history(number), 0, -1)]
    assert [row[6:9] for row in rows] == [
        ["reap", "worker_lost", ""], ["release", "shutdown", ""], ["fail", "exit_code", "1"],
    ]  # fmt: skip
    assert [row[0] for row in rows] == ["1", "1", "1"], "what was given back is no attempt"
    assert rows[2][1] == run.fence and rows[2][4:6] == ["host", "GPU-1"] and rows[2][9] == "exited with 1"
    assert int(rows[2][2]) <= int(rows[2][3]) <= queue.broker.server_time_ms()
    for _ in range(25):
        queue.broker.redis.zadd(queue.broker.keys.scheduled, {str(number): 1}, xx=True)
        queue.release(queue.worker(f"w{queue.broker.redis.incr('lives')}").claim())
    assert queue.broker.redis.llen(queue.broker.keys.history(number)) == 20
