"""Directories of purged jobs go, and no others; a full disk stops its worker and no job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from callers import Caller
from queue_driver import Queue
from servers import RealServer
from small_disk import Small
from stack import Stack, until_exists
from wait import until
from workplace import Workplace

from foxqueue.broker import Broker
from foxqueue.config import load_config, machine_id
from workers.purged import PurgedFiles

OFTEN = """
import workers.purged as purged, workers.worker as worker
purged.EVERY_S = purged.SOON_S = worker.POLL_S = 0.1
purged.BATCH = 3
"""
JOBS = 12


def jobs_of(stack: Stack) -> Path:
    """The directory of the runs of the namespace's present life."""
    return stack.home / machine_id() / "jobs" / stack.api.broker.settings().instance


def names(stack: Stack) -> set[str]:
    return {path.name for path in jobs_of(stack).iterdir()}


def name_of(stack: Stack, number: int) -> str:
    return f"{number}-{stack.api.job(number).born}"


def start(stack: Stack, before: str = OFTEN) -> subprocess.Popen[bytes]:
    return stack.start_worker("sim:0", "--simulate", "1x24G", before=before)


def look_at_all(stack: Stack) -> None:
    """Wait until every directory was looked at: two that must go have come and gone."""
    for _ in range(2):
        decoy = jobs_of(stack) / f"{stack.api.redis.incr(stack.api.broker.keys.next)}-5"
        (decoy / "7").mkdir(parents=True)
        (decoy / "7" / "output.log").write_text("old")
        until(lambda path=decoy: not path.exists(), 20, what=f"the end of {decoy.name}")  # type: ignore[misc]


@pytest.fixture
def worked(stack: Stack) -> Stack:
    """Some jobs have run, and their worker is gone."""
    stack.serve(60_000)
    worker = start(stack)
    numbers = [stack.queue("sh", "-c", "mkdir $FOXQUEUE_DIR/deep && echo > $FOXQUEUE_DIR/deep/x") for _ in range(JOBS)]
    for number in numbers:
        stack.await_state(number, "succeeded")
    worker.terminate()
    stack.exit_status(worker.pid)
    assert names(stack) == {name_of(stack, number) for number in numbers}
    return stack


def test_files_go_with_their_jobs_and_no_others(worked: Stack) -> None:
    before = names(worked)
    start(worked)
    look_at_all(worked)
    assert names(worked) == before
    elsewhere = worked.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (jobs_of(worked) / "99-9").symlink_to(elsewhere)
    (jobs_of(worked) / "98-9").touch()
    (jobs_of(worked) / "notes").mkdir()
    kept = {"99-9", "98-9", "notes", name_of(worked, JOBS)}
    worked.api.broker.change_settings({"retain_finished_count": "1"}, "test")
    until(lambda: names(worked) == kept, 20, what="the end of all that was purged")
    assert (elsewhere / "kept").exists()


def test_a_server_set_back_to_older_data_keeps_the_files_of_jobs_it_lost(worked: Stack) -> None:
    """Given directories of jobs that the server never heard of, or whose number another job has, then they stay."""
    before = names(worked)
    lost = {f"{worked.api.broker.last_number() + 50}-5", "1-5"}
    for name in lost:
        (jobs_of(worked) / name / "7").mkdir(parents=True)
    start(worked)
    look_at_all(worked)
    assert names(worked) == before | lost


def test_another_life_of_the_server_keeps_its_files(worked: Stack) -> None:
    old, before = jobs_of(worked), names(worked)
    worked.api.redis.flushall()
    worked.api.broker.configure(60_000)
    start(worked)
    number = worked.queue("true")
    worked.await_state(number, "succeeded")
    assert jobs_of(worked) != old
    look_at_all(worked)
    assert {path.name for path in old.iterdir()} == before


def test_a_run_keeps_its_files_whatever_the_server_says(worked: Stack) -> None:
    """Given a server that lost a running job, when its files are looked at, then they stay until the run has ended."""
    start(worked)
    flag = worked.root / "flag"
    number = worked.queue(*until_exists(flag))
    worked.await_state(number, "running")
    name = name_of(worked, number)
    until(lambda: worked.processes_of(number), what="its processes")
    worked.api.redis.delete(worked.api.broker.keys.job(number))
    look_at_all(worked)
    assert name in names(worked)
    flag.touch()
    until(lambda: name not in names(worked), 20, what="the end of its files")


def test_a_job_that_is_queued_again_finds_its_files(worked: Stack) -> None:
    start(worked)
    number = worked.queue("sh", "-c", "[ -e $FOXQUEUE_DIR/x ] || { touch $FOXQUEUE_DIR/x; exit 3; }")
    job = worked.await_state(number, "failed")
    assert worked.api.broker.requeue(number, worked.api.job(number).born, "test").word == "ok"
    look_at_all(worked)
    assert worked.await_state(number, "succeeded")["fence"] != job["fence"]


def test_no_answer_removes_nothing(worked: Stack) -> None:
    start(worked)
    look_at_all(worked)
    before, jobs = names(worked), jobs_of(worked)
    decoy = f"{worked.api.redis.incr(worked.api.broker.keys.next)}-5"
    (jobs / decoy).mkdir()
    worked.api.redis.config_set("maxclients", 1)  # whoever comes anew is refused
    worked.api.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    until(lambda: "Redis is away" in worked.log("worker"), 20, what="the silence")
    assert before <= {path.name for path in jobs.iterdir()}
    worked.api.redis.config_set("maxclients", 1000)
    until(lambda: decoy not in {path.name for path in jobs.iterdir()}, 20, what="the next look")


