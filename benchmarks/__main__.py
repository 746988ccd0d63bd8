"""``python -m benchmarks``: what the core costs, beside an empty script call on the same connection.

Every round measures all operations in turn, so that a slow minute of the machine slows them all; the table shows
medians over the rounds. ``--json`` prints the same as one object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from foxqueue.broker import Broker, Claimed, NewJob
from foxqueue.codec import pack
from foxqueue.config import load_config
from foxqueue.scripts import Call, Script
from foxqueue.server import ensure_server, stop_server

DEVICE = "SIM-bench"
EMPTY = "return {'ok', ''}"


def empty_call() -> Call:
    """A script that does nothing, sent the way all others are."""
    sha = hashlib.sha1(EMPTY.encode(), usedforsecurity=False).hexdigest()
    return Call(Script("empty", "", (), (), None, (), "", EMPTY, sha), ())


class Bench:
    """The operations, on one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._empty = empty_call()
        self._question = 0
        self._version = "?"
        self._run: Claimed | None = None
        spec = pack({"v": 1, "argv": ["python", "train.py"], "cwd": "/", "umask": 18, "description": "x" * 120})
        self._job = NewJob("bench", "g1", 5, 0, 1000, spec, {"PATH": "/usr/bin"})

    def empty(self) -> None:
        self.broker.send(self._empty)

    def enqueue(self) -> None:
        self.broker.enqueue(self._job)

    def complete_and_claim(self) -> None:
        """One round trip a job, as a busy worker has it."""
        calls = [] if self._run is None else [self.broker.complete_call(self._run.number, self._run.fence, b"\x80")]
        self._question += 1
        calls.append(self.broker.claim_call("bench", self._question, DEVICE, "host", self._version, (), ["g1"]))
        reply = self.broker.send(*calls)[-1]
        self._run = None
        if reply.word == "shapes":
            self._version = reply.rest[0].decode()
            self.complete_and_claim()
        elif reply.word == "ok":
            self._run = Claimed.of(reply)

    def heartbeat(self) -> None:
        if self._run is not None:
            self.broker.send(self.broker.heartbeat_call(self._run.number, self._run.fence))

    def cancel(self) -> None:
        """Enqueue and cancel: so that there is something to cancel."""
        number, born = self.broker.enqueue(self._job)
        self.broker.cancel(number, born, "bench")


def rate(operation: Callable[[], None], count: int) -> tuple[float, float]:
    """Calls a second, and the 99th percentile of one call in ms."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        operation()
        times.append(time.perf_counter() - began)
    return count / sum(times), statistics.quantiles(times, n=100)[98] * 1000


def measure(broker: Broker, rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by operation."""
    bench = Bench(broker)
    operations = {
        "empty": bench.empty,
        "enqueue": bench.enqueue,
        "complete + claim": bench.complete_and_claim,
        "heartbeat": bench.heartbeat,
        "enqueue + cancel": bench.cancel,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in operations}
    for _ in range(rounds):
        for name, operation in operations.items():
            found[name].append(rate(operation, count))
    return {
        name: {
            "per_second": statistics.median(one for one, _ in values),
            "p99_ms": statistics.median(other for _, other in values),
            "of_empty": statistics.median(
                one / base for (one, _), (base, _) in zip(values, found["empty"], strict=True)
            ),
        }
        for name, values in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=2000, help="calls of each operation in a round")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foxqueue-bench-") as home:
        config = load_config(home=Path(home), environ={})
        server = ensure_server(config)
        try:
            found = measure(Broker.connect(server.url, "bench"), given.rounds, given.count)
        finally:
            stop_server(config)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'operation':<18} {'per second':>11} {'p99 ms':>8} {'of empty':>9}")
    for name, values in found.items():
        print(f"{name:<18} {values['per_second']:>11,.0f} {values['p99_ms']:>8.3f} {values['of_empty']:>9.2f}")


if __name__ == "__main__":
    main()
