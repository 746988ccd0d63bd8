"""The runner ends a job when it is told to, when its time is up, when nobody feeds it; and always all of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runners import PYTHON, Rig, rig_in
from wait import until

from foxqueue.processes import ProcessId, marked
from foxqueue.rundirs import MARK
from workers.runs import read_exit_record

# Ignores TERM, and says when it does.
STUBBORN = (
    "import signal, os, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.write(1, b'up\\n')\ntime.sleep(60)"
)
QUICKLY_STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]
# Ends with code 7 on TERM.
POLITE = """
import signal, os, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
os.write(1, b'up\\n')
while True: time.sleep(60)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as made:
        yield made


def seconds_to_end(rig: Rig, began: float) -> float:
    rig.ended()
    return time.monotonic() - began


# --- being told ----------------------------------------------------------------------------------------------


def test_cancel_lets_the_job_end_itself(rig: Rig) -> None:
    rig.start([*PYTHON, POLITE])
    rig.wait_for_output(b"up")
    rig.handle.kill("cancel", 10.0)
    record = rig.ended(5)
    assert (record["exit_code"], record["why"], record["killed"]) == (7, "cancel", False)


@pytest.mark.parametrize("why", ["cancel", "shutdown", "paused", "lease_lost", "stale"])
def test_kill_after_the_grace(rig: Rig, why: str) -> None:
    rig.start([*PYTHON, STUBBORN])
    rig.wait_for_output(b"up")
    began = time.monotonic()
    rig.handle.kill(why, 0.3)
    record = rig.ended()
    assert (record["exit_code"], record["signal"]) == (None, signal.SIGKILL)
    assert (record["why"], record["killed"]) == (why, True)
    assert 0.3 <= time.monotonic() - began < 3


def test_first_reason_stays_and_the_nearer_end_counts(rig: Rig) -> None:
    rig.start([*PYTHON, STUBBORN])
    rig.wait_for_output(b"up")
    rig.handle.kill("cancel", 60.0)
    rig.handle.kill("stale", 90.0)
    rig.handle.kill("shutdown", 0.0)
    assert rig.ended(5)["why"] == "cancel"


def test_kill_that_follows_the_start_at_once(rig: Rig) -> None:
    rig.start(["sleep", "60"])
    rig.handle.kill("cancel", 0.0)
    record = rig.ended(5)
    assert record["why"] == "cancel"
    assert record["signal"] in (signal.SIGTERM, signal.SIGKILL, None)  # None: it came before the start


def test_a_stopped_job_takes_the_term(rig: Rig) -> None:
    rig.start([*PYTHON, POLITE])
    rig.wait_for_output(b"up")
    os.kill(rig.wait_for("started")["pid"], signal.SIGSTOP)
    rig.handle.kill("cancel", 30.0)
    assert rig.ended(5)["exit_code"] == 7


def test_term_comes_once(rig: Rig) -> None:
    code = """
import signal, os, time
count = 0
def term(*_):
    global count
    count += 1
    os.write(1, b'T')
signal.signal(signal.SIGTERM, term)
os.write(1, b'up\\n')
while True: time.sleep(60)
"""
    rig.start([*PYTHON, code])
    rig.wait_for_output(b"up")
    rig.handle.kill("cancel", 0.3)
    rig.handle.kill("cancel", 0.3)
    rig.ended()
    assert rig.output() == b"up\nT"


def test_term_to_the_runner_is_a_takeover(rig: Rig) -> None:
    rig.start([*PYTHON, POLITE])
    rig.wait_for_output(b"up")
    os.kill(rig.handle.pid, signal.SIGTERM)
    record = rig.ended(5)
    assert (record["exit_code"], record["why"]) == (7, "takeover")
    assert read_exit_record(rig.run_dir, 3) == record


