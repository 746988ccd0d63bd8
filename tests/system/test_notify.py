"""The end of a job is told to whom its submitter named, whoever ended it, and delays nothing."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import until_exists
from test_delivery import hooked
from wait import until
from workplace import Workplace, workplace

from foxqueue.config import load_config
from foxqueue.messages import Reply
from foxqueue.processes import ProcessId
from workers.notifier import Notifier

TOLD = 'echo "$FOXQUEUE_JOB_ID $FOXQUEUE_JOB_STATE $FOXQUEUE_JOB_REASON $FOXQUEUE_NAMESPACE" >> '


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """One worker for most of this file."""
    with workplace(tmp_path_factory.mktemp("notify")) as made:
        made.start()
        yield made


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A file that commands write into."""
    return tmp_path / "told"


def lines(path: Path, count: int = 1) -> list[str]:
    """What was told, when there are so many lines."""
    return until(lambda: path.exists() and len(found := path.read_text().splitlines()) >= count and found, what="news")


def due_again(place: Workplace, number: int) -> None:
    """As if a minute had passed."""
    place.stack.api.redis.zadd(place.broker.keys.notices, {str(number): 1}, xx=True)


def tries(place: Workplace, number: int) -> int:
    """How often the end of a job was tried to be told."""
    return int(place.hash(number)["notify"])


# --- which ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "end"), [("true", "succeeded exit_code"), ("exit 3", "failed exit_code"), ("kill -9 $$", "failed signal")]
)
def test_an_end_of_a_run(place: Workplace, told: Path, code: str, end: str) -> None:
    number = place.put("sh", "-c", code, more="notify=1\n", notify=f"{TOLD}{told}")
    assert lines(told) == [f"{number} {end} default"]
    until(lambda: place.broker.redis.zscore(place.broker.keys.notices, number) is None, what="the record of it")
    [event] = place.stack.events(number, "told")
    assert event["worker"] == place.hash(number)["worker"]


def test_only_the_last_attempt_is_an_end(place: Workplace, told: Path) -> None:
    number = place.put("false", more="notify=1\n", notify=f"{TOLD}{told}", retries=2)
    assert lines(told) == [f"{number} failed exit_code default"]
    assert place.hash(number)["attempts"] == "3"


def test_ends_of_jobs_that_never_ran_while_the_only_worker_is_busy(place: Workplace, told: Path) -> None:
    """Given a run that goes on, when waiting jobs are cancelled, expire or lose their parent: each is told."""
    flag = Path(f"{told}.flag")
    busy = place.put(*until_exists(flag))
    place.await_state(busy, "running")
    parent = place.put("true")
    ends = {"notify": f"{TOLD}{told}"}
    child = place.put("true", more=f"after={parent}::succeeded\nnotify=1\n", **ends)
    expired = place.put("true", more="expires_ms=50\nnotify=1\n", **ends)
    cancelled = place.put("true", more="notify=1\n", **ends)
    try:
        assert place.broker.cancel(cancelled, "", "test") == "cancelled"
        assert place.broker.cancel(parent, "", "test") == "cancelled"
        found = lines(told, 3)
    finally:
        flag.touch()
    assert sorted(found) == sorted(
        [
            f"{child} cancelled dependency_failed default",
            f"{expired} cancelled expired default",
            f"{cancelled} cancelled cancelled_by_user default",
        ]
    )


def test_a_url_gets_the_job(place: Workplace) -> None:
    with hooked() as hook:
        number = place.put("sh", "-c", "exit 4", more="notify=1\n", notify=hook.url)
        until(lambda: hook.taken, what="the POST")
        until(lambda: place.broker.redis.zscore(place.broker.keys.notices, number) is None, what="the record of it")
    [(_, _, body)] = hook.taken
    assert (body["number"], body["state"], body["exit_code"]) == (number, "failed", 4)
    assert body == json.loads(json.dumps(place.stack.job(number)))


def test_a_job_that_is_queued_again_ends_again(place: Workplace, told: Path) -> None:
    number = place.put("false", more="notify=1\n", notify=f"{TOLD}{told}")
    lines(told)
    until(lambda: place.broker.redis.zscore(place.broker.keys.notices, number) is None, what="the record of it")
    assert place.broker.requeue(number, "", "test").word == "ok"
    assert lines(told, 2) == [f"{number} failed exit_code default"] * 2


def test_a_job_that_names_nobody_is_told_to_nobody(place: Workplace) -> None:
    number = place.put("true", more="notify=1\n")
    until(lambda: place.stack.events(number, "told"), what="the record of it")


# --- what fails ----------------------------------------------------------------------------------------------


