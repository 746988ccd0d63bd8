"""Whether a run keeps to the GPU memory that it declared (``up --enforce-memory``). Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, Literal, NamedTuple

from foxqueue.units import format_memory
from workers.offered import OFF

KILL: Final = "kill"


class Finding(NamedTuple):
    """What a look found: ``over`` the declared memory, or ``unknown``, where it cannot be measured; and a sentence."""

    word: Literal["over", "unknown"]
    text: str


class MemoryLimit:
    """The declared memory of one run, held against what its processes have.

    Args:
        enforce: ``off``, ``warn`` or ``kill``.
        declared_mib: what it declared; None when the device does not tell how much it has.

    Attributes:
        kills: whether a run that is over it is to be ended.
    """

    def __init__(self, enforce: str, declared_mib: int | None) -> None:
        self.kills = enforce == KILL
        self._declared = None if enforce == OFF else declared_mib
        self._found: set[str] = set()

    @property
    def counts(self) -> bool:
        """Whether anything is to be measured."""
        return self._declared is not None

    def judge(self, used_mib: int | None) -> Finding | None:
        """Judge one look. Each word is said once a run.

        Args:
            used_mib: memory that the processes of the run have on its device; None when that is not told.
        """
        declared = self._declared
        if declared is None or (used_mib is not None and used_mib <= declared):
            return None
        if used_mib is None:
            found = Finding("unknown", "NVML does not tell how much memory its processes have: it is not held to it")
        else:
            figures = f"its processes have {format_memory(used_mib)} of the GPU's memory ({used_mib} MiB)"
            found = Finding("over", f"{figures}, it declared {format_memory(declared)} ({declared} MiB)")
        if found.word in self._found:
            return None
        self._found.add(found.word)
        return found


def used_by(run: Container[int], processes: Iterable[tuple[int, int | None]]) -> int | None:
    """MiB that the processes of a run have; None when that of one of them is not told.

    Args:
        run: its processes.
        processes: (pid, MiB or None) of all that are on the device.
    """
    sizes = [mib for pid, mib in processes if pid in run]
    known = [mib for mib in sizes if mib is not None]
    return sum(known) if len(known) == len(sizes) else None
