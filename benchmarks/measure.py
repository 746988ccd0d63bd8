"""Times operations side by side: rounds in turn, medians, and ratios within a round."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Target:
    """What a figure is held against."""

    bound: float
    sense: Literal["at least", "at most"]

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g}"

    def holds(self, value: float) -> bool:
        """Whether the value is on the right side."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound


def at_least(bound: float) -> Target:
    """A target from below."""
    return Target(bound, "at least")


def at_most(bound: float) -> Target:
    """A target from above."""
    return Target(bound, "at most")


@dataclass(frozen=True)
class Figure:
    """One number that was measured.

    Attributes:
        part: of the bench it belongs to.
        name: what was measured.
        value: the number.
        unit: ``x`` for a ratio, else a unit of people.
        target: what it is held against; None for one that is only told.
    """

    part: str
    name: str
    value: float
    unit: str
    target: Target | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.holds(self.value)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        target = None if self.target is None else str(self.target)
        value = float(f"{self.value:.4g}")
        return {
            "part": self.part,
            "name": self.name,
            "value": value,
            "unit": self.unit,
            "target": target,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Scale:
    """How much is done: ``--quick`` does a fraction, for a look at whether all works."""

    quick: bool

    def of(self, full: int, quick: int) -> int:
        """The one or the other."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Operation:
    """Something to be timed.

    Attributes:
        name: in the results.
        call: what is timed, each call by itself.
        before: done with the number of calls to come, before each round, not timed.
        after: done after each call, not timed.
        share: of the calls of a round that are made, for what takes long.
        jobs: what one call does, when a rate counts that.
    """

    name: str
    call: Callable[[], object]
    before: Callable[[int], object] | None = None
    after: Callable[[], object] | None = None
    share: float = 1.0
    jobs: int = 1


@dataclass
class Timed:
    """The rounds of one operation: seconds of each call."""

    jobs: int = 1
    rounds: list[list[float]] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Of each round, per second. The slowest tenth is the machine's; the 99th percentile tells of it."""
        return [self.jobs / statistics.fmean(sorted(times)[: -(len(times) // 10) or None]) for times in self.rounds]

    def p99s(self) -> list[float]:
        """Of each round, seconds."""
        return [statistics.quantiles(times, n=100, method="inclusive")[98] for times in self.rounds]

    @property
    def rate(self) -> float:
        """Median over the rounds, per second."""
        return statistics.median(self.rates())

    @property
    def p99_ms(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.p99s()) * 1000

    def rate_to(self, base: Timed) -> float:
        """The rate as a part of another's: median of the rounds' ratios."""
        return _ratio(self.rates(), base.rates())

    def p99_to(self, base: Timed) -> float:
        """The 99th percentile as a multiple of another's."""
        return _ratio(self.p99s(), base.p99s())

    def cost_to(self, base: Timed) -> float:
        """What one costs as a multiple of what another costs."""
        return 1 / self.rate_to(base)


def _ratio(mine: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(mine, base, strict=True))


def in_turn(operations: Sequence[Operation], rounds: int, count: int) -> Mapping[str, Timed]:
    """Time all operations in each round, so that a slow moment of the machine slows them all.

    Args:
        operations: what to time, in this order.
        rounds: how many.
        count: calls of each in a round.
    """
    found = {operation.name: Timed(operation.jobs) for operation in operations}
    for _ in range(rounds):
        for operation in operations:
            found[operation.name].rounds.append(_round(operation, max(round(count * operation.share), 2)))
    return found


def _round(operation: Operation, count: int) -> list[float]:
    call, after, clock = operation.call, operation.after, time.perf_counter
    if operation.before:
        operation.before(count)
    times = []
    for _ in range(count):
        began = clock()
        call()
        times.append(clock() - began)
        if after:
            after()
    return times


@contextlib.contextmanager
def one_core(pid: int) -> Iterator[None]:
    """Keep this process and a server on one core while it lasts: a round trip takes what both of them work."""
    cores = os.sched_getaffinity(0)
    with _kept(pid, {max(cores)}, {max(cores)}, cores):
        yield


@contextlib.contextmanager
def two_cores(pid: int) -> Iterator[None]:
    """Keep this process on one core and a server on another while it lasts, as far as there are two.

    Left alone they share a core or not as the kernel likes, and a round trip takes 25 or 60 us.
    """
    cores = os.sched_getaffinity(0)
    with _kept(pid, {max(cores)}, {min(cores)}, cores):
        yield


@contextlib.contextmanager
def _kept(pid: int, mine: set[int], its: set[int], before: set[int]) -> Iterator[None]:
    try:
        _keep_on(os.getpid(), mine)
        _keep_on(pid, its)
        yield
    finally:
        _keep_on(os.getpid(), before)
        _keep_on(pid, before)


def _keep_on(pid: int, cores: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which so many percent lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
