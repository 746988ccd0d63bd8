"""The exit record of a run: one small JSON file, its room taken at the start so that a full disk cannot eat it."""

# No pathlib: paths are bytes, any name goes.
# ruff: noqa: PTH104, PTH108, PTH118

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import Any, Final

RECORD_NAME: Final = "exit.json"
REPORT_NAME: Final = "return.msgpack"  # that a Python call leaves when it has returned, see workers.call
RECORD_BYTES: Final = 4096
_TEMPORARY: Final = ".exit.json.tmp"
_NO_FALLOCATE: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class RecordFile:
    """The place of a record that is still to be written.

    Args:
        run_dir: directory of the run.

    Raises:
        OSError: the directory cannot be written, or the disk is full.
    """

    def __init__(self, run_dir: bytes) -> None:
        self._temporary = os.path.join(run_dir, _TEMPORARY.encode())
        self._final = os.path.join(run_dir, RECORD_NAME.encode())
        self._fd = reserve(self._temporary, RECORD_BYTES)

    def write(self, record: dict[str, Any]) -> None:
        """Write the record and give it its name, in one step for every reader.

        Raises:
            OSError: it could not be written.
        """
        data = _fit(record)
        try:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
        finally:
            os.close(self._fd)
        os.rename(self._temporary, self._final)


def reserve(path: bytes, size: int) -> int:
    """Make a file for this user alone that has its room on the disk already.

    Args:
        path: where.
        size: bytes.

    Returns:
        A descriptor of it, to write to.

    Raises:
        OSError: it cannot be made, or the disk is full; then there is no such file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
            os.pwrite(descriptor, bytes(size), 0)
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return descriptor


def is_lack_of_room(error: BaseException | None) -> bool:
    """Whether something failed because the disk is full, or the user's share of it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _fit(record: dict[str, Any]) -> bytes:
    """The record as JSON in the room there is; the error text is cut as far as needed."""
    while True:
        data = json.dumps(record).encode("ascii")
        error = record.get("error")
        if len(data) <= RECORD_BYTES or not error:
            return data
        record = {**record, "error": error[: len(error) // 2]}
