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
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(self._temporary, flags, 0o600)
        try:
            try:
                os.posix_fallocate(self._fd, 0, RECORD_BYTES)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                os.pwrite(self._fd, bytes(RECORD_BYTES), 0)
        except OSError:
            os.close(self._fd)
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            raise

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


def _fit(record: dict[str, Any]) -> bytes:
    """The record as JSON in the room there is; the error text is cut as far as needed."""
    while True:
        data = json.dumps(record).encode("ascii")
        error = record.get("error")
        if len(data) <= RECORD_BYTES or not error:
            return data
        record = {**record, "error": error[: len(error) // 2]}