@pytest.mark.parametrize("emptied", [False, True])
def test_a_server_that_is_emptied_while_it_is_asked(
    server: RealServer, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    broker = Broker.connect(server.url, "test")
    config = load_config(url=server.url, namespace="test", home=tmp_path)
    broker.redis.incr(broker.keys.next)
    left = config.jobs_dir / broker.settings().instance / "1-5"
    left.mkdir(parents=True)
    ask = broker.born_of

    def born_of(numbers: Sequence[int]) -> list[str | None]:
        if emptied:
            broker.redis.flushall()
        return ask(numbers)

    monkeypatch.setattr(broker, "born_of", born_of)
    purged = PurgedFiles(config, broker)
    purged.look()
    until(lambda: purged._thread is None or not purged._thread.is_alive(), what="the end of the removal")
    assert left.exists() == emptied
    broker.close()


# --- a full disk ---------------------------------------------------------------------------------------------


def test_a_worker_whose_disk_is_full_claims_nothing(stack: Stack) -> None:
    stack.serve()
    small = Small(stack)
    first = stack.queue("true")
    stack.await_state(first, "succeeded")
    small.leave(15 * 2**20)
    until(lambda: small.device()["state"] == "unavailable", 20, what="the word")
    assert "is full: 15M free, a run needs 16M: free some" in str(small.device()["detail"])
    numbers = [stack.queue("true") for _ in range(3)]
    until(lambda: "is full" in (stack.job(numbers[0])["detail"] or ""), 10, what="the reason")
    assert [stack.job(number)["state"] for number in numbers] == ["pending"] * 3
    small.filler.unlink()
    for number in numbers:
        assert stack.await_state(number, "succeeded")["attempts"] == 1
    assert not stack.events(numbers[0], "release")


def test_a_job_in_a_row_meets_a_full_disk(stack: Stack) -> None:
    """The job that fills the disk ends as it likes; the next, which would ride along with its end, is not claimed."""
    stack.serve()
    small = Small(stack)
    first = stack.queue("sh", "-c", "head -c 12M /dev/zero > $FOXQUEUE_DIR/much; exit 3")
    second = stack.queue("true")
    assert stack.await_state(first, "failed")["exit_code"] == 3
    until(lambda: small.device()["state"] == "unavailable", 20, what="the word")
    assert stack.job(second)["state"] == "pending"
    assert not stack.events(second, "claim")


UNSEEN = "import workers.room as room; room.ROOM_BYTES = room.ROOM_FILES = 0; room.AGAIN_S = 1.0"


@pytest.mark.parametrize("kind", ["command", "call", "files", "config", "script"])
def test_a_launch_that_finds_no_room_gives_the_job_back(stack: Stack, kind: str) -> None:
    """Given room that cannot be seen to be gone (a quota, say), when a launch fails for it, then the job waits."""
    stack.serve()
    (stack.work / "calls.py").write_text("def f():\n    return 1\n")
    small = Small(stack, "size=20m,nr_inodes=60", UNSEEN)
    if kind == "files":
        made = [small.place / f"file-{at}" for at in range(os.statvfs(small.place).f_favail)]
        for path in made:
            path.touch()
    else:
        small.leave(2**20 if kind in ("config", "script") else 0)
    if kind in ("config", "script"):
        large = {"config": json.dumps("x" * 2**21), "script": b"#!/bin/sh\nexit\n" + b"#" * 2**21}
        number = Workplace(stack).put("true", **{kind: large[kind]})
    else:
        number = Caller(stack, "calls").queue("f") if kind == "call" else stack.queue("true")
    until(lambda: len(stack.events(number, "release")) > 1, 20, what="the job given back")
    assert small.device()["state"] == "unavailable"
    assert "No space left on device" in str(small.device()["detail"])
    found = stack.job(number)
    assert (found["state"], found["attempts"], found["losses"]) == ("pending", 0, 0)
    assert len(stack.events(number, "claim")) <= 6  # and not as fast as it can
    for path in made if kind == "files" else [small.filler]:
        path.unlink()
    assert stack.await_state(number, "succeeded")["attempts"] == 1


@pytest.mark.parametrize(
    ("size", "reason", "detail"),
    [
        (20_000, "exit_code", ""),
        (0, "exception", "ValueError: yyy"),
        (500_000, "bad_result", "what it returned (500,005 bytes) could not be stored: No space left on device"),
    ],
)
def test_a_call_whose_disk_is_full_when_it_returns(stack: Stack, size: int, reason: str, detail: str) -> None:
    """What fits into the room that was kept is told; what does not is no success without a value."""
    stack.serve()
    shutil.copy(Path(__file__).parents[1] / "called" / "fills.py", stack.work)
    Small(stack)
    caller = Caller(stack, "fills")
    number = caller.queue("fill", size)
    job = caller.ended(number)
    assert (job["state"], job["reason"]) == ("succeeded" if reason == "exit_code" else "failed", reason)
    assert (job["detail"] or "").startswith(detail)
    if reason == "exit_code":
        assert len(caller.value_of(number)) == size
