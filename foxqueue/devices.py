"""Devices as the queue sees them: what their workers published, set right by the grants in Redis. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foxqueue import codec
from foxqueue.errors import InvalidInput, NoDevice

LEAST_PREFIX = 8  # characters of a UUID that are enough to name a device


@dataclass(frozen=True)
class SeenDevice:
    """What its worker last saw of one device, set right by the grants in Redis.

    Attributes:
        live: whether the worker that published it was heard of lately.
        job: number of the job that has it.
        observed_ms: epoch ms of the worker's last sign of life, None when that was more than a day ago.
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

    @property
    def short(self) -> str:
        """Its name on its machine: ``sim:0``."""
        prefix = {"nvml": "gpu", "simulated": "sim", "cpu": "cpu"}.get(self.kind, self.kind)
        return f"{prefix}:{self.index}" if self.index is not None else self.uuid

    @property
    def label(self) -> str:
        """How people name it: ``sim:0 on host``."""
        return f"{self.short} on {self.host}" if self.host and self.index is not None else self.short

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, simulated ones too."""
        return self.kind != "cpu"


def seen_device(
    uuid: str,
    record: bytes,
    granted: Mapping[str, str],
    heard: Mapping[str, int],
    since: int,
    paused: Mapping[str, str] | None = None,
) -> SeenDevice | None:
    """One device from its worker's record.

    Args:
        uuid: of the device.
        record: ``<worker> <seq> <msgpack>``, what its worker last saw.
        granted: device -> its last grant.
        heard: worker -> epoch ms of its last sign of life.
        since: epoch ms; a worker unheard of since then is gone.
        paused: device -> by whom and why it was paused.

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
    job, state, detail = _standing(uuid, look, granted, live=live, left=left)
    if paused and uuid in paused:
        state, detail = _paused(paused[uuid], state, detail)
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
    )


def _read(record: bytes) -> tuple[str, dict[str, Any]] | None:
    """A record's worker and what it saw."""
    try:
        worker, _, packed = record.split(b" ", 2)
        look = codec.unpack(packed)
        return (worker.decode(), look) if isinstance(look, dict) else None
    except ValueError:
        return None


def _standing(
    uuid: str, look: Mapping[str, Any], granted: Mapping[str, str], *, live: bool, left: bool
) -> tuple[int | None, str, str]:
    """Which job has it, its state, and what is to be said of that."""
    holder = granted.get(uuid, "").partition(" ")[2]
    role, _, text = holder.partition(":")
    job = int(text) if role in ("job", "released") and text.isdigit() else None
    state, detail = str(look.get("state") or "free"), str(look.get("detail") or "")
    if not live:
        state, detail = "unavailable", "its worker was stopped" if left else "its worker is gone"
    if role == "released" and job is not None:
        detail = f"being released, {detail}" if not live else "being released"
    if live and job is not None:
        state = "leased"
    elif live and holder == "dirty":
        state = "dirty"
    elif live and state == "leased" and uuid not in granted:
        detail = "its run is of an earlier life of this queue"  # the server has lost its data since
    elif live and state == "leased":
        state = "free"  # the grant ended after the worker's last look
    return job, state, detail


def _paused(by: str, state: str, detail: str) -> tuple[str, str]:
    return state if state in ("leased", "unavailable") else "paused", "; ".join(
        filter(None, (f"paused by {by}", detail))
    )


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


def device_dict(device: SeenDevice, observed_at: str | None) -> dict[str, Any]:
    """The JSON object of a device."""
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
        "observed_at": observed_at,
    }


def number(value: Any) -> int | None:
    """A number as a worker published it, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
