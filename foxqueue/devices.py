"""Devices as the queue sees them: what their workers published, set right by the grants in Redis. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foxqueue import codec
from foxqueue.errors import InvalidInput, NoDevice
from foxqueue.holders import Holder, job_number, lease_token, read_holder
from foxqueue.withheld import WORDS, Withheld, read_withheld

LEAST_PREFIX = 8  # characters of a UUID that are enough to name a device

_SHOWN_STRANGERS: Final = 8
_REF = re.compile(r"(?:gpu|mig|sim|cpu):[0-9][0-9./]{0,20}\Z")
_TAKEN: Final = ("leased", "unavailable", *WORDS)  # states that say more than a pause


@dataclass(frozen=True)
class Told:
    """What Redis says of devices besides what their workers published.

    Attributes:
        granted: device -> its last grant.
        holders: device -> text of the holder of a lease.
        heard_of: devices whose lease key lives: who has another's lease is gone.
        withheld: device -> why nobody is given it.
        declared: slot -> MiB that what has it may use.
        paused: device -> by whom and why it was paused.
    """

    granted: Mapping[str, str] = field(default_factory=dict)
    holders: Mapping[str, str] = field(default_factory=dict)
    heard_of: Collection[str] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, int] = field(default_factory=dict)
    paused: Mapping[str, str] = field(default_factory=dict)

    def holder(self, device: str) -> Holder | None:
        """Who has a device, or all of the device of which it is a slot, by a lease; None when nobody has."""
        for name in dict.fromkeys((device, whole_of(device))):
            grant = self.granted.get(name, "")
            if lease_token(grant) and name in self.heard_of:
                return read_holder(grant, self.holders.get(name))
        return None

    def why_withheld(self, device: str) -> Withheld | None:
        """Why nobody is given a device, or all of the device of which it is a slot."""
        return read_withheld(self.withheld.get(device) or self.withheld.get(whole_of(device)))


def whole_of(device: str) -> str:
    """The UUID of the whole device, where a slot of one is named."""
    whole, slash, number = device.rpartition("/")
    return whole if slash and number.isdigit() else device


@dataclass(frozen=True)
class SeenDevice:
    """What its worker last saw of one device, set right by the grants in Redis.

    Attributes:
        live: whether the worker that published it was heard of lately.
        job: number of the job that has it.
        observed_ms: epoch ms of the worker's last sign of life, None when that was more than a day ago.
        slot: its number where it is a slot of a GPU, None for a whole device.
        declared_mib: memory that what has a slot may use; None where nothing has it.
        ref: its name on its machine as its worker says it, "" where that does not.
        holder: who has it by a lease.
        withheld: why nobody is given it.
        strangers: processes on it that are none of ours: pid, mib, user and command of each.
    """

    uuid: str
    index: int | None
    name: str
    kind: str
    memory_total_mib: int | None
    memory_free_mib: int | None
    utilization: int | None
    state: str
    detail: str
    job: int | None
    worker: str
    worker_state: str
    host: str
    pid: int | None
    since_ms: int | None
    observed_ms: int | None
    live: bool
    slot: int | None = None
    declared_mib: int | None = None
    ref: str = ""
    holder: Holder | None = None
    withheld: Withheld | None = None
    strangers: tuple[Mapping[str, Any], ...] = ()

    @property
    def whole(self) -> str:
        """The UUID of the whole device; its own where it is no slot."""
        return self.uuid if self.slot is None else self.uuid.removesuffix(f"/{self.slot}")

    @property
    def short(self) -> str:
        """Its name on its machine: ``sim:0``, of a slot ``gpu:0/1``, of a MIG instance ``mig:0.1``."""
        if self.ref:
            return self.ref
        prefix = {"nvml": "gpu", "simulated": "sim", "cpu": "cpu"}.get(self.kind, self.kind)
        slot = "" if self.slot is None else f"/{self.slot}"
        return f"{prefix}:{self.index}{slot}" if self.index is not None else self.uuid

    @property
    def label(self) -> str:
        """How people name it: ``sim:0 on host``."""
        return f"{self.short} on {self.host}" if self.host and self.index is not None else self.short

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, simulated ones too."""
        return self.kind != "cpu"


