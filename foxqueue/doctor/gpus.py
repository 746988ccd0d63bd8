"""Looks at NVIDIA's library, its Python binding, and the devices."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from foxqueue import nvml, survey
from foxqueue.devices import SeenDevice
from foxqueue.doctor.check import Check, make
from foxqueue.doctor.machine import locks
from foxqueue.nvml import NvmlFault

KINDS = {"simulated": "simulated devices", "cpu": "CPU slots"}
_NO_GPU_HERE = "none needed on a machine that only submits; else --simulate 2x24G or --cpu 2"


def binding() -> Check:
    """Whether the module ``pynvml`` is nvidia-ml-py's."""
    try:
        nvml.load_binding()
    except NvmlFault as fault:
        detail, _, cure = str(fault).partition(": ")
        return Check("binding", False, detail, cure)
    return Check("binding", True, f"nvidia-ml-py {nvml.binding_version()}")


def driver(served: str) -> Check:
    """Whether NVIDIA's library and driver answer, and fit each other.

    Args:
        served: what is served here that needs no GPU; empty for nothing.
    """
    try:
        found = nvml.versions()
    except NvmlFault as fault:
        told = loaded_module()
        detail = f"{fault} (loaded kernel module: {told})" if told else str(fault)
        if served and not told:
            return Check("nvml", True, f"{served} are served here; {detail}: not needed")
        return Check("nvml", False, detail, _NO_GPU_HERE if not told else "see the text, and dmesg")
    return Check("nvml", True, f"NVML {found.library}, driver {found.driver}, CUDA up to {found.cuda}")


def loaded_module(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of NVIDIA's kernel module that is loaded; empty when none is."""
    try:
        found = re.search(r"Kernel Module.*?\s([0-9]+\.[0-9.]+)\s", path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def devices(served: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Which GPUs a worker would find here, and where their locks lie."""
    found = survey.survey(None, 0, "doctor", socket.gethostname(), environ)
    real = [device for device in found.devices if device.kind == "nvml"]
    if real:
        yield Check("devices", True, ", ".join(f"{device.name} ({device.uuid})" for device in real))
        unknown = [device.ref for device in real if device.memory_total_mib is None]
        if unknown:
            detail = f"the driver does not tell the memory of {', '.join(unknown)} (unified memory does so)"
            yield Check("gpu_memory", False, detail, "jobs that ask for --gpu-memory never run there; leave it out")
        yield from make("locks", lambda: locks(environ))
    elif served:
        yield Check("devices", True, f"{served} are served here; {found.no_gpu or 'no GPU'}: not needed")
    else:
        yield Check("devices", False, found.no_gpu or "no GPU", _NO_GPU_HERE)
    for note in found.notes:
        yield Check("devices", False, note, "see the text")


def served_here(registered: Sequence[SeenDevice]) -> str:
    """What this machine's live workers serve when none of it is a GPU: ``simulated devices``; else empty."""
    here = [device for device in registered if device.live and device.host == socket.gethostname()]
    if not all(device.kind in KINDS for device in here):
        return ""
    return " and ".join(sorted({KINDS[device.kind] for device in here}))
