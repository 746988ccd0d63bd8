"""Keeps a run's output file within bounds: its beginning and its end stay, and a line says what went."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

HEAD_BYTES: Final = 1024 * 1024
TAIL_BYTES: Final = 64 * 1024 * 1024
SLACK_BYTES: Final = 16 * 1024 * 1024  # more than the bound by so much before the file is touched
BLOCK_BYTES: Final = 4096  # of file systems: a hole of whole blocks gives all of them back, and the marker has one
_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_CANNOT: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_log = logging.getLogger(__name__)


class BoundedOutput:
    """The output file of one run, while its job appends to it.

    What is between the first 1 MiB and the last 64 MiB becomes a hole, so that every byte keeps its offset for who
    reads along. A file system without holes has the file cut to nothing but the line that says so: the job appends,
    so it goes on behind it. What it wrote at that very moment goes too.

    Args:
        path: of the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hole_end = HEAD_BYTES

    def trim(self, slack: int = SLACK_BYTES) -> int:
        """Drop what is too much.

        Args:
            slack: bytes that the file may have beyond its bound.

        Returns:
            Its size when it was cut, for who reads along; 0 when all bytes have their offsets still.
        """
        try:
            # Not appending: the marker has its place.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return 0  # there is none yet, or the job has put something else there
        try:
            return self._trim(descriptor, slack)
        except OSError as error:
            _log.warning("%s cannot be kept within its bound: %s", self._path, error)
            return 0
        finally:
            os.close(descriptor)

    def _trim(self, descriptor: int, slack: int) -> int:
        size = os.fstat(descriptor).st_size
        if size < self._hole_end:
            self._hole_end = HEAD_BYTES  # the job itself truncated it
        if size - self._hole_end <= TAIL_BYTES + slack:
            return 0
        end = (size - TAIL_BYTES) // BLOCK_BYTES * BLOCK_BYTES
        if end < HEAD_BYTES + BLOCK_BYTES:
            return 0
        try:
            punch(descriptor, HEAD_BYTES + BLOCK_BYTES, end - HEAD_BYTES - BLOCK_BYTES)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            return self._cut(descriptor, size) if size > HEAD_BYTES + TAIL_BYTES + SLACK_BYTES else 0
        text = f"\n[foxqueue: {end - HEAD_BYTES:,} bytes of output dropped here, it goes on at byte {end:,}]"
        os.pwrite(descriptor, text.encode().ljust(BLOCK_BYTES - 1) + b"\n", HEAD_BYTES)
        self._hole_end = end
        return 0

    def _cut(self, descriptor: int, size: int) -> int:
        os.ftruncate(descriptor, 0)
        self._hole_end = HEAD_BYTES
        with self._path.open("ab", buffering=0) as file:  # appending: the job may be writing
            file.write(f"[foxqueue: {size:,} bytes of output dropped here]\n".encode())
        return size


def punch(descriptor: int, offset: int, length: int) -> None:
    """Give the room of a part of a file back; it reads as zeros then.

    Raises:
        OSError: the file system cannot (EOPNOTSUPP and the like), or another fault.
    """
    if length <= 0:
        return
    if _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        function = libc.fallocate64  # glibc's, of 64 bits everywhere
    except AttributeError:
        function = libc.fallocate
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function