def seen_device(uuid: str, record: bytes, told: Told, heard: Mapping[str, int], since: int) -> SeenDevice | None:
    """One device from its worker's record.

    Args:
        uuid: of the device.
        record: ``<worker> <seq> <msgpack>``, what its worker last saw.
        told: what else Redis says.
        heard: worker -> epoch ms of its last sign of life.
        since: epoch ms; a worker unheard of since then is gone.

    Returns:
        The device; None when its record cannot be read.
    """
    read = _read(record)
    if read is None:
        return None
    worker_id, look = read
    observed = heard.get(worker_id)
    worker_state = str(look.get("worker_state") or "idle")
    left = worker_state == "lost"  # its own last word: it was told to stop, and has
    live = observed is not None and observed >= since and not left
    job, state, detail = _standing(uuid, look, told, live=live, left=left)
    if uuid in told.paused:
        state, detail = _paused(told.paused[uuid], state, detail)
    holder, ref = told.holder(uuid), str(look.get("ref") or "")
    return SeenDevice(
        uuid=uuid,
        index=number(look.get("index")),
        name=str(look.get("name") or ""),
        kind=str(look.get("kind") or "nvml"),
        memory_total_mib=number(look.get("memory_total_mib")),
        memory_free_mib=number(look.get("memory_free_mib")),
        utilization=number(look.get("utilization")),
        state=state,
        detail=detail,
        job=job,
        worker=worker_id,
        worker_state="busy" if job is not None and worker_state == "idle" else worker_state,
        host=str(look.get("host") or ""),
        pid=number(look.get("pid")),
        since_ms=number(look.get("since_ms")),
        observed_ms=observed,
        live=live,
        slot=slot_of(uuid),
        declared_mib=told.declared.get(uuid) if job is not None or holder else None,
        ref=ref if _REF.match(ref) else "",
        holder=holder,
        withheld=told.why_withheld(uuid),
        strangers=_strangers(look.get("strangers")),
    )


def leased_device(uuid: str, told: Told) -> SeenDevice | None:
    """A device that no worker has ever served, but that somebody has by a lease; None when nobody has."""
    holder = told.holder(uuid)
    if holder is None:
        return None
    return SeenDevice(
        uuid=uuid,
        index=None,
        name="",
        kind="nvml",
        memory_total_mib=None,
        memory_free_mib=None,
        utilization=None,
        state="leased",
        detail=f"by {holder.shown}; no worker serves it",
        job=None,
        worker="",
        worker_state="lost",
        host=holder.host,
        pid=None,
        since_ms=None,
        observed_ms=None,
        live=False,
        slot=slot_of(uuid),
        holder=holder,
        withheld=told.why_withheld(uuid),
    )


def slot_of(device: str) -> int | None:
    """Number of the slot that is named, None for a whole device."""
    return int(device.rpartition("/")[2]) if whole_of(device) != device else None


def _strangers(found: Any) -> tuple[Mapping[str, Any], ...]:
    """As a worker published them, what is malformed left out."""
    told = []
    for entry in (found if isinstance(found, list | tuple) else ())[:_SHOWN_STRANGERS]:
        if isinstance(entry, list | tuple) and len(entry) == 4:
            pid, mib, user, command = entry
            told.append({"pid": number(pid), "mib": number(mib), "user": str(user), "command": str(command)})
    return tuple(told)


def _read(record: bytes) -> tuple[str, dict[str, Any]] | None:
    """A record's worker and what it saw."""
    try:
        worker, _, packed = record.split(b" ", 2)
        look = codec.unpack(packed)
        return (worker.decode(), look) if isinstance(look, dict) else None
    except ValueError:
        return None


