"""The worker's side of a Python call: what its interpreter finds in the run directory, and what it leaves there.

:mod:`workers.call` is what runs there.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from foxqueue import codec
from workers import call as script
from workers.record import reserve

_OTHER_BYTES: Final = 64 * 1024  # what a report has besides a value
_TEXTS: Final = ("type", "message", "traceback")
_LONGEST_S: Final = 365 * 86400.0  # before another attempt that a call asks for
REASONS: Final = ("bad_result", "bad_payload", "launch_error")  # that a report may give in place of a value

_log = logging.getLogger(__name__)


def command(call: Mapping[str, Any], run_dir: Path, max_result_bytes: int) -> list[str]:
    """What carries out a call.

    Args:
        call: the ``call`` of the job's spec.
        run_dir: of the run.
        max_result_bytes: what it may return, packed.
    """
    return [_interpreter(call["python"]), str(Path(script.__file__).resolve()), str(run_dir), str(max_result_bytes)]


def _interpreter(wanted: str | None) -> str:
    with suppress(OSError, ValueError):
        path = Path(wanted or "")
        if path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
            return str(path)
    _log.info("there is no interpreter %r on this machine: the call runs under %s", wanted, sys.executable)
    return sys.executable


def put_down(call: Mapping[str, Any], run_dir: Path) -> None:
    """Write down what to call, and take the room that a report needs, so that a full disk cannot eat it.

    Raises:
        OSError: it cannot be written.
    """
    with (run_dir / script.CALL_NAME).open("wb") as file:
        file.write(codec.pack(call))
    os.close(reserve(os.fsencode(run_dir / script.RESERVED_NAME), script.RESERVED_BYTES))


def take_report(run_dir: Path, max_result_bytes: int) -> dict[str, Any]:
    """Read what a call left: ``value`` (bytes), ``exception`` (three texts) or a reason (a sentence).

    Beside an exception stands ``wish`` when the call asked for another attempt (``retry``, and perhaps ``delay_s``) or
    for none (``fail``).

    The room that was kept for it is given back if it was not used.

    Args:
        run_dir: of the run, which is over.
        max_result_bytes: what it may return, packed.

    Returns:
        Empty when it left nothing: it never returned.
    """
    with suppress(OSError):
        (run_dir / script.RESERVED_NAME).unlink(missing_ok=True)
    try:
        data = _content(run_dir / script.REPORT_NAME, max_result_bytes + _OTHER_BYTES)
        report = codec.unpack(data)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return {"bad_result": f"what it returned cannot be read: {error}"}
    found = report if isinstance(report, dict) else {}
    value, exception = found.get("value"), found.get("exception")
    if isinstance(value, bytes) and len(value) <= max_result_bytes:
        return {"value": value}
    if isinstance(exception, dict) and all(isinstance(exception.get(name), str) for name in _TEXTS):
        most = script.TRACEBACK_BYTES
        return {"exception": {name: exception[name][-most:] for name in _TEXTS}, **_wished(exception)}
    for reason in REASONS:
        if isinstance(found.get(reason), str):
            return {reason: found[reason]}
    return {"bad_result": "what it returned cannot be read: it is malformed or too large"}


def _wished(exception: Mapping[str, Any]) -> dict[str, Any]:
    wish, delay = exception.get("wish"), exception.get("delay")
    if wish not in script.WISHES:
        return {}
    with suppress(TypeError, ValueError):
        seconds = float(delay or "nan")
        if seconds >= 0:  # nan is not
            return {"wish": wish, "delay_s": min(seconds, _LONGEST_S)}
    return {"wish": wish}


def _content(path: Path, most: int) -> bytes:
    """A regular file's bytes. The job, which may have put anything there, must not make its worker wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"{found.st_size:,} bytes are too many")
        return file.read(most)
