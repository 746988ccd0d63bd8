"""Choosing jobs on the command line, and changing very many."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from queue_driver import Queue
from shell import Shell
from stack import FOXQUEUE
from wait import until

from foxqueue import Client

MANY = 21


@pytest.fixture
def study(fox: Client, queue: Queue) -> list[int]:
    """Job 1 has succeeded, 2 has failed, 3 runs, 4 to 6 are pending, of two studies."""
    requests = [
        {"argv": ["true"], "name": f"lr-{at}", "tags": {"study": "ab"[at % 2], "seed": str(at)}} for at in range(6)
    ]
    jobs = fox.submit_many(requests)
    worker = queue.worker()
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    worker.claim()
    return [job.number for job in jobs]


def listed(shell: Shell, *words: str) -> list[int]:
    return [job["number"] for job in shell.json("ls", *words)]


def waits_for_news(queue: Queue) -> bool:
    return any(client["cmd"] == "xread" for client in queue.broker.redis.client_list())


def dry(shell: Shell, *words: str, code: int = 0) -> list[int]:
    return [job["number"] for job in shell.json(*words, "--dry-run", code=code)]


@pytest.mark.usefixtures("study")
def test_ls_takes_filters_and_numbers(shell: Shell) -> None:
    assert listed(shell, "--name", "lr-*", "--tag", "study=a") == [5, 3, 1]
    assert listed(shell, "--tag", "seed", "--state", "pending") == [4, 5, 6]
    assert listed(shell, "--tag", "seed=3", "--tag", "study=b", "--mine") == [4]
    assert listed(shell, "6,2-3") == [6, 2, 3]
    assert listed(shell, "last") == [6]
    out, err = shell.fox("ls", "5-8", code=1)
    assert "no_worker" in out, "with the reason it waits"
    assert "there is no job 7\nfoxqueue: there is no job 8" in err
    assert "the first 2 of 3 jobs" in shell.fox("ls", "1-3", "--limit", "2")[1]


@pytest.mark.usefixtures("study")
def test_show_and_logs_take_last(shell: Shell, queue: Queue) -> None:
    assert shell.json("show", "last")["number"] == 6
    assert shell.json("logs", "last")["number"] == 6
    queue.broker.redis.flushall()
    assert "there is no job of" in shell.fox("show", "last", code=1)[1]


@pytest.mark.usefixtures("study")
def test_last_is_the_newest_of_this_user(shell: Shell, queue: Queue) -> None:
    for _ in range(12):
        queue.enqueue()  # of nobody
    assert shell.json("show", "last")["number"] == 6


@pytest.mark.usefixtures("study")
def test_filters_choose_what_can_be_changed_and_numbers_what_they_name(shell: Shell, queue: Queue) -> None:
    before = queue.snapshot()
    assert dry(shell, "cancel", "--all") == [4, 5, 6, 3]
    assert dry(shell, "requeue", "--all") == [2]
    assert dry(shell, "hold", "--all") == [4, 5, 6]
    assert dry(shell, "hold", "--tag", "study=a") == [5]
    assert dry(shell, "reprioritize", "8", "--all") == [4, 5, 6, 3]
    assert dry(shell, "reprioritize", "--front", "--mine") == [4, 5, 6]
    assert dry(shell, "cancel", "--state", "running") == [3]
    assert "no job that these filters choose can be unheld" in shell.fox("unhold", "--all", code=1)[1]
    assert "can be cancelled" in shell.fox("cancel", "--state", "failed", code=1)[1]
    assert shell.json("requeue", "--name", "none", code=1) == []
    out, err = shell.fox("cancel", "2-4", "--dry-run", code=1)
    assert [line.split()[0] for line in out.splitlines()] == ["JOB", "3", "4"]
    assert "job 2 cannot be cancelled: it is failed" in err
    assert "2 jobs would be cancelled; nothing was changed" in err
    assert queue.snapshot() == before


@pytest.mark.usefixtures("study")
def test_named_jobs_fail_the_command_where_filters_do_not(shell: Shell) -> None:
    out, err = shell.fox("cancel", "1,4", code=1)
    assert out == "4 cancelled\n"
    assert "job 1 cannot be cancelled: it had succeeded before" in err
    assert shell.fox("cancel", "--name", "lr-[14]", "--state", "pending")[0] == "5 cancelled\n"
    assert shell.fox("cancel", "4")[0] == "4 cancelled\n", "as before"


def test_a_group_is_chosen_as_a_whole(shell: Shell, fox: Client, queue: Queue) -> None:
    jobs = fox.submit_many([{"argv": ["true"], "group": "g"} for _ in range(3)])
    fox.submit(["true"])
    assert [job.number for job in jobs] == [1, 2, 3]
    assert listed(shell, "--group", "g") == [1, 2, 3]
    worker = queue.worker(shapes=("g1@g",))
    queue.complete(worker.claim())
    assert shell.fox("cancel", "--group", "g")[0] == "2 cancelled\n3 cancelled\n"
    out, err = shell.fox("wait", "--group", "g", code=1)
    assert out == "1 succeeded\n2 cancelled\n3 cancelled\n", "those that have ended too"
    assert "job 3 cancelled" in err
    assert "no group" in shell.fox("cancel", "--group", "h", code=1)[1]


@pytest.mark.usefixtures("study")
def test_wait_by_filters_means_what_has_not_ended(shell: Shell, queue: Queue) -> None:
    process = shell.start("wait", "--all")
    until(lambda: waits_for_news(queue), what="somebody who waits")
    for number in (4, 5, 6):
        assert queue.broker.cancel(number, "", "me") == "cancelled"
    run = queue.job(3)
    queue.send(queue.broker.complete_call(3, run["fence"], b"\x80"))
    out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert sorted(out.split(b"\n")[:-1]) == [b"3 succeeded", b"4 cancelled", b"5 cancelled", b"6 cancelled"]
    assert b"job 1" not in err and b"job 2" not in err
    assert "there is nothing to wait for" in shell.fox("wait", "--all")[1]
    assert shell.fox("wait", "--state", "succeeded")[0] == "3 succeeded\n1 succeeded\n"


# Many


@pytest.fixture
def many(fox: Client) -> Callable[[int], None]:
    def submit(count: int) -> None:
        fox.submit_many([{"argv": ["true"]}] * count)

    return submit


def test_over_20_jobs_are_changed_only_when_that_is_said(
    shell: Shell, queue: Queue, many: Callable[[int], None]
) -> None:
    many(MANY)
    before = queue.snapshot()
    for words in (("cancel", "--all"), ("hold", "1-21"), ("reprioritize", "8", "--mine")):
        err = shell.fox(*words, code=2)[1]
        assert f"{words[0]} 21 jobs? give --yes" in err and "Nothing was changed" in err
    assert queue.snapshot() == before
    assert shell.fox("hold", "1-20")[0].count(" held\n") == 20
    assert shell.fox("hold", "1-21", "--yes")[0] == "21 held\n"
    assert shell.fox("cancel", "--all", "-y") == ("21 cancelled\n", "")
    assert len(shell.json("requeue", "--all", "--yes")) == 21


@pytest.mark.parametrize(("answer", "states"), [(b"y\n", "cancelled"), (b"n\n", "pending"), (b"\n", "pending")])
def test_on_a_terminal_it_is_asked(
    shell: Shell, queue: Queue, many: Callable[[int], None], answer: bytes, states: str
) -> None:
    many(MANY)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(FOXQUEUE), "cancel", "--all"],
        env=shell.environ,
        cwd=shell.directory,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    asked = b""
    while b"[y/N]" not in asked:
        asked += os.read(ours, 1000)
    assert b"cancel 21 jobs?" in asked
    os.write(ours, answer)
    out, _ = process.communicate(timeout=30)
    os.close(ours)
    assert {queue.job(number)["state"] for number in range(1, MANY + 1)} == {states}
    assert (process.returncode, out) == ((0, b"21 cancelled\n") if states == "cancelled" else (1, b""))


def test_what_happens_meanwhile_is_summed_up(shell: Shell, queue: Queue, many: Callable[[int], None]) -> None:
    many(MANY + 2)
    worker = queue.worker()
    queue.complete(worker.claim())
    queue.fail(worker.claim(), delay_ms=None)
    out, err = shell.fox("cancel", "1-30", "--yes", code=1)
    assert out == "21 cancelled, 2 had ended\n" or out == "2 had ended, 21 cancelled\n"
    assert err.count("there is no job") == 7
    out, err = shell.fox("requeue", "1-1000", "--yes", code=1)
    assert out == "1 were neither failed nor cancelled, 22 requeued\n"
    assert "977 of these numbers have no job, the first is 24" in err


def test_ctrl_c_while_running_ones_end(shell: Shell, queue: Queue, many: Callable[[int], None]) -> None:
    many(MANY)
    queue.worker().claim()
    process = shell.start("cancel", "--all", "--yes", start_new_session=True)
    until(lambda: waits_for_news(queue), what="somebody who waits")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"20 cancelled, 1 asked to stop\n")
    assert b"not waiting any longer" in err


@pytest.mark.soak
def test_20000_jobs_are_changed_in_seconds(shell: Shell, queue: Queue, many: Callable[[int], None]) -> None:
    count = 20_000
    many(count)
    sent: list[int] = []
    redis = queue.broker.redis
    for words, done in (
        (("hold", "--all"), "held"),
        (("unhold", "--all"), "unheld"),
        (("reprioritize", "8", "--all"), "moved"),
        (("cancel", "--all"), "cancelled"),
    ):
        calls, begin = redis.info("stats")["total_reads_processed"], time.monotonic()
        assert shell.fox(*words, "--yes")[0] == f"{count:,} {done}\n"
        took = time.monotonic() - begin
        sent.append(redis.info("stats")["total_reads_processed"] - calls)
        print(words, f"{took:.1f} s, {sent[-1]:,} reads")
        assert took < 30
    assert max(sent) < count / 5, "a hundred a round trip, to read and to change"
