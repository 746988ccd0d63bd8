"""A queue moves to another server as one file."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from archives import exported, new_job, put, put_all_kinds, records
from queue_driver import Queue
from servers import RealServer, binaries
from shell import Shell
from stack import FOXQUEUE, Stack, ended

from foxqueue.binaries import Binary
from foxqueue.importing import import_namespace

SERVERS = binaries()
WAYS = [(one, other) for one in SERVERS for other in SERVERS if one is not other] or [(SERVERS[0], SERVERS[0])]
CALLED = Path(__file__).parents[1] / "called"
SILENT = "import sys; sys.stdout.buffer.write(b'out \\xff\\n')"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Queue]:
    """The namespace ``test`` of another server."""
    with RealServer(SERVERS[-1], tmp_path / "other").start() as server:
        queue = Queue(server.url, "test")
        yield queue
        queue.broker.close()


def at_other(other: Queue) -> dict[str, str]:
    return {"FOXQUEUE_URL": other.broker.connection.url}


def submit_all_kinds(stack: Stack, flag: Path) -> dict[str, int]:
    """What waits for another server: what each is -> its number."""
    fox, true = stack.api, [sys.executable, "-S", "-c", "print('done')"]
    options = {"cwd": stack.work}
    jobs = {"call": fox.enqueue("calls:echo", (1, b"\xff"), {"x": [1.5, None]}, gpus=0, cwd=CALLED)}
    jobs["name"] = fox.submit(["printf", "%s", os.fsdecode(b"\xff \xc3\xbc")], name="\udcff ü", **options)
    jobs["parent"] = fox.submit(true, priority="low", **options)
    jobs["child"] = fox.submit(true, after=jobs["parent"], tags={"model": "ü"}, **options)
    jobs["group"] = fox.submit(true, group="lr-sweep", config={"lr": 0.1}, **options)
    jobs["delayed"] = fox.submit(true, delay="2s", expires="1h", **options)
    jobs["later"] = fox.submit(true, delay="1h", **options)
    jobs["held"] = fox.submit(true, hold=True, unique="only one", **options)
    jobs["runs"] = fox.submit(["sh", "-c", f"while [ ! -e {flag} ]; do sleep 0.02; done"], priority="high", **options)
    return {what: job.number for what, job in jobs.items()}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("there", "here"), WAYS, ids=lambda binary: str(binary).replace(" ", ""))
def test_a_queue_moves_to_another_server_and_its_jobs_run_there(tmp_path: Path, there: Binary, here: Binary) -> None:
    file, flag = tmp_path / "queue.fox", tmp_path / "flag"
    with ended(Stack(tmp_path / "a", {"FOXQUEUE_REDIS_SERVER": str(there.path)})) as old:
        old.up("--simulate", "1x24G", workers=1)
        output = old.queue(sys.executable, "-S", "-c", SILENT)
        failed = old.queue("false")
        cancelled = old.queue("true", gpu_memory="1G", hold=True)
        for number, state in ((output, "succeeded"), (failed, "failed")):
            old.await_state(number, state)
        old.api.job(cancelled).cancel()
        old.api.broker.pause("*", "it moves", "ann")
        jobs = submit_all_kinds(old, flag)
        old.api.broker.resume("*", "ann")
        old.await_state(jobs["runs"], "running")
        old.api.broker.pause("*", "it moves", "ann")
        before = {number: old.job(number) for number in (output, failed, cancelled, *jobs.values())}
        old.fox("export", str(file))
        assert old.job(jobs["runs"])["state"] == "running", "an export leaves it alone"
        flag.touch()
        old.fox("down")
    with ended(Stack(tmp_path / "b", {"FOXQUEUE_REDIS_SERVER": str(here.path)})) as new:
        new.up("--simulate", "1x24G", "--cpu", "1", workers=2)
        said = new.fox("import", str(file)).stderr
        assert "12 jobs imported from 'default', 1 of them ran and wait again" in said
        assert "it is paused by ann: it moves" in said
        again = tmp_path / "again.fox"
        new.fox("export", str(again))
        first, second = records(file), records(again)
        assert first.keys() == second.keys()
        changed = {key for key in first if first[key] != second[key]} - {("job", jobs["delayed"])}  # due by now
        assert changed == {("job", jobs["runs"])}
        for number in (output, failed, cancelled):
            assert new.job(number) == before[number]
        assert new.api.job(output).logs() == b"out \xff\n"
        new.fox("resume")
        for what in ("call", "name", "parent", "child", "group", "delayed", "runs"):
            assert new.await_state(jobs[what], "succeeded", "failed", seconds=30)["state"] == "succeeded", what
        assert new.job(jobs["child"])["started_at"] >= new.job(jobs["parent"])["finished_at"]
        assert new.job(jobs["runs"])["attempts"] == 1
        assert new.api.job(jobs["call"]).result() == [[1, b"\xff"], {"x": [1.5, None]}]
        assert new.api.job(jobs["name"]).logs() == b"\xff \xc3\xbc"
        waiting = {what: new.job(jobs[what])["state"] for what in ("later", "held")}
        assert waiting == {"later": "scheduled", "held": "blocked"}
        assert new.api.job(key="only one").number == jobs["held"]
        assert new.submit("true") == max(jobs.values()) + 1


def test_every_kind_of_job_makes_the_trip_by_the_command_line(shell: Shell, queue: Queue, other: Queue) -> None:
    put_all_kinds(queue)
    _, said = shell.fox("export", "queue.fox")
    assert "17 jobs, 2 of them running, written to queue.fox" in said
    file = shell.directory / "queue.fox"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    _, said = shell.fox("import", "queue.fox", **at_other(other))
    assert "17 jobs imported from 'test', 1 of them ran and wait again" in said
    assert "directories of its jobs are in jobs/" in said
    assert records(exported(other)).keys() == records(file).keys()
    _, said = shell.fox("import", "queue.fox", **at_other(other))
    assert "has been imported into namespace 'test' before: nothing was changed" in said


def test_a_pipe_takes_an_export(shell: Shell, queue: Queue, other: Queue) -> None:
    put_all_kinds(queue)
    process = shell.start("export", "-")
    data, said = process.communicate(timeout=30)
    assert process.returncode == 0 and b"written to stdout" in said
    assert records(data).keys() == records(exported(queue)).keys()
    process = shell.start("export", "-")
    assert process.stdout and process.stderr
    process.stdout.close()
    assert b"standard output cannot be written" in process.stderr.read()
    assert process.wait(30) == 1, "what the reader has is no whole file"


def test_workers_go_on_while_a_queue_is_exported(queue: Queue) -> None:
    """2,000 jobs are run, and others submitted, while exports are made: each is whole and can be put back."""
    for _ in range(20):
        put(queue, *[new_job() for _ in range(100)])
    over = threading.Event()

    def work() -> None:
        mine = Queue(queue.broker.connection.url, "test")
        worker = mine.worker()
        while not over.is_set():
            mine.complete(worker.claim())
            put(mine, new_job())
        mine.broker.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        files = [exported(queue) for _ in range(5)]
    finally:
        over.set()
        thread.join()
    for at, data in enumerate(files):
        target = Queue(queue.broker.connection.url, f"copy-{at}")
        done = import_namespace(target.broker, io.BytesIO(data), "f", "bob")
        assert done.jobs >= 2000 and not done.said
        counts = target.broker.redis.hgetall(target.broker.keys.unfinished)
        waiting = target.broker.redis.zcard(target.broker.keys.pending("g1"))
        assert int(counts[b"ann"]) == waiting
        assert waiting + target.broker.redis.zcard(target.broker.keys.finished) == done.jobs
        target.broker.close()


KILLED = """
import os, signal, sys
from foxqueue import importing
send, sent = importing._Import._send, []
def killed_after(self, step, words):
    word = send(self, step, words)
    sent.append(step)
    if len(sent) == {steps}:
        os.kill(os.getpid(), signal.{how})
    return word
