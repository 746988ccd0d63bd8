"""What somebody wants of a lease, checked before anything is done. Pure."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

from foxqueue.errors import InvalidInput, LeaseError, LeaseLost
from foxqueue.gpu import Device
from foxqueue.holders import MAX_LABEL
from foxqueue.units import DEFAULT_PRIORITY, parse_memory, parse_priority
from foxqueue.when import seconds

MAX_MANY = 64  # devices of one lease

GpuRef = str | int | Device
OnWait = Callable[[LeaseError], object]
OnLost = Callable[[LeaseLost], object]

MOST_KNOWN = 256
_known: dict[Any, Wish] = {}


class Options(TypedDict, total=False):
    """What every way to acquire takes.

    Keys:
        holder: what the lease is for, at most 60 characters, shown to others; the name of the program by default.
        timeout: seconds, or text like ``30s``, to wait; 0 tries once, None (the default) waits for ever.
        priority: rank in line like a job's, 0 to 9 or low, medium, high; 5 by default.
        memory: that must be free, text like ``8G``, or MiB. On a slot it is what the lease may use of the GPU.
        until: epoch seconds until which the device is meant to be held, shown to others; nothing ends it then.
        lasting: the same as a time from the grant on, seconds or text like ``2h``.
        lost: called with a LeaseLost, in a thread, when the lease is lost; in place of that of the GpuLeases.
        on_wait: called with the error that says whom it waits for, when it has to wait and whenever that changes.
        no_gpu_ok: where there is no GPU at all, a lease of no device will do; its ``env`` hides all GPUs.
    """

    holder: str | None
    timeout: float | str | None
    priority: int | str
    memory: int | str | None
    until: float | None
    lasting: float | str | None
    lost: OnLost | None
    on_wait: OnWait | None
    no_gpu_ok: bool


@dataclass(frozen=True)
class Wish:
    """A checked request.

    Attributes:
        gpu: the one device that will do; None for any.
        count: how many devices.
        memory_mib: that must be free on each; 0 for any.
        timeout_s: how long to wait; None for ever, 0 not at all.
        priority: rank in line, 0 to 9.
        label: what it is for, in the holder's words.
        until_ms: epoch ms until which it is meant to be held.
        no_gpu_ok: a lease of no device will do where there is no GPU.
        on_wait: told with the error whom it waits for, whenever that changes.
        lost: told of a loss.
        lasting_s: how long it is meant to be held from the grant on.
    """

    gpu: GpuRef | None
    count: int
    memory_mib: int
    timeout_s: float | None
    priority: int
    label: str
    until_ms: int | None
    no_gpu_ok: bool
    on_wait: OnWait | None
    lost: OnLost | None = None
    lasting_s: float | None = None


def wish(
    gpu: Any = None,
    count: Any = 1,
    *,
    holder: Any = None,
    timeout: Any = None,
    priority: Any = DEFAULT_PRIORITY,
    memory: Any = None,
    until: Any = None,
    lasting: Any = None,
    no_gpu_ok: bool = False,
    on_wait: OnWait | None = None,
    lost: OnLost | None = None,
) -> Wish:
    """Check a request.

    Args:
        gpu: index, ``gpu:0``, UUID or the beginning of one, or a device; None for any.
        count: of devices.
        holder: what it is for, at most 60 characters; the name of the program by default.
        timeout: seconds, or text like ``30s``; 0 tries once, None waits for ever.
        priority: 0 to 9, or low, medium, high.
        memory: text like ``8G``, or MiB; None for any.
        until, lasting: until when, or how long, it is meant to be held, shown to others.
        no_gpu_ok, on_wait, lost: see :class:`Options`.

    Raises:
        InvalidInput: one of them is malformed.
    """
    if gpu is not None:
        check_ref(gpu)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_MANY:
        raise InvalidInput(f"{count!r:.60} devices are not possible: give a whole number from 1 to {MAX_MANY}")
    return Wish(
        gpu,
        count,
        _memory(memory),
        None if timeout is None else seconds(timeout, "timeout"),
        parse_priority(priority),
        label_of(holder),
        _until(until),
        bool(no_gpu_ok),
        _callback(on_wait, "on_wait"),
        _callback(lost, "lost"),
        _lasting(lasting, until),
    )


def wished(gpu: Any, count: Any, options: Options) -> Wish:
    """As :func:`wish`; what was asked for before is not checked again."""
    try:
        words = [gpu, count, *options, *options.values()]
        key = (*words, *map(type, words))
        known = _known.get(key)
    except TypeError:  # something that cannot be a key
        return wish(gpu, count, **options)
    if known is None:
        known = wish(gpu, count, **options)
        if options.get("until") is None:  # which may be over by then
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[key] = known
    return known


def check_ref(gpu: Any) -> None:
    """Raise InvalidInput unless ``gpu`` may name a device."""
    if isinstance(gpu, Device) or (isinstance(gpu, str) and gpu.strip()):
        return
    if isinstance(gpu, bool) or not isinstance(gpu, int) or gpu < 0:
        raise InvalidInput(f"device {gpu!r:.60} is not understood: give an index like 0, gpu:0, sim:0 or a UUID")


def label_of(holder: Any) -> str:
    """What a lease is for, by default the program.

    Raises:
        InvalidInput: it is no text, or too long.
    """
    if holder is None:
        return default_label()
    if not isinstance(holder, str) or not holder.strip() or len(holder) > MAX_LABEL:
        raise InvalidInput(f"holder {holder!r:.80} is not possible: give a text of 1 to {MAX_LABEL} characters")
    return holder.strip()


def default_label() -> str:
    """Name of this program: that of its script or module, else of the interpreter."""
    script = sys.argv[0] if sys.argv else ""
    name = os.path.basename(script if script not in ("", "-c", "-m") else sys.executable or "python")  # noqa: PTH119
    return name[:MAX_LABEL] or "python"


def _memory(memory: Any) -> int:
    if memory is None:
        return 0
    how = "give text like '8G' or '512M', or a whole number of MiB above 0"
    if isinstance(memory, str):
        mib = parse_memory(memory)
    elif isinstance(memory, int) and not isinstance(memory, bool) and memory <= 2**30:
        mib = memory
    else:
        raise InvalidInput(f"memory {memory!r:.60} is not understood: {how}")
    if mib < 1:
        raise InvalidInput(f"memory {memory!r:.60} is not possible: {how}, or leave it out for any")
    return mib


def _until(until: Any) -> int | None:
    if until is None:
        return None
    now = time.time()
    if isinstance(until, bool) or not isinstance(until, int | float) or not now < until < now + 366 * 86400:
        raise InvalidInput(f"until {until!r:.60} is not possible: give epoch seconds within a year from now")
    return round(until * 1000)


def _callback(function: Any, name: str) -> Any:
    if function is not None and not callable(function):
        raise InvalidInput(f"{name} {function!r:.60} cannot be called: give a function, or leave it out")
    return function


def _lasting(lasting: Any, until: Any) -> float | None:
    if lasting is None:
        return None
    if until is not None:
        raise InvalidInput("until and lasting are two answers to one question: give the one or the other")
    found = seconds(lasting, "lasting")
    if found <= 0:
        raise InvalidInput(f"lasting {lasting!r:.60} is not possible: give a time above 0, like '2h'")
    return found
