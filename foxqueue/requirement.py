"""What a job needs of a device, spelt as a shape: jobs of one shape share one sorted set.

A shape is words joined by dots, in this order: ``g<count>`` GPUs, ``m<MiB>`` memory floor. A worker that
meets a word it does not know (from a newer version) leaves the shape alone. Jobs of a group have sets of their own,
because a group may be held back as a whole: ``g1.m8192@lr-sweep``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from foxqueue.errors import InvalidInput

_GROUP = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_WORD = re.compile(r"([gm])([0-9]{1,9})\Z")


@dataclass(frozen=True)
class Requirement:
    """GPUs (0 is a CPU slot) and the memory floor of each, in MiB (0: none)."""

    gpus: int = 1
    memory_mib: int = 0

    def __post_init__(self) -> None:
        if self.gpus not in (0, 1):
            raise InvalidInput(f"{self.gpus} GPUs cannot be asked for: give 0 (a CPU slot) or 1")
        if self.gpus == 0 and self.memory_mib:
            raise InvalidInput("GPU memory without a GPU: leave --gpu-memory out, or ask for --gpus 1")

    @property
    def shape(self) -> str:
        """The canonical spelling."""
        return f"g{self.gpus}" + (f".m{self.memory_mib}" if self.memory_mib else "")


def in_group(shape: str, group: str | None) -> str:
    """The shape of jobs of a group.

    Raises:
        InvalidInput: the group's name has another character or length.
    """
    if group is None:
        return shape
    if not _GROUP.match(group):
        raise InvalidInput(f"group {group!r:.80} is not usable: give 1 to 64 letters, digits, '.', '_' or '-'")
    return f"{shape}@{group}"


def group_of(shape: str) -> str | None:
    """The group that a shape names, None for jobs without one."""
    return shape.partition("@")[2] or None


def parse_shape(shape: str) -> Requirement | None:
    """Read a shape back; None when it has a word that this version does not know."""
    found: dict[str, int] = {}
    for word in shape.partition("@")[0].split("."):
        match = _WORD.match(word)
        if match is None or match[1] in found:
            return None
        found[match[1]] = int(match[2])
    try:
        return Requirement(found.get("g", 1), found.get("m", 0))
    except InvalidInput:
        return None


def fits(need: Requirement, kind: str, memory_mib: int | None) -> bool:
    """Whether a device can take a job.

    Args:
        need: the job's requirement.
        kind: ``nvml``, ``simulated`` or ``cpu``; a GPU job never takes a CPU slot, nor the reverse.
        memory_mib: total or free MiB, as the question goes; None is unknown and meets no floor.
    """
    if (need.gpus == 0) != (kind == "cpu"):
        return False
    return not need.memory_mib or (memory_mib is not None and memory_mib >= need.memory_mib)