importing._Import._send = killed_after
from foxqueue.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("steps", [1, 2, 4, 6])
def test_a_killed_import_is_begun_again(shell: Shell, queue: Queue, other: Queue, steps: int) -> None:
    """After the first step, between two, before the last, and after it, when nobody has heard."""
    put_all_kinds(queue)
    for _ in range(3):
        put(queue, *[new_job() for _ in range(100)])
    shell.fox("export", "queue.fox")
    killed = start_killed(shell, other, steps, "SIGKILL")
    assert killed.wait(30) == -signal.SIGKILL
    if steps < 6:
        assert other.broker.redis.hget(other.broker.keys.paused, "*").endswith(b": import in progress")
    shell.fox("import", "queue.fox", **at_other(other))
    assert not other.broker.redis.exists(other.broker.keys.paused)
    once = Queue(other.broker.connection.url, "once")
    import_namespace(once.broker, io.BytesIO((shell.directory / "queue.fox").read_bytes()), "f", "bob")
    assert records(exported(other)) == records(exported(once))
    once.broker.close()


def start_killed(shell: Shell, other: Queue, steps: int, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED.format(steps=steps, how=how), "import", "queue.fox"],
        env=shell.environ | at_other(other),
        cwd=shell.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_ctrl_c_says_what_to_do(shell: Shell, queue: Queue, other: Queue) -> None:
    put(queue, *[new_job() for _ in range(100)])
    put(queue, *[new_job() for _ in range(100)])
    shell.fox("export", "queue.fox")
    stopped = start_killed(shell, other, 2, "SIGINT")
    said = stopped.communicate(timeout=30)[1].decode()
    assert stopped.returncode == 130
    assert "the import stopped after 1" in said and "of 200 jobs" in said
    assert "stays paused and half full: run the same import again, it goes on where it stopped" in said


