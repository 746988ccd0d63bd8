"""Another attempt: after which ends, how soon, and what the job itself says about it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from stack import until_exists
from wait import until
from workplace import Workplace, workplace

from foxqueue.processes import short_boot_id
from foxqueue.retry import JITTER

WISHES = """
import os, sys
from pathlib import Path
import foxqueue

def times(trail):
    with open(trail, "a") as file:
        file.write("x")
    return len(Path(trail).read_text())

def retry(trail, until, delay):
    if times(trail) < until:
        raise foxqueue.Retry(delay, "the data are not there yet")
    return "done"

def fail(trail):
    times(trail)
    raise foxqueue.Fail("no such column")

def later(trail):
    if times(trail) < 2:
        sys.exit(75)
    return "done"

class Mine(Exception):
    "What another foxqueue raises."
    __foxqueue__ = "retry"

def foreign(trail):
    if times(trail) < 2:
        raise Mine("again")
    return "done"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """One worker for all of this file."""
    with workplace(tmp_path_factory.mktemp("retries")) as made:
        (made.stack.work / "wishes.py").write_text(WISHES)
        made.start()
        yield made


def counting(trail: object, code: str) -> tuple[str, ...]:
    """A shell command that counts its runs as $n."""
    return ("sh", "-c", f"echo x >> {trail}; n=$(wc -l < {trail}); {code}")


def waits_ms(place: Workplace, number: int) -> list[int]:
    """From the end of each run to the beginning of the next."""
    runs = [(int(entry[2]), int(entry[3])) for entry in place.history(number)]
    begun = [*(start for start, _ in runs[1:]), int(place.hash(number)["started_at"])]
    return [start - end for (_, end), start in zip(runs, begun, strict=True)]


# --- how soon ------------------------------------------------------------------------------------------------


def test_the_delay_doubles_within_its_cap_and_a_quarter(place: Workplace) -> None:
    number = place.put("sh", "-c", "exit 3", retries=4, delay_ms=100, retry_cap_s=0.3)
    job = place.await_state(number, "failed")
    assert (job["attempts"], job["reason"], job["exit_code"]) == ("5", "exit_code", "3")
    assert [(entry[0], entry[6], entry[7], entry[8], entry[9]) for entry in place.history(number)][:2] == [
        ("1", "fail", "exit_code", "3", "exited with 3"),
        ("2", "fail", "exit_code", "3", "exited with 3"),
    ]
    dues = [event for event in place.stack.events(number) if event.get("to") == "scheduled"]
    assert len(dues) == 4
    for waited, least in zip(waits_ms(place, number)[:4], (100, 200, 300, 300), strict=True):
        assert waited >= least


def test_the_delay_is_drawn_once(place: Workplace) -> None:
    """Given a hundred jobs that fail at once, then their next attempts are due within a quarter, at many moments."""
    numbers = [place.put("sh", "-c", "exit 1", retries=1, delay_ms=600_000) for _ in range(12)]
    for number in numbers:
        place.await_state(number, "scheduled", seconds=60)
    delays = []
    for number in numbers:
        [entry] = place.history(number)
        delays.append(int(place.hash(number)["due_at"]) - int(entry[3]))
        place.broker.cancel(number, "", "test")
    assert all(600_000 <= delay <= 600_000 * (1 + JITTER) for delay in delays)
    assert len(set(delays)) > 9


def test_any_worker_brings_the_next_attempt(tmp_path_factory: pytest.TempPathFactory) -> None:
    """O3: the worker whose run failed is killed before the delay is over; another one runs the job then."""
    with workplace(tmp_path_factory.mktemp("another")) as place:
        first = place.start("sim:0")
        number = place.put("sh", "-c", "exit $((2 - FOXQUEUE_ATTEMPT))", retries=1, delay_ms=1500)
        before = place.await_state(number, "scheduled")["worker"]
        os.kill(first, signal.SIGKILL)
        place.start("sim:1")
        job = place.await_state(number, "succeeded")
        assert (job["attempts"], job["losses"]) == ("2", "0")
        assert job["worker"] != before


# --- after which ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "code", "runs"),
    [
        (None, "exit 4", 2),
        (["exit_code"], "exit 4", 2),
        (["3"], "exit 4", 1),
        (["4"], "exit 4", 2),
        (["signal", "timeout"], "exit 4", 1),
        (["signal"], "kill -9 $$", 2),
        ([], "exit 4", 1),
    ],
)
def test_only_what_is_listed_is_tried_again(place: Workplace, on: list[str] | None, code: str, runs: int) -> None:
    number = place.put("sh", "-c", code, retries=1, **({} if on is None else {"retry_on": on}))
    job = place.await_state(number, "failed")
    assert (job["attempts"], len(place.history(number))) == (str(runs), runs)


