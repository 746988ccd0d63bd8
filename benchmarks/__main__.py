"""``python -m benchmarks``: what foxqueue costs, as ratios measured in one run.

Machines differ and are noisy, so what counts are ratios to something measured in turn with it: an empty script call,
a short queue, a Python that only imports redis. ``--json`` prints the same as one object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from benchmarks.calls import calls, many, waiters
from benchmarks.depth import depth
from benchmarks.disk import NO_COMPILER, compiler
from benchmarks.durability import durability
from benchmarks.leases import leases
from benchmarks.measure import Figure, Scale
from benchmarks.peers import memory, peers
from benchmarks.processes import commands, recovery, worker
from benchmarks.servers import BenchServer, bench_server, forget_all, product

Part = Callable[[BenchServer, Scale], Iterator[Figure]]

PARTS: dict[str, Part] = {
    part.__name__: part
    for part in (calls, many, waiters, memory, peers, commands, worker, leases, recovery, durability, depth)
}

PEERS = ("rq", "huey")


def run(names: Sequence[str], scale: Scale, tell: Callable[[Figure], None]) -> dict[str, Any]:
    """Run some parts on one server.

    Args:
        names: of the parts.
        scale: how much is done.
        tell: called with each figure when it is there.

    Returns:
        The JSON object: what was measured on, how long it took, and the figures.
    """
    began = time.monotonic()
    figures: list[Figure] = []
    with bench_server() as server, server.client("bench") as fox:
        served = product(fox.redis)
        for name in names:
            for figure in PARTS[name](server, scale):
                figures.append(figure)
                tell(figure)
            forget_all(fox.redis)
    return {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "server": served,
            "redis-py": version("redis"),
        },
        "quick": scale.quick,
        "seconds": round(time.monotonic() - began, 1),
        "figures": [figure.to_dict() for figure in figures],
    }


def _line(figure: Figure) -> str:
    digits = 0 if abs(figure.value) >= 1000 else 3 if abs(figure.value) < 10 else 1
    value = f"{figure.value:,.{digits}f}"
    unit = "" if figure.unit == "x" else figure.unit
    target = "" if figure.target is None else f"{'' if figure.holds else 'MISSED '}{figure.target}"
    return f"{figure.part:<9} {figure.name:<66} {value:>9} {unit:<11}{target}".rstrip()


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a fraction of the work: the figures say little")
    parser.add_argument("--json", action="store_true", help="print one object in place of the table")
    given = parser.parse_args(words)
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"{name!r} is no part: give some of {', '.join(PARTS)}")
    given.parts = given.parts or list(PARTS)
    if {"durability", "leases"} & set(given.parts) and compiler() is None:
        parser.error(NO_COMPILER)
    missing = [name for name in PEERS if find_spec(name) is None]
    if missing and {"peers", "memory"} & set(given.parts):
        parser.error(
            f"the parts peers and memory need {' and '.join(missing)}: pip install -e '.[bench]', or make bench"
        )
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Run and print; the exit code is 0 whatever the figures are."""
    given = _arguments(words)

    def tell(figure: Figure) -> None:
        if not given.json:
            print(_line(figure), flush=True)

    found = run(given.parts, Scale(given.quick), tell)
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    versions = ", ".join(f"{name} {value}" for name, value in found["machine"].items() if name != "cores")
    cores = found["machine"]["cores"]
    missed = sum(figure["holds"] is False for figure in found["figures"])
    judged = sum(figure["holds"] is not None for figure in found["figures"])
    print(f"\n{judged - missed} of {judged} targets are met; {found['seconds']:g} s on {cores} cores, {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
