"""Notebooks, a loop like RQ's and jobs of the queue share two devices: nobody starves, the order is that of ranks."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from crowd import Crowd
from stack import Stack
from wait import until

LASTS_S = 6.0
JOBS_WAITING = 2
NOTEBOOKS = 3
BRIDGES = 2
# What a machine under load may add. Ranks are exact, but what is seen here is when a process began to ask, and it takes
# its place in line somewhat later.
OVERTAKEN_S = 1.5  # nobody who asked so much later is served before
LONGEST_S = 4.0  # that anybody waits: seven share two devices, for 0.2 s each
IDLE_SHARE = 0.4  # of the time that a device lies idle, handing over included


@dataclass(frozen=True)
class Turn:
    """One use of a device; epoch seconds of one machine's clock."""

    who: str
    device: str
    asked: float
    granted: float
    ended: float


def played(stack: Stack, folder: Path) -> list[Turn]:
    stack.up("--simulate", "2x24G")
    ends = time.time() + LASTS_S
    with Crowd(folder, "lease_holders", environ=stack.environ) as crowd:
        doing = [f"notebook-{seed}" for seed in range(NOTEBOOKS)] + [f"bridge-{seed}" for seed in range(BRIDGES)]
        pids = {who: crowd.start(f"lease_holders:{who.partition('-')[0]}", ends, at) for at, who in enumerate(doing)}
        numbers = []
        while time.time() < ends:
            if stack.api.stats()["queued_jobs"] < JOBS_WAITING:
                numbers.append(stack.queue("sleep", "0.1"))
            time.sleep(0.01)
        turns = [Turn(who, *turn) for who, pid in pids.items() for turn in crowd.answer(pid)]
    for number in numbers:
        job = stack.await_state(number, "succeeded")
        times = stack.api.job(number).view
        turns.append(
            Turn("job", job["gpu_uuids"][0], int(times.born) / 1e6, int(job["fence"]) / 1e6, times.finished_ms / 1e3)
        )
    return sorted(turns, key=lambda turn: turn.granted)


def overtaken(turns: list[Turn]) -> list[str]:
    """Who was served before somebody who had asked so much earlier and was still waiting."""
    return [
        f"{late} before {early}"
        for early in turns
        for late in turns
        if late.granted < early.granted and late.asked > early.asked + OVERTAKEN_S
    ]


def idle(turns: list[Turn], began: float, ends: float) -> float:
    """The share of the time in which a device was nobody's although there was always somebody who wanted it."""
    unused = 0.0
    by_device: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        by_device[turn.device].append(turn)
    for mine in by_device.values():
        for one, other in itertools.pairwise(mine):
            assert one.ended <= other.granted + 0.002, f"two at once: {one}, {other}"  # ms of the server's clock
            if other.granted < ends:
                unused += max(other.granted - max(one.ended, began), 0.0)
    return unused / ((ends - began) * len(by_device))


@pytest.mark.soak
def test_notebooks_bridges_and_jobs_share_fairly(stack: Stack, tmp_path: Path) -> None:
    turns = played(stack, tmp_path / "crowd")
    counts = Counter(turn.who for turn in turns)
    waits = {who: max(turn.granted - turn.asked for turn in turns if turn.who == who) for who in counts}
    first = min(turn.granted for turn in turns)
    figures = f"{dict(counts)}; longest waits {waits}; idle {idle(turns, first, first + LASTS_S - 1):.2f}"
    print(figures)
    assert len({turn.device for turn in turns}) == 2
    assert len(counts) == NOTEBOOKS + BRIDGES + 1 and min(counts.values()) >= 3, figures
    assert max(counts[f"notebook-{at}"] for at in range(NOTEBOOKS)) <= 2 * min(
        counts[f"notebook-{at}"] for at in range(NOTEBOOKS)
    ), figures
    assert max(waits.values()) < LONGEST_S, figures
    assert not overtaken(turns), overtaken(turns)[:5]
    assert idle(turns, first, first + LASTS_S - 1) < IDLE_SHARE, figures
    until(lambda: not stack.api.redis.keys("*lease_waiting*"), 5, "empty lines")