def test_75_is_later_and_costs_no_attempt(place: Workplace) -> None:
    trail = place.stack.root / "later"
    number = place.put(*counting(trail, "[ $n -ge 3 ] || exit 75"))
    job = place.await_state(number, "scheduled")
    assert (job["reason"], job["detail"], job["attempts"]) == ("later", "exited with 75: later", "0")
    rank = job["rank"]
    job = place.await_state(number, "succeeded")
    assert (job["attempts"], job["losses"], job["rank"]) == ("1", "0", rank)
    history = place.history(number)
    assert [(entry[6], entry[7], entry[9]) for entry in history] == [("release", "later", "exited with 75: later")] * 2
    assert all(waited >= 1000 for waited in waits_ms(place, number))


def test_75_waits_as_long_as_the_job_says_and_is_no_reason_to_fail(place: Workplace) -> None:
    number = place.put("sh", "-c", "exit 75", delay_ms=100_000, retry_on=["3"])
    job = place.await_state(number, "scheduled")
    [entry] = place.history(number)
    assert 100_000 <= int(job["due_at"]) - int(entry[3]) <= 125_000
    assert place.broker.cancel(number, "", "test") == "cancelled"


# --- what the job says ---------------------------------------------------------------------------------------


def test_a_call_may_ask_for_another_attempt(place: Workplace) -> None:
    """Whatever its list says, after its own delay; it costs an attempt."""
    trail = str(place.stack.root / "asked")
    number = place.call("wishes", "retry", trail, 3, 0.2, retries=2, delay_ms=300_000, retry_on=["signal"])
    job = place.await_state(number, "succeeded")
    assert job["attempts"] == "3"
    assert all(200 <= waited < 10_000 for waited in waits_ms(place, number))
    assert [entry[7] for entry in place.history(number)] == ["exception", "exception"]
    assert place.history(number)[0][9] == "foxqueue.errors.Retry: the data are not there yet"


def test_as_long_as_attempts_last(place: Workplace) -> None:
    trail = place.stack.root / "lasting"
    number = place.call("wishes", "retry", str(trail), 9, None, retries=1)
    job = place.await_state(number, "failed")
    assert (job["reason"], job["attempts"], trail.read_text()) == ("exception", "2", "xx")


def test_a_call_may_refuse_another_attempt(place: Workplace) -> None:
    trail = place.stack.root / "refused"
    number = place.call("wishes", "fail", str(trail), retries=5)
    job = place.await_state(number, "failed")
    assert (job["reason"], job["attempts"], trail.read_text()) == ("exception", "1", "x")
    assert job["detail"] == "foxqueue.errors.Fail: no such column"


def test_a_class_of_another_foxqueue_says_the_same(place: Workplace) -> None:
    number = place.call("wishes", "foreign", str(place.stack.root / "foreign"), retries=1, retry_on=[])
    assert place.await_state(number, "succeeded")["attempts"] == "2"


def test_a_call_that_exits_with_75_is_later(place: Workplace) -> None:
    number = place.call("wishes", "later", str(place.stack.root / "call"))
    assert place.await_state(number, "scheduled")["reason"] == "later"
    assert place.await_state(number, "succeeded")["attempts"] == "1"


# --- what goes along -----------------------------------------------------------------------------------------


def test_a_configuration_lies_there_at_each_attempt(place: Workplace) -> None:
    code = 'cd $FOXQUEUE_DIR; stat -c %a config.json; cat config.json; echo "$n" > config.json'
    number = place.put(
        *counting(place.stack.root / "config", f"{code}; exit $((2 - n))"), retries=1, config='{"lr": 1}'
    )
    place.await_state(number, "succeeded")
    assert place.output(number) == '600\n{"lr": 1}' * 2
    [left] = place.stack.home.glob(f"*/jobs/*/{number}-*/files/*")
    assert left.read_text() == "2\n"


def test_a_kept_script_is_what_runs(place: Workplace) -> None:
    script = b'#!/bin/sh\necho "$#:$2:$(stat -c %a "$0")"\npwd\n'
    number = place.put("train.sh", "a", "b c", script=script)
    place.await_state(number, "succeeded")
    assert place.output(number) == f"2:b c:700\n{place.stack.work}\n"
    number = place.put("train.sh", script=b"no first line\n")
    job = place.await_state(number, "failed")
    assert (job["reason"], "a first line like #!/bin/sh" in job["detail"]) == ("launch_error", True)


