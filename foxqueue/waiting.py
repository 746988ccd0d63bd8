"""Why a job waits: one word of the closed list and one sentence.

Pure: it judges what the inspector read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foxqueue.devices import SeenDevice
from foxqueue.groups import GroupView
from foxqueue.requirement import Requirement, fits
from foxqueue.units import format_duration, format_memory

Why = tuple[str, str]

PARENTS_NAMED = 5  # parents that a sentence names
_CONDITIONS = {"succeeded": "succeeded", "any": "any end", "failed": "failed", "ended": "replaced by this one"}


def never_fits(need: Requirement, devices: Sequence[SeenDevice]) -> str | None:
    """A sentence with the numbers when no registered device can ever meet the need, else None.

    None as well while no device of the kind is registered: one may come.
    """
    of_kind = [device for device in devices if fits(Requirement(need.gpus), device.kind, None)]
    if not of_kind or any(fits(need, device.kind, device.memory_total_mib) for device in of_kind):
        return None
    known = [device for device in of_kind if device.memory_total_mib is not None]
    if not known:
        return (
            f"needs {format_memory(need.memory_mib)} of GPU memory, and no registered device can tell how much it has"
        )
    largest = max(known, key=lambda device: device.memory_total_mib or 0)
    return (
        f"needs {format_memory(need.memory_mib)} of GPU memory, and the largest registered device has "
        f"{format_memory(largest.memory_total_mib)} ({largest.label})"
    )


def why_scheduled(attempts: int, due_in_ms: int | None) -> Why:
    """Why a job of the state ``scheduled`` waits."""
    when = "soon" if due_in_ms is None or due_in_ms < 1000 else f"in {format_duration(due_in_ms / 1000)}"
    if attempts:
        return "backoff", f"attempt {attempts} failed, the next one is due {when}"
    return "scheduled", f"due {when}"


def why_blocked(held: str | None, parents: Mapping[int, str], still_open: int) -> Why:
    """Why a job of the state ``blocked`` waits.

    Args:
        held: by whom it is held, None when it is not.
        parents: jobs that it waits for, or waited for at its submission -> the condition.
        still_open: how many of them it waits for.
    """
    also = f", and held by {held}" if held else ""
    if not still_open:
        return "held", f"held by {held}: foxqueue unhold" if held else "about to be queued"
    named = [f"{parent} ({_CONDITIONS.get(cond, cond)})" for parent, cond in list(parents.items())[:PARENTS_NAMED]]
    more = max(len(parents), still_open) - len(named)
    named += [f"{more:,} more"] if more > 0 else []
    of = f"{still_open:,} of " if still_open < len(parents) else ""
    if not parents:
        return "dependencies", f"waits for {_jobs(still_open)}{also}"
    return "dependencies", f"waits for {of}{_listed(named)}{also}"


def why_held_back(paused: str | None, group: GroupView | None) -> Why | None:
    """Why a pending job may not start whatever the devices do; None when it may.

    Args:
        paused: by whom and why the namespace is paused, None when it is not.
        group: of the job, if it has one.
    """
    if paused is not None:
        return "paused", f"paused by {paused}"
    if group is None or not group.held_back:
        return None
    if group.filling:
        return "held", f"its group {group.name} is still being enqueued"
    if group.paused is not None:
        return "paused", f"group {group.name} is paused by {group.paused}"
    return "limit", f"group {group.name} runs {group.running} at once, its most"


def why_waiting(need: Requirement | None, devices: Sequence[SeenDevice], ahead: int) -> Why:
    """Why a pending job waits.

    Args:
        need: what it asks of a device; None when this version cannot read it.
        devices: all that are registered.
        ahead: how many jobs for the same kind of device would run before it.
    """
    if need is None:
        return "no_matching_device", "asks for something that this version of foxqueue does not know"
    of_kind = [device for device in devices if fits(Requirement(need.gpus), device.kind, None)]
    if not of_kind:
        return _none_registered(need, devices)
    never = never_fits(need, devices)
    if never:
        return "unsatisfiable", never
    matching = [device for device in of_kind if fits(need, device.kind, device.memory_total_mib)]
    live = [device for device in matching if device.live and device.worker_state != "draining"]
    queue = f", {_jobs(ahead)} ahead" if ahead else ", next in line"
    if not live:
        return "no_worker", f"no worker is running for {_of(matching, 'matching device')}: foxqueue up{queue}"
    return _why_busy(need, live, ahead, queue)


def _none_registered(need: Requirement, devices: Sequence[SeenDevice]) -> Why:
    if not devices:
        return "no_worker", "no device is registered yet: start workers with foxqueue up"
    if need.gpus == 0:
        return "no_matching_device", "no CPU slot is registered: foxqueue up --cpu 2"
    return "no_matching_device", "only CPU slots are registered, and it asks for a GPU"


def _why_busy(need: Requirement, live: Sequence[SeenDevice], ahead: int, queue: str) -> Why:
    free = [device for device in live if device.state == "free"]
    roomy = [device for device in free if fits(need, device.kind, device.memory_free_mib)]
    if roomy:
        if ahead:
            return "behind", f"{_jobs(ahead)} ahead"
        return "behind", f"next in line: {roomy[0].label} is free and takes it in a moment"
    if any(device.state == "leased" for device in live):
        return "devices_busy", f"{_all(live, 'matching device')} {_states(live)}{queue}"
    if free:
        best = max(free, key=lambda device: device.memory_free_mib or 0)
        return "memory", (
            f"needs {format_memory(need.memory_mib)} of GPU memory, free are "
            f"{format_memory(best.memory_free_mib)} of {format_memory(best.memory_total_mib)} on {best.label}{queue}"
        )
    for state in ("occupied", "quarantined", "paused"):
        found = [device for device in live if device.state == state]
        if found:
            detail = f" ({found[0].label}: {found[0].detail})" if found[0].detail else ""
            return state, f"{_all(live, 'matching device')} {_states(live)}{detail}{queue}"
    detail = next((f" ({device.label}: {device.detail})" for device in live if device.detail), "")
    return "devices_busy", f"{_all(live, 'matching device')} {_states(live)}{detail}{queue}"


def _states(devices: Sequence[SeenDevice]) -> str:
    """``are leased``, or ``are taken: 1 leased, 1 occupied``."""
    counts: dict[str, int] = {}
    for device in devices:
        counts[device.state] = counts.get(device.state, 0) + 1
    if len(counts) == 1:
        return f"{'is' if len(devices) == 1 else 'are'} {devices[0].state}"
    return "are taken: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def _all(devices: Sequence[SeenDevice], noun: str) -> str:
    if len(devices) == 1:
        return f"the {noun}"
    return f"both {noun}s" if len(devices) == 2 else f"all {len(devices)} {noun}s"


def _of(devices: Sequence[SeenDevice], noun: str) -> str:
    return f"the {noun}" if len(devices) == 1 else f"any of the {len(devices)} {noun}s"


def _listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
