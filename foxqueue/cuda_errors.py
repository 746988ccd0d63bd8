"""Errors of CUDA and its driver that speak against the device, not against the program: a closed list. Pure.

Texts are those of cudaGetErrorString, names those of ``enum cudaError`` (CUDA Runtime API, "Data types used by CUDA
Runtime") and ``enum CUresult`` (CUDA Driver API, "Data types used by CUDA driver"), as programs, PyTorch, TensorFlow,
JAX, CuPy, Numba and NCCL print them. PyTorch's own sentence is that of c10/cuda/CUDAFunctions.cpp.

Left out is what a program, or the environment that it brings along, does to itself: out of memory (2), no device or a
wrong one (100, 101: it set CUDA_VISIBLE_DEVICES), no kernel image (209), illegal address (700), launch time-out (702),
device-side assert (710), launch failure (719), errors of cuDNN and cuBLAS, which follow from others. So is what looks
like the driver's fault and most often is not: initialization error (3: CUDA after a fork), OS call failed (304: CUDA
IPC in a container), unsupported driver combination (803: compatibility libraries of a container).
"""

from __future__ import annotations

import re
from typing import Final

# What is looked for, as a regular expression, and its code in both tables where it has one.
SIGNS: Final[dict[str, int | None]] = {
    # Busy or unavailable, though the queue gave it to nobody else.
    r"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable": 46,
    r"CUDA_ERROR_DEVICE_UNAVAILABLE|cudaErrorDevicesUnavailable": 46,
    r"uncorrectable ECC error encountered": 214,
    r"CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable": 214,
    r"uncorrectable NVLink error detected": 220,
    r"CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorNvlinkUncorrectable": 220,
    r"CUDA (?:error|ERROR): hardware stack error": 714,
    r"CUDA_ERROR_HARDWARE_STACK_ERROR|cudaErrorHardwareStackError": 714,
    # On machines with NVSwitch the fabric manager does not run.
    r"system not yet initialized": 802,
    r"CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady": 802,
    # What a GPU gives that has fallen off the bus, hangs, or was left in a sticky error.
    r"CUDA (?:error|ERROR): unknown error": 999,
    r"cuda runtime error \(999\)|Cuda failure (?:999 )?'unknown error'": 999,
    r"CUDA_ERROR_UNKNOWN|cudaErrorUnknown": 999,
    r"CUDA unknown error - this may be due to an incorrectly set up environment": 999,
    # NVML's words, which nvidia-smi prints too.
    r"Driver/library version mismatch": None,
    r"GPU is lost": None,
    r"Unable to determine the device handle for GPU": None,
}
_ANY: Final = re.compile("|".join(f"(?:{sign})" for sign in SIGNS))
TAIL_BYTES: Final = 64 * 1024


def sign_in(output: str) -> str | None:
    """The line of a run's output that speaks against its device, shortened; None when there is none.

    Args:
        output: its end.
    """
    found = [*_ANY.finditer(output)]
    if not found:
        return None
    match = found[-1]
    begin = output.rfind("\n", 0, match.start()) + 1
    end = output.find("\n", match.end())
    line = "".join(char if char.isprintable() else " " for char in output[begin : end if end >= 0 else None])
    return line.strip() if len(line.strip()) <= 160 else match[0]