def test_what_is_in_the_way_of_a_configuration_is_said(place: Workplace) -> None:
    number = place.put("sh", "-c", "rm $FOXQUEUE_DIR/config.json; mkdir $FOXQUEUE_DIR/config.json; exit 1", config="{}")
    place.await_state(number, "failed")
    assert place.broker.requeue(number, place.hash(number)["born"], "test").word == "ok"
    until(lambda: place.hash(number).get("reason") == "launch_error", what="its second end")
    job = place.hash(number)
    assert job["detail"].startswith("the run cannot be prepared: ") and "config.json" in job["detail"]


def test_a_malformed_wish_is_the_jobs_end(place: Workplace) -> None:
    number = place.put("true", retry_on="exit_code")
    job = place.await_state(number, "failed")
    assert (job["reason"], job["detail"]) == ("bad_payload", "its reasons to retry cannot be read")


# --- a run that is asked back --------------------------------------------------------------------------------


def test_a_pause_asks_runs_back(place: Workplace) -> None:
    """Given a run, when its queue is paused with requeue, then it is ended by TERM and waits where it was."""
    trail = place.stack.root / "asked-back"
    code = f"trap 'echo term >> {trail}; exit 0' TERM; echo up >> {trail}; [ $(wc -l < {trail}) -gt 1 ] && exit; "
    number = place.put("sh", "-c", code + "while :; do sleep 0.05; done")
    until(trail.exists, what="its start")
    rank = place.hash(number)["rank"]
    place.broker.pause("*", "new driver", "ada", requeue_running=True)
    try:
        job = place.await_state(number, "pending")
        assert (job["reason"], job["detail"]) == ("paused", "paused by ada: new driver")
        assert (job["attempts"], job["losses"], job["rank"]) == ("0", "0", rank)
        assert trail.read_text() == "up\nterm\n"
        [entry] = place.history(number)
        assert (entry[6], entry[7], entry[9]) == ("release", "paused", "paused by ada: new driver")
    finally:
        place.broker.resume("*", "ada")
    assert place.await_state(number, "succeeded")["attempts"] == "1"


def test_a_cancel_that_comes_too_wins(place: Workplace) -> None:
    trail = place.stack.root / "cancelled"
    code = f"trap 'touch {trail}.asked' TERM; touch {trail}; while [ ! -e {trail}.go ]; do sleep 0.05; done"
    number = place.put("sh", "-c", code)
    until(trail.exists, what="its start")
    place.broker.pause("*", "", "ada", requeue_running=True)
    try:
        until(lambda: (place.stack.root / "cancelled.asked").exists(), what="the TERM")
        assert place.broker.cancel(number, "", "bob") == "ok"
        (place.stack.root / "cancelled.go").touch()
        job = place.await_state(number, "cancelled")
        assert job["detail"] == "cancelled by bob"
    finally:
        place.broker.resume("*", "ada")


# --- whose fault a loss is -----------------------------------------------------------------------------------


def test_a_run_knows_the_boot_that_it_is_of(place: Workplace) -> None:
    number = place.put("true")
    assert place.await_state(number, "succeeded")["boot"] == short_boot_id() != ""
    assert short_boot_id().encode() in place.stack.api.redis.hvals(place.broker.keys.boots)


@pytest.mark.parametrize(
    ("code", "on", "expected"),
    [(75, ["4"], ("scheduled", "later")), (4, ["4"], ("scheduled", "exit_code")), (4, ["3"], ("failed", "exit_code"))],
)
def test_a_successor_goes_by_the_same(
    tmp_path_factory: pytest.TempPathFactory, code: int, on: list[str], expected: tuple[str, str]
) -> None:
    """Given a run whose worker was killed, when it ends by itself, then its next worker judges as that one would."""
    with workplace(tmp_path_factory.mktemp("successor")) as place:
        flag = place.stack.root / "flag"
        worker = place.start()
        wait = (*until_exists(flag)[:-1], f"{until_exists(flag)[-1]}\nimport sys\nsys.exit({code})")
        number = place.put(*wait, retries=3, delay_ms=100_000, retry_on=on)
        place.await_state(number, "running")
        runner = place.stack.runner_of(number)
        os.kill(worker, signal.SIGKILL)
        place.stack.exit_status(worker)
        flag.touch()
        until(lambda: not runner.alive(), what="the runner's end")
        place.start()
        job = place.await_state(number, "scheduled", "failed")
        assert (job["state"], job["reason"]) == expected
        if expected[0] == "scheduled":
            ended = int(place.history(number)[0][3])
            assert 100_000 <= int(job["due_at"]) - ended <= 125_000
