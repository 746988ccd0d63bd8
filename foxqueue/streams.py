"""Standard streams of programs that run for long: there they are, and nobody waits for who reads them."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from typing import TextIO, cast

from foxqueue.processes import fill_standard_fds

_LINES = 2000  # kept for a reader that is slow; what comes on top of them is dropped
_PATIENCE_S = 1.0  # that is left at the end for what is still to be written


class PatientStream:
    """Text to a stream from a thread of its own: a full disk, a dead reader or a paused pager stops nobody.

    Args:
        stream: where it goes in the end.
    """

    def __init__(self, stream: TextIO) -> None:
        self.encoding = stream.encoding
        self.errors = stream.errors
        self._stream = stream
        self._pid = 0
        self._texts: queue.Queue[str] = queue.Queue(_LINES)
        atexit.register(self.drain)

    def write(self, text: str) -> int:
        """Take the text; when the reader is behind by too much it is dropped.

        Raises:
            TypeError: it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is wanted, not {type(text).__name__}")
        if self._pid != os.getpid():  # first use, or first after a fork, which took no threads along
            self._pid = os.getpid()
            self._texts = queue.Queue(_LINES)
            try:
                threading.Thread(target=self._serve, args=(self._texts,), name="stderr", daemon=True).start()
            except RuntimeError:  # a limit of processes: what is said then matters more than who reads slowly
                self._pid = 0
                return self._stream.write(text)
        try:
            self._texts.put_nowait(text)
        except queue.Full:
            return 0
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread writes as fast as the reader reads."""

    def fileno(self) -> int:
        """Of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def drain(self) -> None:
        """Give the reader a moment for the last lines."""
        if self._pid == os.getpid():
            with self._texts.all_tasks_done:
                self._texts.all_tasks_done.wait_for(lambda: not self._texts.unfinished_tasks, _PATIENCE_S)

    def _serve(self, texts: queue.Queue[str]) -> None:
        while True:
            text = texts.get()
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                continue  # there is no other place to say it
            finally:
                texts.task_done()


def be_patient() -> None:
    """For a program that runs for long: streams that are there, and a stderr that never stops it."""
    fill_standard_fds()
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (a descriptor, for the process's life)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if not isinstance(sys.stderr, PatientStream):
        sys.stderr = cast("TextIO", PatientStream(sys.stderr))
