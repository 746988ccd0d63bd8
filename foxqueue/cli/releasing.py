"""Taking devices back: from leases, and from jobs (`lease release`, `gpus --release`)."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

from foxqueue.cli import output
from foxqueue.devices import SeenDevice, named
from foxqueue.errors import FoxqueueError, NotLeaseHolder
from foxqueue.submission import user

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.config import Config
    from foxqueue.holders import Holder
    from foxqueue.processes import ProcessId


def release_lease(fox: Client, ref: str, *, force: bool, as_json: bool) -> int:
    """End the lease of a device.

    Args:
        fox: of the queue.
        ref: names the device.
        force: take it by the queue, whoever's it is; without it only this user's on this machine is ended.
        as_json: print JSON.

    Returns:
        The exit code: 1 when nobody has it by a lease.

    Raises:
        NotLeaseHolder: it is another's, and ``force`` was not given.
        NoDevice, InvalidInput: no device is meant, or several may be.
    """
    device = device_named(fox, ref)
    holder = device.holder
    if holder is None:
        what = f"job {device.job} has it: foxqueue cancel {device.job}" if device.job else "nobody has it"
        if as_json:
            output.write_json({"device": device.uuid, "released": False, "job": None, "holder": None})
        output.say(f"there is no lease of {device.label} ({device.uuid}): {what}")
        return 1
    ours = (holder.user, holder.host) == (user(), socket.gethostname())
    if not (ours or force):
        raise NotLeaseHolder(device.uuid, holder, user(), device.label)
    process = None if force else _stoppable(fox.config, device, holder)
    asked = process is not None and process.send(signal.SIGTERM)
    if process is not None and asked:
        process.send(signal.SIGCONT)  # a stopped one takes the TERM only when it goes on
    else:
        fox.broker.force_release(device.uuid, user())
    return tell_lease(device, holder, as_json=as_json)


def device_named(fox: Client, ref: str) -> SeenDevice:
    """The device that people name, registered or leased.

    Raises:
        NoDevice, InvalidInput: as :func:`foxqueue.devices.named`.
    """
    seen = fox.inspector.seen()
    return named([*seen.devices, *seen.unserved], ref)


def tell_lease(device: SeenDevice, holder: Holder, *, as_json: bool) -> int:
    """Say that a lease is being ended. Returns the exit code."""
    from foxqueue.fleet import lease_dict

    if as_json:
        output.write_json({"device": device.uuid, "released": True, "job": None, "holder": lease_dict(holder)})
    else:
        output.write(
            f"the lease of {device.label} by {holder.shown} is being ended: the device is free when its processes "
            "are gone\n"
        )
    return 0


def _stoppable(config: Config, device: SeenDevice, holder: Holder) -> ProcessId | None:
    """The process that ends the lease when it is told to end; None for an application, which goes on without it."""
    from foxqueue.locks import DeviceLock, lock_places
    from foxqueue.processes import ProcessId

    try:
        record = DeviceLock(device.uuid, "gpu", lock_places(device.kind, config.machine_dir, os.environ)).read() or {}
    except FoxqueueError:
        return None
    same = record.get("fence") == holder.fence and record.get("stoppable") is True
    return ProcessId.named(record, "worker") if same else None
