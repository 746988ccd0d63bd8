"""Signals: at a terminal Ctrl-C, Ctrl-Z and input are the command's, as if it ran alone; else they are passed on."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from lessee import PYTHON as ALONE
from lessee import child_of, lease_of, lessee, shared_stack, terminal
from stack import FOXQUEUE, Stack, is_stopped
from wait import until

CTRL_C, CTRL_Z = "\x03", "\x1a"
LEASE = f"{FOXQUEUE} lease -q --gpu sim:0 -- "
PYTHON = f"{sys.executable} -S"
# Scripts, for what they print must not stand in the line that is typed, which the terminal echoes.
TALKS = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: os.write(1, b'interrupted;'))
os.write(1, b'tty=%d;' % os.isatty(0))
for line in sys.stdin: os.write(1, b'heard ' + line.encode())
"""
STAYS = """
import os, time
os.write(1, b'on=' + os.environb[b'FOXQUEUE_GPUS'] + b';')
time.sleep(60)
"""


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Stack:
    found = shared_stack(request)
    (found.work / "talks.py").write_text(TALKS)
    (found.work / "stays.py").write_text(STAYS)
    return found


def holder_pid(stack: Stack) -> int | None:
    leased = stack.api.inspector.seen().leased
    return leased[0].holder.pid if leased and leased[0].holder else None


def test_input_and_ctrl_c_are_the_commands(stack: Stack) -> None:
    with terminal(stack) as shell:
        shell.type(f"{LEASE}{PYTHON} talks.py\n")
        shell.expect("tty=1;")
        shell.type("hello\n")
        shell.expect("heard hello")
        shell.type(CTRL_C)
        shell.expect("interrupted;")
        shell.type("again\n")  # neither it nor foxqueue has ended
        shell.expect("heard again")
        shell.type("\x04")
        shell.expect("$ ")
        shell.type("echo code=$?\n")
        shell.expect("code=0")


@pytest.mark.soak
def test_ctrl_c_ends_what_does_not_care_for_it(stack: Stack) -> None:
    with terminal(stack) as shell:
        shell.type(f"{LEASE}{PYTHON} stays.py\n")
        shell.expect("on=SIM-")
        shell.type(CTRL_C)
        shell.expect("KeyboardInterrupt")
        shell.type("echo code=$?\n")
        shell.expect("code=130")
    until(lambda: holder_pid(stack) is None, 10)


def test_ctrl_z_stops_both_and_keeps_the_lease(stack: Stack) -> None:
    """Given a command at a terminal, when it is stopped for longer than its lease, then it keeps the device, and goes
    on when it is brought back."""
    with terminal(stack) as shell:
        shell.type(f"{LEASE}{PYTHON} talks.py\n")
        shell.expect("tty=1;")
        pid = until(lambda: holder_pid(stack), 10)
        assert pid is not None
        shell.type(CTRL_Z)
        shell.expect("Stopped")
        shell.expect("$ ")
        until(lambda: is_stopped(pid), 5)
        done = stack.fox("lease", "--gpu", "sim:0", "--timeout", "3s", "--", "true", check=False)  # the lease is of 2 s
        assert done.returncode == 124, done.stderr
        shell.type("fg\n")
        shell.expect("talks.py")
        shell.type("back\n")
        shell.expect("heard back")
        assert lease_of(stack, pid) is not None
        shell.type("\x04")
        shell.expect("$ ")
        shell.type("echo code=$?\n")
        shell.expect("code=0")