def _standing(uuid: str, look: Mapping[str, Any], told: Told, *, live: bool, left: bool) -> tuple[int | None, str, str]:
    """Which job has it, its state, and what is to be said of that."""
    grant, holder, withheld = told.granted.get(uuid, ""), told.holder(uuid), told.why_withheld(uuid)
    job, released = job_number(grant), " released:" in grant
    state, detail = str(look.get("state") or "free"), str(look.get("detail") or "")
    if not live:
        state, detail = "unavailable", "its worker was stopped" if left else "its worker is gone"
    if released and job is not None:
        detail = f"being released, {detail}" if not live else "being released"
    if live and job is not None:
        state = "leased"
    elif holder is not None:
        # What its worker says while it stands aside is that it does so.
        state, detail = "leased", "; ".join(filter(None, (f"by {holder.shown}", "" if live else detail)))
    elif live and state == "leased" and uuid not in told.granted:
        detail = "its run is of an earlier life of this queue"  # the server has lost its data since
    elif live and state in ("leased", *WORDS):
        state, detail = "free", "" if state in WORDS else detail  # that ended after the worker's last look
    if withheld is not None:
        if live and state not in ("leased", "unavailable"):
            return job, withheld.word, withheld.text
        detail = "; ".join(filter(None, (detail, f"{withheld.word}: {withheld.text}")))
    return job, state, detail


def _paused(by: str, state: str, detail: str) -> tuple[str, str]:
    return state if state in _TAKEN else "paused", "; ".join(filter(None, (f"paused by {by}", detail)))


def named(devices: Sequence[SeenDevice], ref: str) -> SeenDevice:
    """The registered device that people name.

    Args:
        devices: all that are registered.
        ref: a UUID or at least 8 characters of its beginning, or a label like ``gpu:0``, with ``@host`` or ``on host``
            behind it where several machines have one.

    Raises:
        NoDevice: none is meant.
        InvalidInput: more than one may be meant. The texts list them.
    """
    wanted = " ".join(ref.split()).lower().replace(" on ", "@")
    found = [device for device in devices if device.uuid.lower() == wanted]
    found = found or [device for device in devices if wanted in (device.short, f"{device.short}@{device.host.lower()}")]
    if not found and len(wanted) >= LEAST_PREFIX:
        found = [device for device in devices if device.uuid.lower().startswith(wanted)]
    if len(found) == 1:
        return found[0]
    there = "; ".join(f"{device.label} ({device.uuid})" for device in found or devices)
    if found:
        raise InvalidInput(f"{ref!r} may mean more than one device, give more of its name: {there}")
    raise NoDevice(f"no device {ref!r} is registered; there are: {there or 'none'}")


def device_dict(device: SeenDevice, time: Callable[[int | None], str | None]) -> dict[str, Any]:
    """The JSON object of a device.

    Args:
        device: what was seen of it.
        time: writes epoch ms.
    """
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "kind": device.kind,
        "memory_total_mib": device.memory_total_mib,
        "memory_free_mib": device.memory_free_mib,
        "utilization": device.utilization,
        "state": device.state,
        "detail": device.detail or None,
        "job": device.job,
        "worker": device.worker,
        "observed_at": time(device.observed_ms),
        "ref": device.short,
        "host": device.host,
        "slot": device.slot,
        "declared_mib": device.declared_mib,
        "holder": None if device.holder is None else holder_dict(device.holder, time),
        "withheld": None if device.withheld is None else withheld_dict(device.withheld, time),
        "strangers": [dict(stranger) for stranger in device.strangers],
    }


def holder_dict(holder: Holder, time: Callable[[int | None], str | None]) -> dict[str, Any]:
    """The JSON object of who has a device by a lease."""
    return {
        "user": holder.user,
        "host": holder.host,
        "pid": holder.pid,
        "label": holder.label or None,
        "since": time(holder.since_ms),
        "until": time(holder.until_ms),
        "fence": None if holder.fence is None else str(holder.fence),
        "taken_by": holder.taken_by or None,
    }


def withheld_dict(withheld: Withheld, time: Callable[[int | None], str | None]) -> dict[str, Any]:
    """The JSON object of why a device is withheld."""
    return {
        "word": withheld.word,
        "kind": withheld.kind or None,
        "since": time(withheld.since_ms or None),
        "text": withheld.text,
    }


def number(value: Any) -> int | None:
    """A number as a worker published it, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
