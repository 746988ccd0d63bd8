"""The device's lock lives with the job's processes, and a run goes on, or is ended, without its worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runners import Rig, rig_in
from wait import until

from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId, marked
from foxqueue.rundirs import MARK
from workers.runs import read_exit_record


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as made:
        yield made


def test_lock_lives_as_long_as_the_tree(rig: Rig, tmp_path: Path) -> None:
    ours, theirs = (DeviceLock("SIM-x", "gpu", [tmp_path]) for _ in range(2))
    assert ours.acquire()
    code = "trap '' TERM; (trap '' TERM; echo up; exec setsid sleep 60) & exit 0"
    rig.start(["sh", "-c", code], lock_fds=ours.fds, grace_s=1.0)
    rig.wait_for_output(b"up")
    ours.release()
    assert not theirs.acquire()
    os.kill(rig.handle.pid, signal.SIGSTOP)
    assert not theirs.acquire()
    os.kill(rig.handle.pid, signal.SIGCONT)
    rig.ended()
    assert theirs.acquire()
    theirs.release()


WORKER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from workers.runs import spawn_runner
from foxqueue.locks import DeviceLock
from pathlib import Path
lock = DeviceLock("SIM-x", "gpu", [Path(sys.argv[2])])
assert lock.acquire()
handle = spawn_runner()
handle.channel.receive(10)
handle.start({**json.loads(sys.argv[3]), "feed_until": time.monotonic() + float(sys.argv[4])}, lock.fds)
handle.channel.receive(10)
print(handle.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("fed", [True, False])
def test_a_run_outlives_its_worker_until_its_food_is_gone(rig: Rig, tmp_path: Path, fed: bool) -> None:
    gate = tmp_path / "gate"
    order = rig.order(["sh", "-c", f"echo up; while ! [ -e {gate} ]; do sleep 0.02; done; exit 6"])
    arguments = [str(Path(__file__).parents[1]), str(tmp_path), json.dumps(order), "60" if fed else "1"]
    # Our pipe reaches the end of file with the worker: its runner must not hold it open.
    with subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            runner = ProcessId.of(int(worker.stdout.readline()))
            rig.wait_for_output(b"up")
        finally:
            worker.kill()
        assert worker.communicate(timeout=5) == (b"", None)
    lock = DeviceLock("SIM-x", "gpu", [tmp_path])
    if fed:
        assert not lock.acquire()
        assert runner is not None
        assert runner.alive()
        gate.touch()
    record = until(lambda: read_exit_record(rig.run_dir, 3), what="the exit record")
    assert (record["exit_code"], record["why"]) == ((6, None) if fed else (None, "worker_lost"))
    until(lock.acquire, what="the lock")
    lock.release()
    until(lambda: runner is None or not runner.alive(), what="the runner's end")


ORPHANS = """
import json, os, signal, sys, time
from foxqueue.processes import become_subreaper, ProcessId
from workers.runs import spawn_runner
from workers.tree import kill_orphans
become_subreaper()
handle, standby = spawn_runner(), spawn_runner()
handle.start(json.loads(sys.argv[1]))
while handle.channel.receive(10)["op"] != "started": pass
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
os.kill(handle.pid, signal.SIGKILL)
assert handle.channel.receive(10) is None
assert handle.process.wait() == -9
assert kill_orphans([standby.pid], 10.0)
assert standby.process.poll() is None
standby.close()
"""


def test_a_worker_ends_what_its_dead_runner_left(rig: Rig, tmp_path: Path) -> None:
    up = tmp_path / "up"
    shell = (
        f"trap '' TERM; (setsid env -i sh -c 'trap \"\" TERM; echo $$ > {up}.new; mv {up}.new {up}; sleep 60') & wait"
    )
    order = json.dumps(rig.order(["sh", "-c", shell]))
    subprocess.run([sys.executable, "-c", ORPHANS, order, str(up)], check=True, timeout=30)
    stray = ProcessId.of(int(up.read_text()))
    assert stray is None or not stray.alive()
    assert not marked(MARK, rig.mark)