def test_a_server_that_goes_away_leaves_no_file(shell: Shell, queue: Queue, server: RealServer) -> None:
    put(queue, new_job())
    server.freeze()
    try:
        process = shell.start("export", "queue.fox")
        _, said = process.communicate(timeout=60)
    finally:
        server.thaw()
    assert process.returncode == 1 and b"does not answer" in said
    assert not list(shell.directory.glob("*fox*"))


def test_a_cut_or_damaged_file_changes_nothing(shell: Shell, queue: Queue, other: Queue) -> None:
    put_all_kinds(queue)
    shell.fox("export", "queue.fox")
    file = shell.directory / "queue.fox"
    data = file.read_bytes()
    for damaged in (data[:-1], data[: len(data) // 2], data[:100], data[:500] + b"?" + data[501:], data + b"\0"):
        file.write_bytes(damaged)
        _, said = shell.fox("import", "queue.fox", code=2, **at_other(other))
        assert "queue.fox is cut or damaged" in said and "nothing was imported" in said
    for nothing in (b"", data[:5], b"\x00" * 5000, b"PK\x03\x04 something else"):
        file.write_bytes(nothing)
        _, said = shell.fox("import", "queue.fox", code=2, **at_other(other))
        assert "queue.fox is no export of foxqueue" in said
    assert other.snapshot() == {}


def test_what_is_given_is_looked_at_before_anything_is_done(shell: Shell, queue: Queue, tmp_path: Path) -> None:
    put(queue, new_job())
    (shell.directory / "there").write_text("mine")
    os.mkfifo(shell.directory / "fifo")
    for words, text in {
        ("export", "there"): "there is there: give another name, or --force",
        ("export", "."): ". is no file: give the name of a file, or - for stdout",
        ("export", "fifo", "--force"): "fifo is no file",
        ("export", "no/where"): "there is no directory no",
        ("import", "-"): "reads its file twice",
        ("import", "missing"): "missing does not exist",
        ("import", "."): ". is no file",
        ("import", "fifo"): "fifo is no file",
        ("import", "there"): "there is no export of foxqueue",
    }.items():
        assert text in shell.fox(*words, code=2)[1], words
    assert (shell.directory / "there").read_text() == "mine"
    shell.fox("export", "--force", "there")
    assert ("job", 1) in records(shell.directory / "there")
    _, said = shell.fox("import", "there", code=1)
    assert "namespace 'test' has had 1 jobs" in said and "another --namespace" in said


def test_no_traceback_where_the_disk_is_full(shell: Shell, queue: Queue) -> None:
    put(queue, new_job())
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(
            [str(FOXQUEUE), "export", "-"], env=shell.environ, stdout=stdout, stderr=subprocess.PIPE, timeout=30
        )
    assert done.returncode == 1 and b"No space left on device" in done.stderr and b"Traceback" not in done.stderr


def test_a_namespace_takes_a_file_beside_another(shell: Shell, queue: Queue) -> None:
    """As a copy on the same server; each goes on by itself."""
    put(queue, new_job())
    shell.fox("export", "queue.fox")
    shell.fox("import", "queue.fox", "--namespace", "copy")
    copy = Queue(queue.broker.connection.url, "copy")
    assert copy.worker().claim().number == queue.worker().claim().number == 1
    assert copy.broker.settings().instance != queue.broker.settings().instance
    copy.broker.close()


@pytest.mark.soak
def test_a_hundred_thousand_jobs_take_little_memory(queue: Queue, other: Queue, tmp_path: Path) -> None:
    """Measured in a process of its own: beyond what it takes for one job, a few MiB."""
    measured = [
        sys.executable,
        "-c",
        "import resource, sys; from foxqueue.cli import main; main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)",
    ]

    def peak_kib(*words: str) -> int:
        environ = os.environ | {"FOXQUEUE_NAMESPACE": "test", "HOME": str(tmp_path)}
        done = subprocess.run([*measured, *words], env=environ, capture_output=True, timeout=100, check=True)
        return int(done.stdout)

    here, there = ("--url", queue.broker.connection.url), ("--url", other.broker.connection.url)
    put(queue, new_job())
    small = max(peak_kib("export", *here, str(tmp_path / "small")), 1)
    for _ in range(200):
        put(queue, *[new_job("j" * 60, description="d" * 1000) for _ in range(100)])
    large = peak_kib("export", *here, str(tmp_path / "large"))
    put_back = peak_kib("import", *there, str(tmp_path / "large"))
    assert (tmp_path / "large").stat().st_size > 20 * 1024**2
    assert max(large, put_back) < small + 12 * 1024, (small, large, put_back)
