"""nvidia-ml-py's module ``pynvml``: which one it is, how it is called, and what its errors mean.

The only module that imports it.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from foxqueue.bounded import BoundedCaller
from foxqueue.errors import FoxqueueError

Fault = Literal["", "lost", "unknown", "mismatch", "hang", "other"]

# Codes of NVML's ABI that mean "this GPU or driver does not tell", not that something is broken: NOT_SUPPORTED,
# NO_PERMISSION, FUNCTION_NOT_FOUND, NO_DATA, ARGUMENT_VERSION_MISMATCH, DEPRECATED.
_NOT_TOLD = frozenset({3, 4, 13, 21, 25, 26})
NOT_FOUND = 6
_FAULTS = {
    4: "no permission to ask the NVIDIA driver: let this user open /dev/nvidia*",
    NOT_FOUND: "the driver no longer knows a GPU with this UUID",
    9: "the NVIDIA driver is not loaded: load it (modprobe nvidia) or reboot",
    10: "the NVIDIA driver timed out: see dmesg for Xid lines",
    12: "NVIDIA's library libnvidia-ml.so.1 is absent: no NVIDIA driver is installed",
    13: "the NVIDIA driver is too old for NVML: install a newer one",
    15: "the GPU is lost (fell off the bus): reset it or reboot",
    16: "the GPU needs a reset: nvidia-smi --gpu-reset, or reboot",
    18: "driver upgraded, reboot: NVIDIA's library and the loaded kernel module differ in version",
}
# A GPU that fell off the bus is known no more once NVML was opened anew: NOT_FOUND, GPU_NOT_FOUND.
_KINDS: dict[int, Fault] = {
    NOT_FOUND: "lost",
    10: "hang",
    15: "lost",
    16: "lost",
    18: "mismatch",
    28: "lost",
    999: "unknown",
}
_NEEDED = ("nvmlInit", "nvmlMemory_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
_LIBRARY = "/libnvidia-ml.so"
_UPGRADED = (
    "driver upgraded, reboot: NVIDIA's library was replaced since this process started (where the kernel "
    "module was reloaded too, a restart of the process will do)"
)


class NvmlFault(FoxqueueError):
    """NVML cannot be used, or says that a GPU cannot. The text says why and, where there is one, the cure.

    Attributes:
        kind: ``lost``: off the bus, gone, or in need of a reset. ``unknown``: NVML's "unknown error". ``mismatch``:
            library and kernel module differ. ``hang``: a call did not come back, or the driver timed out.
            ``other``: anything else.
    """

    def __init__(self, text: str, kind: Fault = "other") -> None:
        super().__init__(text)
        self.kind: Fault = kind


class NvmlCaller(BoundedCaller):
    """Makes calls to NVML; one that does not come back in time raises NvmlFault."""

    def __init__(self) -> None:
        super().__init__("nvml", _silent)


def _silent(seconds: float) -> NvmlFault:
    return NvmlFault(f"the NVIDIA driver has not answered for {seconds:.1f} s: see dmesg for Xid lines", "hang")


# --- which module it is --------------------------------------------------------------------------------


def load_binding() -> Any:
    """Import nvidia-ml-py's module ``pynvml`` and return it.

    Raises:
        NvmlFault: it is missing, or another ``pynvml`` stands in its place.
    """
    spec = importlib.util.find_spec("pynvml")
    if spec is None:
        raise NvmlFault("the Python package nvidia-ml-py is missing: pip install nvidia-ml-py")
    foreign = NvmlFault(
        f"{spec.origin} is a foreign module pynvml that stands in nvidia-ml-py's place: "
        "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
    )
    if not _is_nvidias(Path(spec.origin or "")):
        raise foreign  # before any of its code runs
    import pynvml

    if not all(hasattr(pynvml, name) for name in _NEEDED):
        raise foreign
    return pynvml


def _is_nvidias(origin: Path) -> bool:
    return _owns("nvidia-ml-py", origin) and not _owns("pynvml", origin)


def _owns(distribution: str, origin: Path) -> bool:
    """Whether the installed distribution lists the file. One without a list owns all, as we depend on it."""
    from importlib import metadata  # costs 15 ms, which only machines that ask NVML should pay

    try:
        files = metadata.files(distribution)
    except metadata.PackageNotFoundError:
        return False
    if files is None:
        return distribution == "nvidia-ml-py"
    real = origin.resolve()
    return any(file.name == real.name and Path(str(file.locate())).resolve() == real for file in files)


def binding_version() -> str:
    """Version of nvidia-ml-py; ``unknown`` when it was installed without its metadata."""
    from importlib import metadata

    try:
        return metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return "unknown"


# --- calling it ----------------------------------------------------------------------------------------


def open_nvml() -> Any:
    """Open NVML, which counts how often, and return the binding.

    Raises:
        NvmlFault: it cannot be opened.
    """
    pynvml = load_binding()
    ask(pynvml, "nvmlInit")
    return pynvml


def shut_down(pynvml: Any) -> None:
    """Close NVML once."""
    with suppress(pynvml.NVMLError):  # a driver that is gone cannot be closed either
        pynvml.nvmlShutdown()


def ask(pynvml: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the binding.

    Raises:
        NvmlFault: in place of its errors.
    """
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        raise _fault(name, error) from error


def ask_if_told(pynvml: Any, name: str, *arguments: Any) -> Any | None:
    """As `ask`, but None for what the GPU or the driver does not tell."""
    function = getattr(pynvml, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_TOLD:
            return None
        raise _fault(name, error) from error


def _fault(name: str, error: Any) -> NvmlFault:
    text = _FAULTS.get(error.value) or f"the NVIDIA driver answers {name} with: {error} (code {error.value})"
    return NvmlFault(text, _KINDS.get(error.value, "other"))


def text_of(value: str | bytes) -> str:
    """Text, whichever of both a version of the binding gives."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


# --- whether the driver was upgraded under us ----------------------------------------------------------


class _Library:
    """The file that NVIDIA's library was loaded from, once a process: it is never loaded again."""

    def __init__(self) -> None:
        self._known: tuple[str, int, int] | None = None

    def replaced(self) -> bool:
        """Whether the file is gone or another one."""
        if self._known is None:
            return self._find()
        path, *identity = self._known
        try:
            found = os.stat(path)  # noqa: PTH116 - at every look: a Path costs more than the call
        except OSError:
            return self._find()
        return [found.st_dev, found.st_ino] != identity and self._find()

    def _find(self) -> bool:
        """Look it up among what is mapped, which takes as long as several calls to NVML. True when it is deleted."""
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        lines = [line for line in maps.splitlines() if _LIBRARY in line]
        if any(line.endswith(" (deleted)") for line in lines):
            return True
        for line in lines:
            path = line.split(maxsplit=5)[5]
            with suppress(OSError):
                found = os.stat(path)  # noqa: PTH116
                self._known = (path, found.st_dev, found.st_ino)
        return False


_library = _Library()


def check_driver(pynvml: Any) -> None:
    """Find out whether the driver was upgraded under us: what is open goes on working, a new job would not.

    Opening NVML once more is what tells of a mismatch, and costs nothing: it is counted. The library in this process
    is the old one, though, and agrees with the old driver; then the file it came from is gone.

    Raises:
        NvmlFault: it was.
    """
    ask(pynvml, "nvmlInit")
    shut_down(pynvml)
    if _library.replaced():
        raise NvmlFault(_UPGRADED, "mismatch")
