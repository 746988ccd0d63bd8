"""Log lines on stderr, set up from FOXQUEUE_LOG and FOXQUEUE_LOG_FORMAT. Pure standard library."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from foxqueue.errors import InvalidInput

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def read(environ: Mapping[str, str], level: str = "warning") -> tuple[str, str]:
    """Level and format: FOXQUEUE_LOG is ``LEVEL`` or ``LEVEL,FORMAT``, FOXQUEUE_LOG_FORMAT is ``FORMAT``.

    Args:
        environ: where to look.
        level: the level when none is given.

    Raises:
        InvalidInput: another word.
    """
    first, _, second = environ.get("FOXQUEUE_LOG", "").strip().lower().partition(",")
    form = second.strip() or environ.get("FOXQUEUE_LOG_FORMAT", "").strip().lower()
    if first and first not in LEVELS:
        raise InvalidInput(f"FOXQUEUE_LOG {first!r} is not a level: give {', '.join(LEVELS)}, or LEVEL,json")
    if form and form not in FORMATS:
        raise InvalidInput(f"log format {form!r} is not one: FOXQUEUE_LOG_FORMAT is text or json")
    return first or level, form or "text"


def configure(environ: Mapping[str, str], level: str = "warning", stream: TextIO | None = None) -> None:
    """Send the lines of foxqueue and its workers to stderr, or to ``stream``.

    Raises:
        InvalidInput: see :func:`read`.
    """
    chosen, form = read(environ, level)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    for name in ("foxqueue", "workers"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(chosen.upper())
        logger.propagate = False


class _Text(logging.Formatter):
    """``2026-11-30T16:25:01.123Z warning foxqueue.client: text``."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_when(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _when(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
