"""What a job needs of a device, spelt as a shape: jobs of one shape share one sorted set.

A shape is words joined by dots, in this order: ``g<count>`` GPUs, ``m<MiB>`` memory floor, ``c1`` where a CPU slot
will do while there is no GPU. A worker that
meets a word it does not know (from a newer version) leaves the shape alone. Jobs of a group have sets of their own,
because a group may be held back as a whole: ``g1.m8192@lr-sweep``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from foxqueue.errors import InvalidInput

_GROUP = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_WORD = re.compile(r"([gmc])([0-9]{1,9})\Z")


@dataclass(frozen=True)
class Requirement:
    """GPUs (0 is a CPU slot) and the memory floor of each, in MiB (0: none).

    Attributes:
        no_gpu_ok: a CPU slot will do as long as no GPU is served.
    """

    gpus: int = 1
    memory_mib: int = 0
    no_gpu_ok: bool = False

    def __post_init__(self) -> None:
        if self.gpus not in (0, 1):
            raise InvalidInput(f"{self.gpus} GPUs cannot be asked for: give 0 (a CPU slot) or 1")
        if self.gpus == 0 and self.memory_mib:
            raise InvalidInput("GPU memory without a GPU: leave --gpu-memory out, or ask for --gpus 1")
        if self.gpus == 0 and self.no_gpu_ok:
            raise InvalidInput("--no-gpu-ok (no_gpu_ok) with --gpus 0: that asks for a CPU slot anyway, leave one out")

    @property
    def shape(self) -> str:
        """The canonical spelling."""
        floor = f".m{self.memory_mib}" if self.memory_mib else ""
        return f"g{self.gpus}{floor}{'.c1' if self.no_gpu_ok else ''}"

    @property
    def any_memory(self) -> Requirement:
        """The same without the floor: what kind of device it asks for."""
        return Requirement(self.gpus, 0, self.no_gpu_ok)


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
    if found.get("c", 1) != 1:
        return None
    try:
        return Requirement(found.get("g", 1), found.get("m", 0), "c" in found)
    except InvalidInput:
        return None


def fits(need: Requirement, kind: str, memory_mib: int | None, *, gpu_served: bool = True) -> bool:
    """Whether a device can take a job.

    Args:
        need: the job's requirement.
        kind: ``nvml``, ``simulated`` or ``cpu``. A CPU job never takes a GPU; a GPU job takes a CPU slot only where
            that will do and no GPU is served.
        memory_mib: total or free MiB, as the question goes; None is unknown and meets no floor.
        gpu_served: whether a live worker serves a GPU of the namespace.
    """
    if kind == "cpu":
        return need.gpus == 0 or (need.no_gpu_ok and not gpu_served)
    if need.gpus == 0:
        return False
    return not need.memory_mib or (memory_mib is not None and memory_mib >= need.memory_mib)
