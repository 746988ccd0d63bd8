"""What looking at GPUs costs, through the tests' stand-in for NVIDIA's library: at all of them, and at a worker's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Figure, Scale, at_most, percentile
from benchmarks.processes import SETTLED_S, idle, until, up

GPUS = 8
WATCHED_S = 20.0
STUB = Path(__file__).resolve().parents[1] / "tests" / "nvml_stub"
STUB_ENVIRON = ("LD_LIBRARY_PATH", "NVML_STUB_STATE")
_SNAPSHOTS = """
import json, sys, time
from foxqueue.snapshots import snapshot
assert len(snapshot()) == int(sys.argv[1]), snapshot()
took = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter()
    snapshot()
    took.append((time.perf_counter() - began) * 1000)
print(json.dumps(took))
"""


@contextlib.contextmanager
def stub_machine(gpus: int = GPUS) -> Iterator[dict[str, str]]:
    """A machine with so many GPUs; what processes that shall see it need in their environment."""
    sys.path.insert(0, str(STUB))
    try:
        import nvml_stub
    finally:
        sys.path.remove(str(STUB))
    with tempfile.TemporaryDirectory(prefix="fq-bench-") as place:
        state = nvml_stub.State(Path(place), nvml_stub.build(Path(place) / "library"))
        lines = []
        for index in range(gpus):
            lines += [f"gpu {index} name NVIDIA H200", f"gpu {index} uuid GPU-{uuid.uuid4()}"]
            lines += [f"gpu {index} mem_total_mib 143771", f"gpu {index} mem_reserved_mib 600"]
        state.write(*lines)
        yield {name: value for name, value in state.env().items() if name in STUB_ENVIRON}


def looks(scale: Scale) -> Iterator[Figure]:
    """All GPUs in one go, and a worker that has nothing else to do than to look at its own."""
    with stub_machine() as environ:
        count = scale.of(300, 20)
        command = [sys.executable, "-c", _SNAPSHOTS, str(GPUS), str(count)]
        done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the snapshots ended with {done.returncode}: {done.stderr}")
        took = json.loads(done.stdout)
        yield Figure("leases", f"snapshot of {GPUS} GPUs through the stub: p50", percentile(took, 50), "ms", at_most(2))
        yield Figure("leases", f"snapshot of {GPUS} GPUs through the stub: p99", percentile(took, 99), "ms")
    with stub_machine(1) as environ, up(environ=environ) as fox:
        until(lambda: idle(fox), "an idle worker")
        time.sleep(SETTLED_S)
        pid, seconds = int(fox.workers()[0]["pid"]), scale.of(round(WATCHED_S), 3)
        before, began = _cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        used = (_cpu_s(pid) - before) / (time.monotonic() - began)
        yield Figure("leases", "an idle worker of a GPU that samples it: processor", used * 100, "%", at_most(0.5))


def _cpu_s(pid: int) -> float:
    """Seconds of processor that a process has used, those of threads that have ended too; in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