def test_takeover_kills_after_two_seconds(rig: Rig) -> None:
    rig.start([*PYTHON, STUBBORN])
    rig.wait_for_output(b"up")
    began = time.monotonic()
    os.kill(rig.handle.pid, signal.SIGTERM)
    assert 2.0 <= seconds_to_end(rig, began) < 5
    assert rig.ended()["killed"] is True


def test_int_and_hup_do_not_disturb_a_run(rig: Rig) -> None:
    rig.start(["sh", "-c", "echo up; read x < /dev/null; sleep 0.2; exit 4"])
    rig.wait_for_output(b"up")
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        os.kill(rig.handle.pid, signum)
    assert rig.ended()["exit_code"] == 4


# --- time ----------------------------------------------------------------------------------------------------


def test_time_limit(rig: Rig) -> None:
    rig.start(QUICKLY_STUBBORN, time_limit_s=0.4, grace_s=0.2)
    began = time.monotonic()
    record = rig.ended()
    assert (record["why"], record["signal"], record["killed"]) == ("timeout", signal.SIGKILL, True)
    assert 0.6 <= time.monotonic() - began < 4


@pytest.mark.parametrize("clock", ["monotonic", "boottime"])
def test_an_unfed_job_ends(rig: Rig, clock: str) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME if clock == "boottime" else time.CLOCK_MONOTONIC)
    began = time.monotonic()
    rig.start(QUICKLY_STUBBORN, clock=clock, feed_until=now + 0.4, beat_grace_s=0.2, grace_s=60.0)
    record = rig.ended()
    assert (record["why"], record["killed"]) == ("worker_lost", True)
    assert 0.6 <= time.monotonic() - began < 4


def test_feeds_extend_and_never_shorten(rig: Rig) -> None:
    rig.start(["sh", "-c", "sleep 0.6; exit 4"], feed_until=time.monotonic() + 0.4)
    rig.handle.feed(time.monotonic() + 30)
    rig.handle.feed(time.monotonic())
    record = rig.ended()
    assert (record["exit_code"], record["why"]) == (4, None)
    fed = [message["until"] for message in rig.heard if message["op"] == "fed"]
    assert len(fed) == 2
    assert fed[0] == fed[1]


def test_a_feed_that_comes_too_late_saves_nothing(rig: Rig) -> None:
    end = time.monotonic() + 1.0
    rig.start([*PYTHON, STUBBORN], feed_until=end, beat_grace_s=1.0)
    rig.wait_for_output(b"up")
    until(lambda: time.monotonic() > end + 0.2, what="the end of the food")
    rig.handle.feed(time.monotonic() + 60)
    assert rig.ended(5)["why"] == "worker_lost"


def test_a_long_grace_does_not_outlive_the_feed(rig: Rig) -> None:
    rig.start([*PYTHON, STUBBORN], feed_until=time.monotonic() + 0.5)
    rig.wait_for_output(b"up")
    rig.handle.kill("cancel", 60.0)
    assert rig.ended(5)["why"] == "cancel"


def test_feeds_that_waited_while_the_runner_was_stopped_count(rig: Rig) -> None:
    rig.start([*PYTHON, POLITE], feed_until=time.monotonic() + 0.4)
    rig.wait_for_output(b"up")
    os.kill(rig.handle.pid, signal.SIGSTOP)
    rig.handle.feed(time.monotonic() + 60)
    past = time.monotonic() + 0.5
    until(lambda: time.monotonic() > past, what="the first feed's end")
    os.kill(rig.handle.pid, signal.SIGCONT)
    assert rig.wait_for("fed")
    rig.handle.kill("cancel", 5.0)
    assert rig.ended()["why"] == "cancel"


# --- the whole tree ------------------------------------------------------------------------------------------

