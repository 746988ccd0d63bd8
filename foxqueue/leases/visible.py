"""What CUDA is shown: the variables of a lease, and those that this process had before one was applied."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Final

from foxqueue.gpu import Device, cuda_visible

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"

_before: dict[str, str | None] = {}
_applied: dict[str, str] = {}


def variables(devices: Sequence[Device]) -> dict[str, str]:
    """What shows CUDA these devices and no others, in this order; none at all for simulated ones and for no device."""
    how = "uuid" if any(device.mig is not None for device in devices) else "index"
    wholes = {device.whole: device for device in devices}.values()
    shown = [text for device in wholes if (text := cuda_visible(device, how))]
    return {ORDER: "PCI_BUS_ID", VISIBLE: ",".join(shown)}


def apply(shown: dict[str, str]) -> None:
    """Put the variables into this process's environment; warns where CUDA has been initialised, for then it is late."""
    if _initialised():
        warnings.warn(
            "CUDA was initialised before apply(): it goes on with the devices that it saw then; call apply() first",
            RuntimeWarning,
            stacklevel=3,
        )
    for name in (ORDER, VISIBLE):
        if os.environ.get(name) != _applied.get(name) or name not in _applied:
            _before[name] = os.environ.get(name)
        _applied[name] = os.environ[name] = shown[name]


def unapplied() -> dict[str, str]:
    """This process's environment as it would be without apply(): another lease is not bound to the first one's."""
    environ = dict(os.environ)
    for name, value in _applied.items():
        if environ.get(name) == value:
            environ.pop(name)
            if (before := _before[name]) is not None:
                environ[name] = before
    return environ


def _initialised() -> bool:
    torch = sys.modules.get("torch")
    try:
        return torch is not None and bool(torch.cuda.is_initialized())
    except (AttributeError, RuntimeError):
        return False
