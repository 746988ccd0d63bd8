"""What a killed server and a power cut lose, and what foxqueue does with a queue that has lost its last moments."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from queue_driver import Queue
from servers import RealServer, binaries
from stack import Stack, gone, until_exists
from wait import until

from foxqueue import Client, JobGone, JobNotFound
from foxqueue.binaries import Binary
from foxqueue.places import read_json
from foxqueue.processes import ProcessId

ROOT = Path(__file__).parents[2]


class CutServer(RealServer):
    """A server that can lose what it wrote last. It writes before it answers."""

    def __init__(self, binary: Binary | None, directory: Path, *flags: str) -> None:
        super().__init__(binary, directory, "--appendfsync", "always", *flags)

    @property
    def file(self) -> Path:
        """What it appends to."""
        return sorted((self.directory / "appendonlydir").glob("*.incr.aof"))[-1]

    def mark(self) -> int:
        """How much it has written."""
        return self.file.stat().st_size

    def cut_back(self, size: int) -> None:
        """As a power cut leaves it when so much was synced."""
        self.kill()
        os.truncate(self.file, size)
        self.start()


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[CutServer]:
    with CutServer(None, tmp_path / "server").start() as server:
        yield server


@pytest.fixture
def driven(cut: CutServer) -> Iterator[Queue]:
    driver = Queue(cut.url, "test")
    yield driver
    driver.broker.close()


# --- what is lost ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_bench_shows_what_is_lost() -> None:
    """A kill loses nothing, a power cut what was not synced, a kill beside a slow sync what waited to be written."""
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", "durability"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    measured = {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["figures"]}
    for setting in ("always", "no"):
        assert measured[f"{setting}: server killed, accepted jobs lost"] == 0
        assert measured[f"{setting}: server killed, ends lost"] == 0
    assert measured.get("everysec: server killed, lost", 0) < 2  # nothing, unless others keep the disk busy just then
    lost = {setting: measured[f"{setting}: power cut, accepted jobs lost"] for setting in ("always", "everysec", "no")}
    assert lost["always"] == 0 < lost["everysec"]
    assert measured["no: power cut, lost"] > 1.5  # all of the run
    assert 0 < measured["everysec, syncs of 1.5 s: server killed, lost"] < 3
    assert measured["everysec, syncs of 1.5 s: power cut, lost"] > 2


# --- what foxqueue does then ------------------------------------------------------------------------------------


def test_a_handle_of_a_lost_job_never_shows_or_touches_another(cut: CutServer, tmp_path: Path) -> None:
    with Client(cut.url, "test", tmp_path) as fox:
        kept = fox.submit(["true"], name="kept")
        size = cut.mark()
        lost, last = fox.submit(["true"], name="lost"), fox.submit(["true"])
        cut.cut_back(size)
        assert kept.refresh().name == "kept"
        for deed in (lost.refresh, lost.cancel, lost.logs, lambda: lost.wait(1)):
            with pytest.raises(JobNotFound):
                deed()
        other = fox.submit(["true"], name="other")
        assert other.number == lost.number
        for deed in (lost.refresh, lost.cancel, lost.requeue, lost.logs, lambda: lost.wait(1), lambda: lost.result(1)):
            with pytest.raises(JobGone):
                deed()
        assert (other.refresh().state, fox.job(other.number).name) == ("pending", "other")
        with pytest.raises(JobNotFound):
            last.refresh()


def test_a_run_whose_claim_was_lost_is_refused_and_fences_grow(cut: CutServer, driven: Queue) -> None:
    instance = driven.broker.settings().instance
    workers = [driven.worker(f"w{at}", f"GPU-{at}") for at in range(2)]
    driven.enqueue("kept")
    size = cut.mark()
    first = workers[0].claim()
    driven.enqueue("lost")
    second = workers[1].claim()
    cut.cut_back(size)

    assert driven.broker.settings().instance == instance
    assert (driven.beat(first), driven.complete(first)) == ("stale", "stale")
    assert (driven.beat(second), driven.complete(second)) == ("missing", "missing")
    assert driven.job(first.number)["state"] == "pending"
    again = driven.worker("w3", "GPU-0").claim()
    assert again.number == first.number
    assert driven.enqueue("other") == second.number
    other = workers[1].claim()
    assert min(int(again.fence), int(other.fence)) > max(int(first.fence), int(second.fence))
    for old in (first, second):
        for send in (driven.beat, driven.complete, driven.fail, driven.release, driven.lose):
            assert send(old) == "stale"
    assert (driven.complete(again), driven.complete(other)) == ("succeeded", "succeeded")


def test_a_job_whose_end_was_lost_runs_again(cut: CutServer, driven: Queue) -> None:
    driven.broker.configure(300)
    worker = driven.worker()
    driven.enqueue()
    run = worker.claim()
    size = cut.mark()
    assert driven.complete(run) == "succeeded"
    cut.cut_back(size)
    assert driven.job(run.number)["state"] == "running"
    assert worker.ask().word == "taken"  # the run has it, as far as the server knows

    def reaped() -> bool:
        driven.broker.sweep()
        return driven.job(run.number)["state"] == "pending"

    until(reaped, 10, "the lease's end")
    again = worker.claim()
    assert (again.number, driven.complete(run), driven.complete(again)) == (run.number, "lost", "succeeded")


def test_workers_go_on_with_a_server_that_lost_its_last_moments(stack: Stack) -> None:
    """The end of one job and the claim of the next are lost: both run again, the run that is not known ends."""
    up = stack.up("--simulate", "1x24G", "--lease-ttl", "2s", workers=1)
    flags = [stack.root / f"flag{at}" for at in range(2)]
    first, second = (stack.queue(*until_exists(flag)) for flag in flags)
    stack.await_state(first, "running")
    stack.api.redis.config_set("appendfsync", "always")
    data = stack.api.config.machine_dir / "server"
    file = next((data / "appendonlydir").glob("*.incr.aof"))
    size = file.stat().st_size
    flags[0].touch()
    fence = stack.await_state(second, "running")["fence"]
    ran = until(lambda: stack.processes_of(second), what="the run")

    os.kill(up.pid, signal.SIGSTOP)
    server = ProcessId.named(read_json(data / "server.json"), "process")
    assert server is not None and server.send(signal.SIGKILL)
    until(lambda: not server.alive(), what="the server's end")
    os.truncate(file, size)
    os.kill(up.pid, signal.SIGCONT)

    until(gone(ran), what="the end of the run whose claim was lost")
    again = stack.await_state(second, "running", seconds=30)
    assert again["fence"] > fence and again["attempts"] == 1
    flags[1].touch()
    assert stack.await_state(second, "succeeded")["fence"] == again["fence"]
    done = stack.await_state(first, "succeeded")
    assert (done["attempts"], done["losses"]) == (1, 1)


# --- the files --------------------------------------------------------------------------------------------------


def survivors(directory: Path, binary: Binary, count: int) -> int:
    """Start a server on a copy of append-only files: the jobs in it must be the first ones, each whole."""
    with RealServer(binary, directory) as server:
        queue = Queue(server.url, "test")
        redis, keys = queue.broker.redis, queue.broker.keys
        last = int(redis.get(keys.next) or 0)
        waiting = {int(number) for number in redis.zrange(keys.pending("g1"), 0, -1)}
        assert waiting == set(range(1, last + 1)) and last <= count
        for number in waiting:
            assert queue.job(number)["state"] == "pending" and redis.exists(keys.spec(number))
        assert not redis.exists(keys.job(last + 1), keys.spec(last + 1))
        queue.broker.close()
        return last


@pytest.mark.parametrize("binary", binaries(), ids=str)
def test_a_file_cut_anywhere_holds_the_first_jobs_whole(binary: Binary, tmp_path: Path) -> None:
    """Between syncs the kernel writes as it likes: a power cut may fall within a command."""
    with CutServer(binary, tmp_path / "server").start() as server:
        queue = Queue(server.url, "test")
        queue.enqueue()
        sizes = [server.mark()]
        for _ in range(3):
            queue.enqueue()
            sizes.append(server.mark())
        queue.broker.close()
        server.kill()
        name = server.file.name
        for size in sorted(random.sample(range(sizes[0], sizes[-1]), 8)):
            copy = tmp_path / str(size)
            shutil.copytree(server.directory / "appendonlydir", copy / "appendonlydir")
            os.truncate(copy / "appendonlydir" / name, size)
            assert survivors(copy, binary, 4) == sum(mark <= size for mark in sizes)


@pytest.mark.parametrize("binary", binaries(), ids=str)
def test_a_power_cut_after_a_rewrite_keeps_what_was_synced(
    binary: Binary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append-only file has several parts then, and the base was written by another process."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.disk import Syncs, cut_copy

    syncs = Syncs(tmp_path)
    environ = syncs.environ(os.environ)
    for name in ("LD_PRELOAD", "FSYNC_RECORD"):
        monkeypatch.setenv(name, environ[name])
    with RealServer(binary, tmp_path / "server").start() as server:
        for name in ("LD_PRELOAD", "FSYNC_RECORD"):
            monkeypatch.delenv(name)
        queue = Queue(server.url, "test")
        acks: list[int] = []

        def work(condition: Callable[[], bool]) -> None:
            until(lambda: acks.append(queue.enqueue()) or condition(), 20, every=0)

        work(lambda: len(acks) > 200)
        before = len(acks)
        queue.broker.redis.bgrewriteaof()
        files = server.directory / "appendonlydir"
        work(lambda: not (files / "appendonly.aof.1.incr.aof").exists())
        work(lambda: any(sync.path.name == "appendonly.aof.2.incr.aof" and sync.size for sync in syncs.done()))
        rest = len(acks) + 100
        work(lambda: len(acks) > rest)
        queue.broker.close()
        server.kill()
        cut_copy(files, tmp_path / "copy" / "appendonlydir", syncs.done(), time.monotonic())
        assert {file.name for file in files.iterdir()} >= {"appendonly.aof.2.base.aof", "appendonly.aof.2.incr.aof"}
        assert before < survivors(tmp_path / "copy", binary, len(acks))


def test_a_copy_made_under_load_has_all_that_was_confirmed_before(tmp_path: Path) -> None:
    """The backup of docs/durability.md."""
    with RealServer(None, tmp_path / "server").start() as server:
        queue = Queue(server.url, "test")
        redis = queue.broker.redis
        for _ in range(200):
            queue.enqueue()
        redis.bgrewriteaof()
        redis.config_set("auto-aof-rewrite-percentage", 0)
        until(lambda: not redis.info("persistence")["aof_rewrite_in_progress"], what="the end of the rewrite")
        before = queue.enqueue()
        (tmp_path / "copy").mkdir()
        copying = subprocess.Popen(["cp", "-a", server.directory / "appendonlydir", tmp_path / "copy"])
        last = until(lambda: (queue.enqueue(), copying.poll() is not None), what="the copy", every=0)[0]
        queue.broker.close()
        assert before <= survivors(tmp_path / "copy", binaries()[0], last)