ESCAPES = {
    "child in the group": "spawn([])",
    "own session": "spawn(['setsid'])",
    "own session, no environment": "spawn(['setsid', 'env', '-i'])",
    "double fork": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: spawn([]); os._exit(0)
    os._exit(0)
os.wait()""",
    "daemon that closed everything": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100); os.execve('/bin/sh', ['sh', '-c', BODY], {})
    os._exit(0)
os.wait()""",
}
PRELUDE = """
import os, subprocess, sys, time
BODY = "trap '' TERM HUP INT; echo $$ >> {pids}; while :; do sleep 0.05; done"
def spawn(prefix): subprocess.Popen([*prefix, '/bin/sh', '-c', BODY])
"""
WAIT = "\nwhile not (os.path.exists('{pids}') and open('{pids}').read().endswith('\\n')): time.sleep(0.005)\n"


@pytest.mark.parametrize("how", ESCAPES)
@pytest.mark.parametrize("ending", ["itself", "crash", "cancel"])
def test_nothing_of_the_tree_is_left(rig: Rig, tmp_path: Path, how: str, ending: str) -> None:
    pids = tmp_path / "pids"
    end = {"itself": "os._exit(5)", "crash": "os.kill(os.getpid(), 11)", "cancel": "time.sleep(60)"}[ending]
    code = (PRELUDE + ESCAPES[how] + WAIT + end).replace("{pids}", str(pids))
    rig.start([*PYTHON, code], grace_s=0.2)
    until(lambda: pids.exists() and pids.read_text().endswith("\n"), what="the escaped process")
    strayed = [ProcessId.of(int(line)) for line in pids.read_text().split()]
    if ending == "cancel":
        rig.handle.kill("cancel", 0.2)
    record = rig.ended()
    assert record["killed"] is True
    assert (record["why"] == "cancel") == (ending == "cancel")
    if ending != "cancel":
        assert (record["exit_code"], record["signal"]) == ((5, None) if ending == "itself" else (None, 11))
    assert not any(process.alive() for process in strayed if process)
    assert not marked(MARK, rig.mark)


def test_what_is_left_behind_is_asked_first(rig: Rig) -> None:
    code = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {POLITE!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
os._exit(0)
"""
    record = rig.run([*PYTHON, code], grace_s=10.0)
    assert (record["exit_code"], record["killed"], record["why"]) == (0, False, None)


@pytest.mark.parametrize("keep_environment", [True, False])
def test_a_process_that_forks_anew_every_few_milliseconds(rig: Rig, tmp_path: Path, keep_environment: bool) -> None:
    code = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
trail = os.open({str(tmp_path / "trail")!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    os.write(trail, b'.')
    if os.fork(): os._exit(0)
    os.setsid()
    time.sleep(0.002)
"""
    command = [*PYTHON, code] if keep_environment else ["env", "-i", *PYTHON, code]
    record = rig.run(command, grace_s=0.2)
    assert (record["exit_code"], record["killed"]) == (0, True)
    trail = tmp_path / "trail"
    length = trail.stat().st_size
    assert length > 5
    pause = time.monotonic() + 0.2
    until(lambda: time.monotonic() > pause, what="a pause")
    assert trail.stat().st_size == length


def test_many_processes_end_together(rig: Rig) -> None:
    code = "trap '' TERM; for i in $(seq 60); do setsid sleep 60 & done; echo up; wait"
    rig.start(["sh", "-c", code])
    rig.wait_for_output(b"up")
    rig.handle.kill("cancel", 0.0)
    rig.ended(5)
    assert not marked(MARK, rig.mark)


def test_what_a_shell_started_has_the_whole_grace(rig: Rig) -> None:
    """The shell dies of the TERM; the program behind it takes three seconds to save, and has them."""
    code = (
        "import signal, sys, threading\n"
        "def term(*_):\n"
        "    threading.Event().wait(3.0)\n"
        "    print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, term)\n"
        "print('up', flush=True)\n"
        "threading.Event().wait(60)\n"
    )
    rig.start(["sh", "-c", '"$@"; echo after', "sh", *PYTHON, code])
    rig.wait_for_output(b"up")
    rig.handle.kill("cancel", 10.0)
    record = rig.ended(9)
    assert (record["signal"], record["killed"]) == (signal.SIGTERM, False)
    assert b"saved" in rig.output()
