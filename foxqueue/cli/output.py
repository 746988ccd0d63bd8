"""How things look: data on stdout, messages on stderr, tables drawn by rich on a terminal only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from foxqueue.errors import FoxqueueError

# Control characters of both ranges, and marks that reorder text: they could redraw the reader's terminal.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# How repr() writes a byte that is not UTF-8; everywhere it is shown as \xff.
_BYTE = re.compile(r"\\udc([89a-f][0-9a-f])")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_ELASTIC = frozenset({"NAME", "WHY", "DETAIL", "UUID", "WORKER", "DEVICE"})
_NARROWEST = 8
# Columns that go where the terminal is too narrow for all, the first ones first. The first column of a table stays.
_LEFT_OUT = (
    *("CANCELLED", "TOTAL", "PRIO", "USER", "SINCE", "PID", "UTIL", "UUID", "DEVICE", "HOST", "TIME"),
    *("FREE/TOTAL", "WHY", "DETAIL", "NAME", "JOB", "STATE", "RESULT"),
)

_STATE_STYLES = {
    "pending": "yellow",
    "scheduled": "yellow",
    "blocked": "yellow",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "magenta",
    "free": "green",
    "idle": "green",
    "leased": "cyan",
    "busy": "cyan",
    "occupied": "yellow",
    "paused": "yellow",
    "open": "green",
    "unavailable": "red",
    "dirty": "red",
    "ok": "green",
    "warning": "yellow",
    "FAILED": "red",
}


class NotWritten(FoxqueueError):
    """Standard output takes nothing: its disk is full, say. ``why`` is the system's word for it."""

    def __init__(self, error: OSError) -> None:
        self.why = error.strerror or str(error)
        super().__init__(f"standard output cannot be written: {self.why}")


def say(message: str) -> None:
    """A message on stderr. One that cannot be written changes nothing else."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"foxqueue: {safe(message)}", file=sys.stderr, flush=True)


def safe(text: str) -> str:
    """The text with everything that could move a cursor written out, like ``\\x1b``."""
    return _UNSAFE.sub(_written_out, _BYTE.sub(r"\\x\1", text))


def _written_out(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # a byte that is not UTF-8
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def last_lines(output: bytes, count: int) -> list[str]:
    """The last lines of an output, as a terminal would have left them: of a progress bar its last state."""
    text = output.decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")[-count:]
    shown = [_ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2]).replace("\t", "    ") for line in lines]
    return [safe(line) for line in shown] if text else []


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotWritten(error) from error


def write(text: str) -> None:
    """Text on stdout.

    Raises:
        NotWritten: it takes nothing.
        BrokenPipeError: nobody reads it any more. So it is with all that write here.
    """
    if sys.stdout is not None:
        with _told():
            sys.stdout.write(text)


def write_bytes(data: bytes) -> None:
    """Bytes on stdout, at once."""
    if sys.stdout is not None:
        with _told():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def flush() -> None:
    """What was written on stdout is out."""
    if sys.stdout is not None:
        with _told():
            sys.stdout.flush()


def give_up(stream: TextIO | None) -> None:
    """Lose what a stream could not write. Else Python tries again at exit, complains, and exits with 120."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()


def hand_over(put: Callable[[], None], accepted: str) -> bool:
    """Write what names something that was accepted, on stderr where stdout takes nothing: a script must not lose it.

    Args:
        put: writes it.
        accepted: begins the sentence for stderr, like ``job 7 was submitted, but its number``.

    Returns:
        Whether stdout took it.
    """
    try:
        put()
        flush()
    except (NotWritten, BrokenPipeError) as error:
        why = error.why if isinstance(error, NotWritten) else "nobody reads it"
        give_up(sys.stdout)
        say(f"{accepted} could not be written: {why}")
        return False
    return True


def write_json(value: Any) -> None:
    """JSON on stdout, in ASCII: no text in it can disturb a terminal or a locale."""
    write(json.dumps(value, indent=2) + "\n")


def on_terminal() -> bool:
    """Whether people read stdout."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def can_ask() -> bool:
    """Whether somebody is there who can be asked something."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[str] = ()) -> None:
    """Print rows under headers; on a terminal they fit its width, elsewhere nothing is cut.

    Args:
        headers: of the columns.
        rows: cells; None is shown as ``-``.
        right: headers of columns set to the right.
    """
    cells = [["-" if cell is None or cell == "" else safe(str(cell)) for cell in row] for row in rows]
    if on_terminal():
        _rich_table(headers, cells, right)
        return
    widths = [max(map(_width, column)) for column in zip(headers, *cells, strict=True)]
    for row in (headers, *cells):
        parts = [_pad(cell, width, header in right) for cell, width, header in zip(row, widths, headers, strict=True)]
        write("  ".join(parts).rstrip() + "\n")


def facts(pairs: Mapping[str, Any]) -> None:
    """Print names and values, those without a value left out."""
    shown = {name: safe(str(value)) for name, value in pairs.items() if value not in (None, "")}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        write(f"{name:<{width}}  {value}\n")


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    headers, rows = _without_some(headers, rows, console.width)
    for header, width in zip(headers, _fitted(headers, rows, console.width), strict=True):
        drawn.add_column(
            header,
            width=width,
            justify="right" if header in right else "left",
            no_wrap=header != "DETAIL",
            overflow="fold" if header == "DETAIL" else "ellipsis",
        )
    for row in rows:
        # Text, not str: brackets in a job's name are no markup
        drawn.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in row))
    with console.capture() as captured:
        console.print(drawn)
    write(captured.get())


def _without_some(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """The columns for which the terminal has room."""
    kept = list(range(len(headers)))

    def chosen(cells: Sequence[str]) -> list[str]:
        return [cells[at] for at in kept]

    for header in _LEFT_OUT:
        widths = _fitted(chosen(headers), [chosen(row) for row in rows], width)
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            break
        kept = [at for at in kept if at == 0 or headers[at] != header]
    return chosen(headers), [chosen(row) for row in rows]


def _fitted(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Widths of the columns: where the terminal is too narrow, those of long texts give way."""
    widths = [max(map(_width, column)) for column in zip(headers, *rows, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - width  # two blanks between columns
    elastic = [at for at, header in enumerate(headers) if header in _ELASTIC]
    while over > 0 and elastic:
        widest = max(elastic, key=lambda at: widths[at])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        over -= 1
    return widths


def _width(text: str) -> int:
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