def test_what_fails_is_tried_again_five_times_at_most(place: Workplace, told: Path) -> None:
    number = place.put("true", more="notify=1\n", notify=f"echo x >> {told}; echo no mail >&2; exit 3")
    for count in range(1, 6):
        assert len(lines(told, count)) == count
        until(lambda: tries(place, number) == count, what="its count")  # noqa: B023 - called at once
        which = f"try {count} of 5" + (", the last" if count == 5 else "")
        words = f"job {number}: its end could not be told ({which}): its command: it exited with 3: no mail"
        until(lambda: place.stack.log("worker").count(words) == 1, what="the word of it")  # noqa: B023
        due_again(place, number)
    until(lambda: place.broker.redis.zscore(place.broker.keys.notices, number) is None, what="the end of trying")
    assert len(told.read_text().splitlines()) == 5
    assert place.stack.events(number, "told")[-1]["reason"] == "given up"


def test_what_succeeds_at_last_is_told_once(place: Workplace, told: Path) -> None:
    number = place.put("true", more="notify=1\n", notify=f"echo x >> {told}; [ $(wc -l < {told}) -eq 2 ]")
    lines(told, 1)
    until(lambda: f"job {number}: its end could not" in place.stack.log("worker"), what="the first failure")
    due_again(place, number)
    until(lambda: place.stack.events(number, "told"), what="the record of it")
    assert (tries(place, number), len(told.read_text().splitlines())) == (2, 2)


def test_what_a_server_refused_is_posted_again_a_minute_later_whatever_hangs(place: Workplace, told: Path) -> None:
    """Given a command that hangs, when a POST is answered with 500: it has its place a minute later, and gets it."""
    flag = Path(f"{told}.flag")
    hanging = place.put("true", more="notify=1\n", notify=f"touch {told}; while [ ! -e {flag} ]; do sleep 0.02; done")
    until(told.exists, what="the command")
    try:
        with hooked(500) as hook:
            began = place.broker.server_time_ms()
            number = place.put("true", more="notify=1\n", notify=hook.url)
            until(lambda: f"job {number}: its end could not" in place.stack.log("worker"), what="the refusal")
            due = place.broker.redis.zscore(place.broker.keys.notices, number)
            assert due is not None and 60_000 <= float(due) - began < 70_000
            due_again(place, number)
            until(lambda: len(hook.taken) == 2, 10, "the second POST")
        assert not place.stack.events(hanging, "told")
    finally:
        flag.touch()
    until(lambda: place.stack.events(hanging, "told"), what="the record of it")


def test_an_end_while_an_earlier_one_is_told_is_told_too(place: Workplace, told: Path) -> None:
    flag = Path(f"{told}.flag")
    command = f"{TOLD}{told}; while [ ! -e {flag} ]; do sleep 0.02; done"
    number = place.put("false", more="notify=1\n", notify=command)
    lines(told)
    assert place.broker.requeue(number, "", "test").word == "ok"
    assert len(lines(told, 2)) == 2
    assert not place.stack.events(number, "told")
    flag.touch()
    until(lambda: place.broker.redis.zscore(place.broker.keys.notices, number) is None, what="the record of it")
    assert len(place.stack.events(number, "told")) == 1


# --- what it must not do -------------------------------------------------------------------------------------


def test_a_slow_command_delays_no_claim(place: Workplace, told: Path) -> None:
    flag = Path(f"{told}.flag")
    first = place.put("true", more="notify=1\n", notify=f"touch {told}; while [ ! -e {flag} ]; do sleep 0.02; done")
    until(told.exists, what="the command")
    began = time.monotonic()
    for _ in range(10):
        place.await_state(place.put("true"), "succeeded", seconds=10)
    assert time.monotonic() - began < 10
    assert not place.stack.events(first, "told")
    flag.touch()
    until(lambda: place.stack.events(first, "told"), what="the record of it")


def test_commands_that_hang_hold_up_no_other(place: Workplace, told: Path) -> None:
    """Given three that hang, when more ends come: one is told at once; of those that hang four run at a time."""
    flag = Path(f"{told}.flag")
    hang = f"echo $FOXQUEUE_JOB_ID >> {told}; while [ ! -e {flag} ]; do sleep 0.02; done"
    hanging = [place.put("true", more="notify=1\n", notify=hang) for _ in range(3)]
    lines(told, 3)
    try:
        quick = place.put("true", more="notify=1\n", notify="true")
        until(lambda: place.stack.events(quick, "told"), 10, "the quick one's end")
        hanging += [place.put("true", more="notify=1\n", notify=hang) for _ in range(2)]
        lines(told, 4)
        last = hanging[-1]
        place.await_state(last, "succeeded")
        place.await_state(place.put("true"), "succeeded")
        assert tries(place, last) == 0 and len(lines(told)) == 4, "it is left for whom has room"
    finally:
        flag.touch()
    until(lambda: all(place.stack.events(number, "told") for number in hanging), what="the record of all")


def test_a_command_outlives_a_dead_runner_of_its_worker(place: Workplace, told: Path) -> None:
    """Given a command under way, when a runner dies and its orphans are killed: the end is told all the same."""
    flag = Path(f"{told}.flag")
    first = place.put("true", more="notify=1\n", notify=f"touch {told}; while [ ! -e {flag} ]; do sleep 0.02; done")
    until(told.exists, what="the command")
    second = place.put("sh", "-c", "[ -e $FOXQUEUE_DIR/x ] && exit; touch $FOXQUEUE_DIR/x; sleep 600")
    place.await_state(second, "running")
    until(lambda: list(place.stack.home.glob(f"*/jobs/*/{second}-*/files/x")), what="its start")
    assert place.stack.runner_of(second).send(signal.SIGKILL)
    assert place.await_state(second, "succeeded")["losses"] == "1"
    flag.touch()
    until(lambda: place.stack.events(first, "told"), what="the record of it")
    assert tries(place, first) == 1


