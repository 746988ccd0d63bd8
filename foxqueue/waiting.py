"""Why a job waits: one word of the closed list and one sentence.

Pure: it judges what the inspector read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from foxqueue.devices import SeenDevice
from foxqueue.groups import GroupView
from foxqueue.requirement import Requirement, fits
from foxqueue.units import format_duration, format_memory

Why = tuple[str, str]

PARENTS_NAMED = 5  # parents that a sentence names
HOLDERS_NAMED = 2  # holders of leases that one names
_CONDITIONS = {"succeeded": "succeeded", "any": "any end", "failed": "failed", "ended": "replaced by this one"}


def gpu_served(devices: Iterable[SeenDevice]) -> bool:
    """Whether a live worker serves a GPU: then jobs for which a CPU slot will do wait for that."""
    return any(device.live and device.is_gpu for device in devices)


def of_its_kind(need: Requirement, devices: Sequence[SeenDevice]) -> list[SeenDevice]:
    """The devices that a job may have as things stand, memory apart."""
    served = gpu_served(devices)
    return [device for device in devices if fits(need.any_memory, device.kind, None, gpu_served=served)]


def declared_mib(device: SeenDevice, devices: Iterable[SeenDevice]) -> int:
    """MiB that runs and leases on the slots of a device have declared; 0 for a whole device."""
    if device.slot is None:
        return 0
    return sum(one.declared_mib or 0 for one in devices if one.slot is not None and one.whole == device.whole)


def has_room(need: Requirement, device: SeenDevice, devices: Iterable[SeenDevice]) -> bool:
    """Whether what the other slots of a device have declared leaves enough. One that says nothing needs all of it."""
    if device.slot is None:
        return True
    total = device.memory_total_mib or 0
    return (need.memory_mib or total) <= total - declared_mib(device, devices)


def never_fits(need: Requirement, devices: Sequence[SeenDevice]) -> str | None:
    """A sentence with the numbers when no registered device can ever meet the need, else None.

    None as well while no device of the kind is registered: one may come.
    """
    of_kind, served = of_its_kind(need, devices), gpu_served(devices)
    if not of_kind or any(fits(need, one.kind, one.memory_total_mib, gpu_served=served) for one in of_kind):
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
    of_kind, served = of_its_kind(need, devices), gpu_served(devices)
    if not of_kind:
        return _none_registered(need, devices)
    never = never_fits(need, devices)
    if never:
        return "unsatisfiable", never
    matching = [one for one in of_kind if fits(need, one.kind, one.memory_total_mib, gpu_served=served)]
    live = [device for device in matching if device.live and device.worker_state != "draining"]
    queue = f", {_jobs(ahead)} ahead" if ahead else ", next in line"
    if not live:
        return "no_worker", f"no worker is running for {_of(matching, 'matching device')}: foxqueue up{queue}"
    return _why_busy(need, live, devices, ahead, queue)


def _none_registered(need: Requirement, devices: Sequence[SeenDevice]) -> Why:
    if not devices:
        return "no_worker", "no device is registered yet: start workers with foxqueue up"
    if need.gpus == 0:
        return "no_matching_device", "no CPU slot is registered: foxqueue up --cpu 2"
    return "no_matching_device", "only CPU slots are registered, and it asks for a GPU"


def _no_room(need: Requirement, free: Sequence[SeenDevice], devices: Sequence[SeenDevice], queue: str) -> Why:
    """Where only slots are free, and what runs beside them has declared too much memory."""
    best = min(free, key=lambda device: declared_mib(device, devices) - (device.memory_total_mib or 0))
    total = format_memory(best.memory_total_mib)
    wanted = f"{format_memory(need.memory_mib)} of GPU memory" if need.memory_mib else f"all of the GPU's {total}"
    declared = format_memory(declared_mib(best, devices))
    return "memory", f"needs {wanted}, and {declared} of {total} are declared on {best.label}{queue}"


def _why_busy(
    need: Requirement, live: Sequence[SeenDevice], devices: Sequence[SeenDevice], ahead: int, queue: str
) -> Why:
    served = gpu_served(devices)
    free = [device for device in live if device.state == "free"]
    open_to = [device for device in free if has_room(need, device, devices)]
    if free and not open_to:
        return _no_room(need, free, devices, queue)
    roomy = [device for device in open_to if fits(need, device.kind, device.memory_free_mib, gpu_served=served)]
    if roomy:
        if ahead:
            return "behind", f"{_jobs(ahead)} ahead"
        return "behind", f"next in line: {roomy[0].label} is free and takes it in a moment"
    beside = any(device.slot is not None for device in open_to)  # others on the same GPU are no news there
    if any(device.state == "leased" for device in live) and not beside:
        return "devices_busy", f"{_all(live, 'matching device')} {_states(live)}{_lease_holders(live)}{queue}"
    if free:
        best = max(free, key=lambda device: device.memory_free_mib or 0)
        return "memory", (
            f"needs {format_memory(need.memory_mib)} of GPU memory, free are "
            f"{format_memory(best.memory_free_mib)} of {format_memory(best.memory_total_mib)} on {best.label}{queue}"
        )
    for state in ("occupied", "dirty", "quarantined", "paused"):
        found = [device for device in live if device.state == state]
        if found:
            detail = f" ({found[0].label}: {found[0].detail})" if found[0].detail else ""
            return (
                "occupied" if state == "dirty" else state,
                f"{_all(live, 'matching device')} {_states(live)}{detail}{queue}",
            )
    detail = next((f" ({device.label}: {device.detail})" for device in live if device.detail), "")
    return "devices_busy", f"{_all(live, 'matching device')} {_states(live)}{detail}{queue}"


def _lease_holders(devices: Sequence[SeenDevice]) -> str:
    """Who has some of them by leases, for no job tells that."""
    held = [(device, device.holder) for device in devices if device.holder is not None]
    named = [f"{device.label} by {holder.shown}" for device, holder in held[:HOLDERS_NAMED]]
    named += [f"{len(held) - HOLDERS_NAMED} more by others"] if len(held) > HOLDERS_NAMED else []
    return f" ({'; '.join(named)})" if named else ""


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
