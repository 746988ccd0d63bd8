"""What a custom worker's run says: its output, and the exception that ends it."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Final

from foxqueue.broker import Broker, Claimed
from foxqueue.ending import Verdict
from foxqueue.errors import Fail, Retry, ServerError, ServerUnavailable

TAIL_BYTES: Final = 64 * 1024  # of the output are kept
PIECE_BYTES: Final = 16 * 1024
MESSAGE_BYTES: Final = 4 * 1024
TRACEBACK_BYTES: Final = 16 * 1024
TRACEBACK_FRAMES: Final = 2000

_log = logging.getLogger(__name__)


class Output:
    """The end of what a run says, on its way to Redis in pieces that carry their offset.

    Args:
        broker: where to send.
        claimed: the run.
        tell: called with ``lost``, the word and the fence when the run is not ours any more.
    """

    def __init__(self, broker: Broker, claimed: Claimed, tell: Callable[[str, str, str], None]) -> None:
        self._broker = broker
        self._claimed = claimed
        self._tell = tell
        self._lock = threading.Lock()
        self._offset = 0  # of the first byte in `_waiting`
        self._waiting = b""

    def add(self, data: bytes) -> None:
        """More of it; what is before the last 64 KiB goes."""
        with self._lock:
            whole = self._waiting + data
            self._waiting = whole[-TAIL_BYTES:]
            self._offset += len(whole) - len(self._waiting)

    def send(self) -> bool:
        """Send what is there. Returns whether all is sent, or never can be; False while Redis is away."""
        with self._lock:
            if not self._waiting:
                return True
            calls = [
                self._broker.log_call(
                    self._claimed.number,
                    self._claimed.fence,
                    self._offset + at,
                    max(0, self._offset + at - TAIL_BYTES),
                    self._waiting[at : at + PIECE_BYTES],
                )
                for at in range(0, len(self._waiting), PIECE_BYTES)
            ]
            try:
                reply = self._broker.send(*calls)[-1]
            except ServerUnavailable as error:
                return error.definite and not error.passing  # a full server lets the run end all the same
            except ServerError as error:
                _log.warning("job %d: its output cannot be sent: %s", self._claimed.number, error)
                return True
            self._offset += len(self._waiting)
            self._waiting = b""
        if reply.word != "ok" and reply.instance == self._claimed.instance:
            self._tell("lost", reply.word, self._claimed.fence)
        return True


def raised(error: Exception) -> Verdict:
    """An exception as the end of a run; a foxqueue.Retry or Fail says itself what is to follow."""
    texts = described(error)
    text = f"{texts['type']}: {' '.join(texts['message'].split())}"
    if isinstance(error, Retry):
        return Verdict("fail", "exception", text, exception=texts, wish="retry", delay_s=error.delay)
    return Verdict("fail", "exception", text, exception=texts, wish="fail" if isinstance(error, Fail) else "")


def described(error: BaseException) -> Mapping[str, str]:
    """An exception as texts, whatever its class does: type, message, traceback."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error) or kind.__name__
        text = "".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES))
    except Exception as fault:  # noqa: BLE001 - the class is the user's
        message = text = f"{name} (its text cannot be shown: {type(fault).__name__})"
    return {
        "type": name[:200],
        "message": _clean(message)[:MESSAGE_BYTES].decode("utf-8", "ignore"),
        "traceback": _clean(text)[-TRACEBACK_BYTES:].decode("utf-8", "ignore"),
    }


def _clean(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