def test_a_worker_that_is_stopped_leaves_it_to_another(tmp_path_factory: pytest.TempPathFactory) -> None:
    with workplace(tmp_path_factory.mktemp("leaving")) as place:
        told = place.stack.root / "told"
        worker = place.start()
        command = f"echo x >> {told}; [ $(wc -l < {told}) -gt 1 ] || sleep 600"
        number = place.put("true", more="notify=1\n", notify=command)
        lines(told)
        os.kill(worker, signal.SIGTERM)
        assert place.stack.exit_status(worker, 15) == 0
        words = f"job {number}: its end could not be told (try 1 of 5): its command: its worker was stopped"
        assert words in place.stack.log("worker")
        due_again(place, number)
        place.start("sim:1")
        until(lambda: place.stack.events(number, "told"), what="the record of it")
        assert len(told.read_text().splitlines()) == 2


def hung(place: Workplace, *, escapes: bool = False) -> list[ProcessId]:
    """Have an end told by a command that hangs. It and its child, which may be in a session that the guard misses."""
    pids = place.stack.root / "pids"
    child = f"setsid sh -c 'echo $$ >> {pids}; exec sleep 600'" if escapes else f"sh -c 'echo $$ >> {pids}; sleep 600'"
    place.put("true", more="notify=1\n", notify=f"trap '' TERM HUP; {child} & echo $$ >> {pids}; sleep 600; sleep 600")
    found = [ProcessId.of(int(line)) for line in lines(pids, 2)]
    return [process for process in found if process is not None]


def test_a_command_dies_with_its_worker(tmp_path: Path) -> None:
    with workplace(tmp_path) as place:
        worker = place.start()
        left = hung(place)
        assert len(left) == 2
        os.kill(worker, signal.SIGKILL)
        until(lambda: not any(process.alive() for process in left), 5, "the end of the command")


def test_a_command_dies_with_up_and_its_worker(tmp_path: Path) -> None:
    with workplace(tmp_path) as place:
        up = place.stack.up("--simulate", "1x24G", workers=1)
        left = hung(place)
        [worker] = place.stack.api.workers()
        up.send_signal(signal.SIGSTOP)  # else it would end what its worker leaves
        os.kill(worker["pid"], signal.SIGKILL)
        up.kill()
        until(lambda: not any(process.alive() for process in left), 5, "the end of the command")
        until(lambda: not place.stack.all_processes(), 10, "nothing left")


@pytest.mark.parametrize("who", ["successor", "down"])
def test_what_escaped_from_a_dead_worker_is_found_by_its_mark(tmp_path: Path, who: str) -> None:
    with workplace(tmp_path) as place:
        worker = place.start()
        left = hung(place, escapes=True)
        os.kill(worker, signal.SIGKILL)
        place.stack.exit_status(worker)
        until(lambda: sum(process.alive() for process in left) == 1, 5, "the end of the command")
        if who == "down":
            assert "all ended" in place.stack.fox("down").stderr
        else:
            place.start()
            until(lambda: "ended what dead workers had left" in place.stack.log("worker"), what="the word of it")
        assert not any(process.alive() for process in left)


def test_an_end_is_told_where_a_client_sweeps_all_the_time(tmp_path: Path) -> None:
    """Given a client that looks again and again, so that no worker's sweep does anything: it tells what is due."""
    with workplace(tmp_path) as place:
        place.start()
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.005):
                place.broker.sweep()

        client = threading.Thread(target=look)
        client.start()
        try:
            for _ in range(3):
                number = place.put("true", more="held=me\nnotify=1\n", notify="true")
                assert place.broker.cancel(number, "", "me") == "cancelled"
                until(lambda: place.stack.events(number, "told"), 10, "the record of it")  # noqa: B023
        finally:
            over.set()
            client.join()


def test_a_worker_that_comes_too_late_to_sweep_hears_what_is_due() -> None:
    notifier = Notifier(load_config(environ={}), "w1")
    notifier.hear(Reply("no", "i", (b"0",)))
    assert not notifier._due.is_set()
    notifier.hear(Reply("no", "i", (b"1",)))
    assert notifier._due.is_set()


def test_where_nothing_is_due_nothing_is_opened() -> None:
    notifier = Notifier(load_config(environ={}), "w1")
    notifier.start()
    for swept in (Reply("no", "i", (b"0",)), Reply("ok", "i", (b"5", b"0", b"0", b"0", b"0", b"0"))):
        notifier.hear(swept)
    notifier.close()
    assert not notifier.is_alive()
    assert (notifier._broker, notifier.children()) == (None, ([], True))
