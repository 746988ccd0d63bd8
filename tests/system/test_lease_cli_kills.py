"""What dies of `foxqueue lease`, and what becomes of its command and its device then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from lessee import PYTHON, Lessee, lease_of, lessee, shared_stack
from stack import Stack
from wait import until

from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId, marked

# A command whose grandchild ignores TERM, has lost its parent, and has a clean environment or a session of its own.
TREE = (
    "import os, signal, sys, time\n"
    "if not os.fork():\n"
    " signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    " if sys.argv[1] != 'cleans': os.setsid()\n"
    " if not os.fork():\n"
    '  code = \'import os, time; open("grandchild", "w").write(str(os.getpid()));\'\n'
    '  code += \'os.rename("grandchild", "grandchild.pid"); time.sleep(600)\'\n'
    "  os.execve(sys.executable, ['x', '-S', '-c', code], os.environ if sys.argv[1] == 'leaves' else {})\n"
    " os._exit(0)\n"
    "while True: time.sleep(60)"
)
CLEANS = (*PYTHON, TREE, "cleans")  # its environment
LEAVES = (*PYTHON, TREE, "leaves")  # its session
BOTH = (*PYTHON, TREE, "both")
HERE = ("--gpu", "sim:0")


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Stack:
    found = shared_stack(request)
    (found.work / "grandchild.pid").unlink(missing_ok=True)
    return found


def tree(holder: Lessee) -> Callable[[], list[int]]:
    """Wait until the whole tree is there; what still lives of it."""
    holder.lasts()
    path = holder.stack.work / "grandchild.pid"
    until(path.exists, 15, "the grandchild")
    grandchild = ProcessId.of(int(path.read_text()))
    mark = until(holder.mark, 10)

    def left() -> list[int]:
        found = marked("FOXQUEUE_RUN", mark)
        return found + ([grandchild.pid] if grandchild and grandchild.alive() and grandchild.pid not in found else [])

    assert len(left()) >= 2
    return left


def next_one(stack: Stack, left: Callable[[], list[int]]) -> float:
    """Take the device as soon as it can be had, and see that nothing of the one before is left. Seconds it took."""
    began = time.monotonic()
    with lessee(stack, *HERE, "-q", "--", "sh", "-c", "echo mine; read line") as waiter:
        waiter.prints("mine", 40)
        took = time.monotonic() - began
        assert left() == []
    return took


def test_c3_c6_kill_9_of_foxqueue_lease(stack: Stack) -> None:
    """C3, C6: given a killed `foxqueue lease`, then its runner ends the tree with the grace, and only then, within
    seconds, the device is free."""
    with lessee(stack, *HERE, "--grace", "500ms", "--", *BOTH) as holder:
        left = tree(holder)
        lock = DeviceLock(holder.lasts().uuid, "gpu", [stack.api.config.machine_dir / "locks"])
        holder.process.kill()
        holder.process.wait()
        assert not lock.acquire()  # they have the grace
        until(lock.acquire, 15, "the end of the tree", every=0.0005)
        assert left() == []
        lock.release()
        took = next_one(stack, left)
    assert took < 10  # long before the lease would have lapsed, which takes 17 s


def test_kill_9_of_the_runner(stack: Stack) -> None:
    with lessee(stack, *HERE, "--grace", "500ms", "--", *BOTH) as holder:
        left = tree(holder)
        holder.child("workers.runner").send(signal.SIGKILL)
        assert holder.ends() == 137
        assert left() == []
        assert "was killed, and the command with it" in holder.said
    assert lease_of(stack, holder.pid) is None


@pytest.mark.soak
@pytest.mark.parametrize("how", [CLEANS, LEAVES], ids=["cleans", "leaves"])
def test_kill_9_of_both(stack: Stack, how: tuple[str, ...]) -> None:
    """Given that nobody is left who watches over the command, then who renews the lease ends it by its mark and gives
    the device back."""
    with lessee(stack, *HERE, "--grace", "500ms", "--", *how) as holder:
        left = tree(holder)
        runner = holder.child("workers.runner")
        os.kill(holder.pid, signal.SIGSTOP)  # so that it cannot see the runner die
        runner.send(signal.SIGKILL)
        holder.process.kill()
        holder.process.wait()
        assert next_one(stack, left) < 10


@pytest.mark.soak
def test_kill_9_of_the_helper(stack: Stack) -> None:
    with lessee(stack, *HERE, "--grace", "500ms", "--", *BOTH) as holder:
        left = tree(holder)
        first = holder.child("foxqueue.leases.helper")
        first.send(signal.SIGKILL)
        until(lambda: not first.alive() and holder.child("foxqueue.leases.helper") != first, 10, "another helper")
        keys, device = stack.api.broker.keys, holder.lasts()
        stack.api.redis.pexpire(keys.lease(device.uuid), 2500)
        until(lambda: stack.api.redis.pttl(keys.lease(device.uuid)) > 2500, 10, "a renewal")
        holder.process.terminate()
        assert holder.ends() == 143
        assert left() == []
    assert lease_of(stack, holder.pid) is None


@pytest.mark.parametrize(
    "how", [pytest.param(CLEANS, id="cleans"), pytest.param(LEAVES, id="leaves", marks=pytest.mark.soak)]
)
def test_kill_9_of_all_three(stack: Stack, how: tuple[str, ...]) -> None:
    """C3: given that whoever knew of the lease is dead, then the next who wants the device finds by its lock what was
    left, ends it, and gives the lease back."""
    with lessee(stack, *HERE, "--grace", "500ms", "--", *how) as holder:
        left = tree(holder)
        dying = [holder.child("foxqueue.leases.helper"), holder.child("workers.runner"), ProcessId.of(holder.pid)]
        os.kill(holder.pid, signal.SIGSTOP)
        for process in dying:
            assert process is not None
            process.send(signal.SIGKILL)
        holder.process.wait()
        assert next_one(stack, left) < 15


@pytest.mark.soak
def test_the_server_goes_away_and_comes_back(stack: Stack) -> None:
    """C4: given a stopped server, when longer than the lease goes by, then the command goes on and keeps its device."""
    with lessee(stack, *HERE, "--grace", "500ms", "--", *BOTH) as holder:
        left, device = tree(holder), holder.lasts()
        fence = device.holder.fence if device.holder else None
        pid = int(stack.api.redis.info("server")["process_id"])
        os.kill(pid, signal.SIGSTOP)
        try:
            end = time.monotonic() + 3
            until(lambda: time.monotonic() > end, 10)
        finally:
            os.kill(pid, signal.SIGCONT)
        again = until(lambda: lease_of(stack, holder.pid), 20)
        assert again is not None and again.holder is not None and again.holder.fence == fence
        assert holder.process.poll() is None and len(left()) >= 2
        holder.process.terminate()
        assert holder.ends() == 143
