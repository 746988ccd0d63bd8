"""What a CUDA program does, through libcuda alone. A program: ``devices``, or ``hold MIB``.

Imports the standard library only: jobs of the tests run it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import uuid

MIB = 2**20
NO_DEVICE = 100


class CudaError(Exception):
    """A call failed."""


class Cuda:
    """The driver's own interface. CUDA_VISIBLE_DEVICES counts until the first of these is made.

    Raises:
        CudaError: there is no libcuda, or it cannot be used.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"libcuda.so.1 cannot be loaded: {error}") from error
        code = self._library.cuInit(0)
        self.none = code == NO_DEVICE  # nothing is visible
        if code and not self.none:
            raise CudaError(f"cuInit: {self._text(code)}")

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'unknown').decode()} (code {code})"

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name}: {self._text(code)}")

    def devices(self) -> list[str]:
        """The 32 hexadecimal digits of the UUID of each visible device, in CUDA's order."""
        if self.none:
            return []
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        # the second version tells MIG instances apart
        name = "cuDeviceGetUuid_v2" if hasattr(self._library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        found = []
        for ordinal in range(count.value):
            data = (ctypes.c_ubyte * 16)()
            self._call(name, ctypes.byref(data), self._device(ordinal))
            found.append(uuid.UUID(bytes=bytes(data)).hex)
        return found

    def hold(self, mib: int) -> dict[str, int]:
        """Allocate memory of the first visible device; the free and total MiB that CUDA tells then."""
        context, at = ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, self._device(0))
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(mib * MIB))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free_mib": free.value // MIB, "total_mib": total.value // MIB}

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device


def main(words: list[str]) -> int:
    """Say what is seen, as JSON; ``hold`` goes on until it is killed, ``take`` ends at once."""
    try:
        cuda = Cuda()
        told: dict[str, object] = {"devices": cuda.devices(), "pid": os.getpid()}
        if words[0] in ("hold", "take"):
            told.update(cuda.hold(int(words[1])))
    except CudaError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps(told), flush=True)
    while words[0] == "hold":
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
