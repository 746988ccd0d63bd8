"""Relays the tail of a run's output file to Redis, in pieces that carry their offset."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from foxqueue.broker import Broker
from foxqueue.errors import ServerError, ServerRefused, ServerUnavailable

TAIL_BYTES = 64 * 1024
PIECE_BYTES = 16 * 1024
REFUSED_S = 2.0  # that the end of a run waits for output which a full server refuses: it is in the file

_log = logging.getLogger(__name__)


class LogTail:
    """The output of one run.

    Args:
        broker: where to send.
        number: of the job.
        fence: of the run.
        path: the output file.
        sent: bytes of it that Redis has already.
    """

    def __init__(self, broker: Broker, number: int, fence: str, path: Path, sent: int = 0) -> None:
        self._broker = broker
        self._number = number
        self._fence = fence
        self._path = path
        self._read = sent  # up to here the file was read
        self._sent = sent  # bytes of output there have been, what was skipped included: never falls
        self._refused_at: float | None = None  # time.monotonic() of the first refusal since something was taken

    def pump(self) -> bool:
        """Send what is new, at most its last 64 KiB: a job that writes faster is shown its end.

        Returns:
            Whether the end of the run may be told now: all that was there is sent, or the server refuses it for some
            time, as a full one does, which takes ends all the same. False when Redis is away.
        """
        pieces = self._pieces()
        if not pieces:
            return True
        calls = [
            self._broker.log_call(self._number, self._fence, offset, _keep_from(offset), data)
            for offset, data in pieces
        ]
        try:
            self._broker.send(*calls)
        except (ServerUnavailable, ServerRefused) as error:
            return self._may_do_without(error)
        except ServerError as error:
            _log.warning("job %d: its output cannot be sent: %s", self._number, error)
        self._refused_at = None
        offset, data = pieces[-1]
        self._read += offset + len(data) - self._sent
        self._sent = offset + len(data)
        return True

    def _may_do_without(self, error: ServerError) -> bool:
        """Whether pieces have been refused for long. They are not given up: the next call sends them again."""
        if not isinstance(error, ServerUnavailable) or error.passing or not error.definite:
            return False
        if self._refused_at is None:
            _log.warning("job %d: its output is in its file alone for now: %s", self._number, error)
            self._refused_at = time.monotonic()
        return time.monotonic() - self._refused_at >= REFUSED_S

    def was_cut(self, size: int) -> None:
        """The file, of ``size`` bytes then, was cut to nothing; what comes goes on behind them."""
        self._sent += max(size - self._read, 0)
        self._read = 0

    def _pieces(self) -> list[tuple[int, bytes]]:
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._read:
                    self._read = 0  # the job itself truncated it
                skipped = max(size - TAIL_BYTES - self._read, 0)
                file.seek(self._read + skipped)
                data = file.read(size - self._read - skipped)
        except OSError:
            return []  # the launch failed before there was output
        start = self._sent + skipped
        return [(start + at, data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]


def _keep_from(offset: int) -> int:
    return max(0, offset - TAIL_BYTES)