@pytest.mark.soak
def test_a_shell_under_a_lease_has_job_control_of_its_own(stack: Stack) -> None:
    with terminal(stack) as shell:
        shell.type(f"{LEASE}bash --norc --noprofile --noediting -i\n")
        shell.expect("$ ")
        shell.type(f"{PYTHON} stays.py\n")
        shell.expect("on=SIM-")
        shell.type(CTRL_C)
        shell.expect("KeyboardInterrupt")
        shell.type(f"{PYTHON} stays.py\n")
        shell.expect("on=SIM-")
        pid = until(lambda: holder_pid(stack), 10)
        assert pid is not None
        shell.type(CTRL_Z)
        shell.expect("Stopped")
        assert not is_stopped(pid)
        shell.type("exit 7\n")
        shell.expect("There are stopped jobs")
        shell.type("exit 7\n")  # what is stopped is left behind, and ended
        shell.type("echo code=$?\n")
        shell.expect("code=7")
    until(lambda: holder_pid(stack) is None, 10)


@pytest.mark.soak
def test_what_is_killed_with_a_terminal_leaves_nothing(stack: Stack) -> None:
    """Given a killed runner of a command that has no session of its own, then only the command's processes are killed,
    not the shell that shares theirs."""
    with terminal(stack) as shell:
        shell.type(f"{LEASE}{PYTHON} talks.py\n")
        shell.expect("tty=1;")
        pid = until(lambda: holder_pid(stack), 10)
        assert pid is not None
        runner = child_of(pid, "workers.runner")
        assert runner is not None and runner.send(signal.SIGKILL)
        shell.expect("was killed, and the command with it")
        shell.type("echo code=$?\n")
        shell.expect("code=137")
    until(lambda: holder_pid(stack) is None, 10)


@pytest.mark.soak
def test_a_terminal_that_hangs_up_ends_it(stack: Stack) -> None:
    with terminal(stack) as shell:
        shell.type(f"{LEASE}{PYTHON} stays.py\n")
        shell.expect("on=SIM-")
        assert until(lambda: holder_pid(stack), 10)
    until(lambda: holder_pid(stack) is None, 10, "the end of the lease")


@pytest.mark.soak
def test_what_a_dead_shell_leaves_stopped_is_hung_up(stack: Stack) -> None:
    with terminal(stack) as shell:
        shell.type(f"{LEASE}{PYTHON} talks.py\n")
        shell.expect("tty=1;")
        pid = until(lambda: holder_pid(stack), 10)
        assert pid is not None
        shell.type(CTRL_Z)
        shell.expect("Stopped")
        until(lambda: is_stopped(pid), 5)
    until(lambda: holder_pid(stack) is None, 20, "the end of the lease")


# --- no terminal ----------------------------------------------------------------------------------------------------

ANSWERS = (
    "import os, signal, time\n"
    "for name in ('SIGINT', 'SIGHUP', 'SIGUSR1'):\n"
    " signal.signal(getattr(signal, name), lambda number, _: os.write(1, b'%d;' % number))\n"
    "os.write(1, b'ready;')\n"
    "while True: time.sleep(60)"
)


def test_signals_are_passed_on_and_term_ends_it(stack: Stack) -> None:
    with lessee(stack, "-q", "--", *ALONE, ANSWERS) as holder:
        holder.prints("ready;")
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            holder.process.send_signal(signum)
            holder.prints(f"{int(signum)};")
        holder.process.terminate()
        assert holder.ends() == 143
        assert holder.said == ""


@pytest.mark.soak
def test_what_ignores_term_is_killed_after_the_grace(stack: Stack) -> None:
    code = "import os, signal, time\nsignal.signal(15, lambda *_: os.write(1, b'term;'))\nos.write(1, b'ready;')\n"
    with lessee(stack, "-q", "--grace", "700ms", "--", *ALONE, f"{code}while True: time.sleep(60)") as holder:
        holder.prints("ready;")
        began = time.monotonic()
        holder.process.terminate()
        holder.prints("term;")
        assert holder.ends() == 137
        assert 0.7 <= time.monotonic() - began < 10


@pytest.mark.soak
def test_nohup_and_background_shells_go_along(stack: Stack) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    with lessee(stack, "-q", "--", *ALONE, code, wrapped=("nohup",)) as holder:
        holder.prints("True")
        assert holder.ends() == 0
