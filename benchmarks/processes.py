"""Parts ``commands``, ``worker`` and ``recovery``: whole processes, a real worker, a killed server."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.driver import Driver
from benchmarks.measure import Figure, Operation, Scale, at_most, in_turn, percentile
from benchmarks.servers import BenchServer, bench_server, pid_of
from foxqueue.client import Client
from foxqueue.processes import descendants
from foxqueue.server import ensure_server

FOX = Path(sys.executable).with_name("fox")
IMPORT = [sys.executable, "-c", "import redis"]
QUEUED = 100
WATCHED_S = 20.0
RESTED_S = 0.15  # the next runner stands by then
SETTLED_S = 1.0  # the last run's runner has gone by then


def environ_of(home: Path, namespace: str = "default") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOXQUEUE_", "CUDA_"))}
    return {**kept, "FOXQUEUE_HOME": str(home), "FOXQUEUE_NAMESPACE": namespace}


def commands(server: BenchServer, scale: Scale) -> Iterator[Figure]:
    """``fox submit`` and ``fox ls`` from their start to their end, beside a Python that imports redis and ends."""
    home = server.config.home
    put, look = Driver(server.broker("put")), Driver(server.broker("look"))
    look.fill(20)
    programs = {
        "import": (IMPORT, environ_of(home)),
        "submit": ([str(FOX), "submit", "--quiet", "--", "true"], environ_of(home, "put")),
        "ls": ([str(FOX), "ls"], environ_of(home, "look")),
    }

    def serve(_: int) -> None:
        put.serve()
        look.serve()

    operations = [Operation(name, partial(run_program, *program), before=serve) for name, program in programs.items()]
    found = in_turn(operations, scale.of(25, 2), 2)
    put.broker.close()
    look.broker.close()
    base = found["import"]
    middle = statistics.median(statistics.median(times) for times in base.rounds)
    yield Figure("commands", "python -c 'import redis'", middle * 1000, "ms")
    for name, bound in (("submit", 1.15), ("ls", 1.35)):
        yield Figure(
            "commands", f"fox {name}, to python -c 'import redis'", found[name].cost_to(base), "x", at_most(bound)
        )


def run_program(command: Sequence[str], environ: dict[str, str]) -> None:
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")


# --- a real worker --------------------------------------------------------------------------------------------


def worker(_: BenchServer, scale: Scale) -> Iterator[Figure]:
    """``foxqueue up`` with one simulated device: from submit to the job's first byte, and what idling costs."""
    with up("--simulate", "1x24G") as fox:
        until(lambda: idle(fox), "an idle worker")
        yield from _first_bytes(fox, scale.of(120, 5))
        until(lambda: idle(fox), "an idle worker")
        yield from _idling(fox, scale.of(round(WATCHED_S), 3))


@contextlib.contextmanager
def up(*flags: str, environ: Mapping[str, str] | None = None) -> Iterator[Client]:
    """``foxqueue up`` with these flags and more variables, in a home of its own; a client of it."""
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as place:
        home = Path(place)
        with (home / "up.txt").open("wb") as log:
            process = subprocess.Popen(
                [str(FOX), "up", *flags],
                env={**environ_of(home), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until(lambda: process.poll() is not None or _answers(home), "foxqueue up")
            with Client(home=home) as fox:
                until(lambda: fox.workers(), "a worker")
                yield fox
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _answers(home: Path) -> bool:
    with contextlib.suppress(Exception):
        Client(home=home).close()
        return True
    return False


def idle(fox: Client) -> bool:
    """Whether the only worker stands idle."""
    return fox.redis.zcard(fox.broker.keys.idle) == 1


def _first_bytes(fox: Client, count: int) -> Iterator[Figure]:
    took, submitted = [], []
    for _ in range(count):
        until(lambda: idle(fox), "an idle worker")
        time.sleep(RESTED_S)
        began = time.time_ns()
        job = fox.submit(["date", "+%s%N"])
        submitted.append(time.time_ns() - began)
        job.wait(30)
        took.append(int(job.logs()) - began)
    times = [nanoseconds / 1e6 for nanoseconds in took]
    yield Figure("worker", "submit to the job's first byte: p50", percentile(times, 50), "ms", at_most(15))
    yield Figure("worker", "submit to the job's first byte: p99", percentile(times, 99), "ms", at_most(60))
    yield Figure("worker", "the submit in it: p50", percentile([one / 1e6 for one in submitted], 50), "ms")


def _idling(fox: Client, seconds: float) -> Iterator[Figure]:
    """Watch for a while: the server tells each command that a client sends, those of scripts apart."""
    time.sleep(SETTLED_S)
    pid = int(fox.workers()[0]["pid"])
    watched = {"worker": [pid], "standing runner": sorted(descendants(pid)), "up": [_parent(pid)]}
    before = {name: sum(map(_cpu_s, pids)) for name, pids in watched.items()}
    sent = _commands_sent(fox, seconds)
    yield Figure("worker", "idle: commands a second", sent / seconds, "per second", at_most(1))
    for name, pids in watched.items():
        used = sum(map(_cpu_s, pids)) - before[name]
        yield Figure("worker", f"idle: processor of the {name}", used / seconds * 100, "%", at_most(0.5))
        memory = max(map(_rss_mib, pids), default=0.0)
        yield Figure("worker", f"idle: memory of the {name}", memory, "MiB", at_most(45) if name == "worker" else None)


def _commands_sent(fox: Client, seconds: float) -> int:
    link: Any = fox.broker.blocking(seconds).connection_pool.get_connection()
    try:
        link.send_command("MONITOR")
        link.read_response()
        deadline, count = time.monotonic() + seconds, 0
        while (left := deadline - time.monotonic()) > 0:
            if link.can_read(timeout=left):
                line = bytes(link.read_response())
                count += b" lua] " not in line
        return count
    finally:
        link.disconnect()


def _cpu_s(pid: int) -> float:
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return found / 1e9


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


# --- recovery -------------------------------------------------------------------------------------------------


def recovery(_: BenchServer, scale: Scale) -> Iterator[Figure]:
    """A server is killed with jobs in its queue and started: the work from its first answer until they are served."""
    deeper = scale.of(20_000, 500)
    work: dict[int, list[float]] = {QUEUED: [], deeper: []}
    firsts: list[float] = []
    for queued, times in work.items():
        for _again in range(scale.of(5, 1)):
            first, all_of_them = _killed_and_served(queued)
            times.append(all_of_them * 1000)
            if queued == QUEUED:
                firsts.append(first * 1000)
    base = statistics.median(work[QUEUED])
    yield Figure("recovery", "from the server's first answer to the first claim", statistics.median(firsts), "ms")
    yield Figure("recovery", f"until all {QUEUED} are claimed and completed", base, "ms", at_most(100))
    ratio = statistics.median(work[deeper]) / base
    yield Figure("recovery", f"the first {QUEUED} of {deeper:,}, to {QUEUED} of {QUEUED}", ratio, "x")


def _killed_and_served(queued: int) -> tuple[float, float]:
    with bench_server() as server:
        driver = Driver(server.broker("recovery"))
        driver.fill(queued)
        driver.learn_shapes()
        os.kill(pid_of(driver.broker.redis), signal.SIGKILL)
        ensure_server(server.config)  # returns at the first answer that is not LOADING
        began = time.perf_counter()
        driver.broker.connection.test(5.0)
        driver.claim()
        first = time.perf_counter() - began
        for _ in range(QUEUED - 1):
            driver.complete_and_claim()
        driver.complete()
        took = time.perf_counter() - began
        driver.broker.close()
        return first, took


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds:g} s")
        time.sleep(0.002)
