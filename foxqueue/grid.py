"""Sweeps on paper: which runs a grid of parameters has, and how each one's command reads. Asks no server.

A sweep is the product of its axes. An axis is one parameter with its values, or rows of several parameters at once.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from foxqueue.errors import InvalidInput

LINE = "line"  # the parameter of --each-line

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_PIECE = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")
_SPELT = re.compile(r'("(?:[^"]|"")*"|[^,]*),')  # values of a line of CSV as they are spelt
_SHOWN = 60  # characters of a value in a message
_ZERO = "a sweep of zero runs"


class Axis(NamedTuple):
    """Parameters that change together.

    Attributes:
        names: of the parameters.
        rows: their values, one row a run.
        origin: where they were given, for messages.
    """

    names: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    origin: str


class Run(NamedTuple):
    """One run of a sweep: its command, its name if there is a template for it, and its parameters."""

    argv: list[str]
    name: str | None
    values: dict[str, str]


class Template:
    """Text in which ``{name}`` stands for a parameter.

    ``{{`` is ``{``, and ``}}`` that follows it is ``}``. All other braces are what they are, JSON too.

    Args:
        text: with names in braces.
        names: those that may be used.

    Raises:
        InvalidInput: it names something else.

    Attributes:
        used: the names in it.
    """

    __slots__ = ("_parts", "used")

    def __init__(self, text: str, names: Iterable[str]) -> None:
        known = list(names)
        self._parts = [""]  # text and names by turns
        at = escaped = 0
        for match in _PIECE.finditer(text):
            found, name = match[0], match[1]
            self._parts[-1] += text[at : match.start()]
            at = match.end()
            if name is not None:
                if name not in known:
                    raise InvalidInput(
                        f"{found} in {_short(text)} is not a parameter of this sweep: there is {', '.join(known)}; "
                        f"write {{{found}}} for the text {found}"
                    )
                self._parts += [name, ""]
            elif found == "{{":
                escaped += 1
                self._parts[-1] += "{"
            elif escaped:
                escaped -= 1
                self._parts[-1] += "}"
            else:
                self._parts[-1] += found
        self._parts[-1] += text[at:]
        self.used = frozenset(self._parts[1::2])

    def fill(self, values: Mapping[str, str]) -> str:
        """The text for one run."""
        if not self.used:
            return self._parts[0]
        parts = self._parts.copy()
        parts[1::2] = [values[name] for name in parts[1::2]]
        return "".join(parts)


class Plan:
    """A command and the parameters with which it is to run.

    Args:
        argv: the command's words, each a template.
        axes: the parameters; the last one changes fastest.
        name_template: for the names of the jobs; None for none.

    Raises:
        InvalidInput: no parameters, or one without values, given twice, or used nowhere; a template names another.

    Attributes:
        names: of the parameters.
        total: how many runs there are.
        names_runs: whether there is a template for names.
    """

    def __init__(self, argv: Sequence[str], axes: Sequence[Axis], name_template: str | None = None) -> None:
        self._axes = axes
        self.names = _distinct(axes)
        self.total = math.prod(len(axis.rows) for axis in axes)
        self._words = [Template(word, self.names) for word in argv]
        self._name = None if name_template is None else Template(name_template, self.names)
        self.names_runs = self._name is not None
        used = frozenset().union(*(one.used for one in self._words), self._name.used if self._name else ())
        for name in self.names:
            if name not in used:
                raise InvalidInput(
                    f"nothing uses the parameter {name!r}, so it would change no run: write {{{name}}} where its value "
                    "belongs in the command or in --name-template (name_template), or leave it out"
                )

    def runs(self) -> Iterator[Run]:
        """The runs one by one, in the order in which they are enqueued."""
        for rows in product(*(axis.rows for axis in self._axes)):
            values = dict(zip(self.names, (value for row in rows for value in row), strict=True))
            name = None if self._name is None else self._name.fill(values)
            yield Run([word.fill(values) for word in self._words], name, values)


def _distinct(axes: Sequence[Axis]) -> tuple[str, ...]:
    """The names of all parameters, checked."""
    if not axes:
        raise InvalidInput(
            f"{_ZERO}: give parameters with --param, --param-file or --each-line (params= or rows= in Python)"
        )
    origins: dict[str, str] = {}
    for axis in axes:
        for name in axis.names:
            if not _NAME.match(name):
                raise InvalidInput(
                    f"{axis.origin}: {name!r:.{_SHOWN}} cannot be the name of a parameter: "
                    "give letters, digits and '_', like batch_size"
                )
            if name in origins:
                raise InvalidInput(
                    f"the parameter {name!r} is given twice, by {origins[name]} and by {axis.origin}: give it once"
                )
            origins[name] = axis.origin
        if not axis.rows:
            raise InvalidInput(f"{axis.origin} has no values, which is {_ZERO}: give one at least")
    return tuple(origins)


# --- as text on the command line ---------------------------------------------------------------------------


def of_option(text: str) -> Axis:
    """Read ``NAME=V1,V2,…`` as given to ``--param``: one line of CSV, each value as it stands there.

    Raises:
        InvalidInput: it is malformed.
    """
    name, separator, values = text.partition("=")
    if not separator or not name:
        raise InvalidInput(f"--param {_short(text)} is not understood: write NAME=V1,V2, like lr=1e-3,1e-4")
    try:
        lines = list(csv.reader([values], strict=True))
    except csv.Error as error:
        raise InvalidInput(
            f"--param {_short(text)} cannot be read ({error}): quote a value with a comma, a quote or a new line as "
            f"CSV does, like {name}='\"a,b\",c'"
        ) from error
    for piece in _SPELT.findall(f"{values},") if values else ():
        if not piece or piece != piece.strip():
            fault = "begins or ends with a blank" if piece else "is empty"
            raise InvalidInput(
                f"--param {_short(text)}: the value {piece!r:.{_SHOWN}} {fault}: leave that out, or quote the value as "
                f"CSV does, like {name}='1,\"{piece}\"'"
            )
    return _alone(name, [(value,) for line in lines for value in line], f"--param {name}")


def _alone(name: str, rows: list[tuple[str, ...]], origin: str) -> Axis:
    """One parameter; a value that stands twice would be the same run twice."""
    if len(set(rows)) < len(rows):
        seen: set[tuple[str, ...]] = set()
        twice = next(row for row in rows if row in seen or seen.add(row))  # type: ignore[func-returns-value]
        raise InvalidInput(
            f"{origin}: the value {twice[0]!r:.{_SHOWN}} is given twice, which would be one run twice: give it once, "
            "or add a parameter that tells them apart, like a seed"
        )
    return Axis((name,), rows, origin)


def of_lines(path: str) -> Axis:
    """The lines of a file that are not blank, ``-`` for standard input, as the parameter ``line``.

    Raises:
        InvalidInput: it cannot be read.
    """
    lines = (line.removesuffix("\r") for line in _text(path, "--each-line").split("\n"))
    return Axis((LINE,), [(line,) for line in lines if line.strip()], f"--each-line {path}")


def of_file(path: str) -> list[Axis]:
    """Read a file of parameters: CSV with a header, or JSON, a list of objects (rows) or an object of lists (a grid).

    Raises:
        InvalidInput: it cannot be read; the text says where it is malformed.
    """
    kind = Path(path).suffix.lower()
    origin = f"--param-file {path}"
    if kind == ".csv":
        return [_of_csv(_text(path, "--param-file"), origin)]
    if kind != ".json":
        raise InvalidInput(f"{origin} is neither .csv nor .json: name it by what it is")
    try:
        # numbers are kept as they are spelt
        content = json.loads(
            _text(path, "--param-file"),
            parse_float=str,
            parse_int=str,
            parse_constant=str,
            object_pairs_hook=lambda pairs: _object(pairs, origin),
        )
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{origin} is not JSON: {error}") from error
    if isinstance(content, dict):
        return _of_lists(content, origin, _of_json)
    if isinstance(content, list):
        return [_of_objects(content, origin, _of_json)]
    raise InvalidInput(f'{origin} has neither rows, like [{{"lr": 0.1}}], nor a grid, like {{"lr": [0.1, 0.01]}}')


def _of_csv(text: str, origin: str) -> Axis:
    names: tuple[str, ...] | None = None
    rows = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if not cells:
                continue
            if names is None:
                names = tuple(cells)
            elif len(cells) == len(names):
                rows.append(tuple(cells))
            else:
                raise InvalidInput(
                    f"{origin}, line {reader.line_num}: {len(cells)} values, but the header has {len(names)} names"
                )
    except csv.Error as error:
        raise InvalidInput(f"{origin}, line {reader.line_num}: {error}") from error
    if names is None:
        raise InvalidInput(f"{origin} is empty: give a header, like lr,batch_size, and a line for each run")
    return Axis(names, rows, origin)


def _object(pairs: list[tuple[str, Any]], origin: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{origin}: {twice!r:.{_SHOWN}} stands twice in one object: give it once")
    return found


def _of_json(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    raise InvalidInput(f"{where} is {json.dumps(value):.{_SHOWN}}: give text, a number, true or false")


# --- as values in Python -----------------------------------------------------------------------------------


def of_params(params: Any) -> list[Axis]:
    """A grid: names and lists of values.

    Raises:
        InvalidInput: it is malformed.
    """
    if not isinstance(params, Mapping):
        raise InvalidInput(f"params must map names to lists of values, like {{'lr': [0.1, 0.01]}}, not {params!r:.60}")
    return _of_lists(params, "params", _of_python)


def of_rows(rows: Any) -> list[Axis]:
    """Rows: one mapping of names to values a run, all with the same names.

    Raises:
        InvalidInput: one is malformed; the text says which.
    """
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidInput(f"rows must be a list of mappings, like [{{'lr': 0.1}}], not {rows!r:.60}")
    return [_of_objects(rows, "rows", _of_python)]


def _of_python(value: Any, where: str) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration its value
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, bytes | os.PathLike):
        return os.fsdecode(value)
    raise InvalidInput(f"{where} is {value!r:.{_SHOWN}}: give text, a number or a path")


def _of_lists(grid: Mapping[Any, Any], origin: str, read: Any) -> list[Axis]:
    axes = []
    for name, values in grid.items():
        where = f"{origin}: {_name(name, origin)}"
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InvalidInput(f"{where} must be a list of values, like [0.1, 0.01], not {values!r:.{_SHOWN}}")
        axes.append(_alone(name, [(read(value, where),) for value in values], where))
    return axes


def _of_objects(objects: Iterable[Any], origin: str, read: Any) -> Axis:
    names: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = []
    for at, row in enumerate(objects):
        where = f"{origin}[{at}]"
        if not isinstance(row, Mapping) or not row:
            raise InvalidInput(f"{where} must map names to values, like {{'lr': 0.1}}, not {row!r:.{_SHOWN}}")
        if not rows:
            names = tuple(_name(name, where) for name in row)
        if row.keys() != set(names):
            has = ", ".join(_name(name, where) for name in row)
            raise InvalidInput(f"{where} has {has}, the first one {', '.join(names)}: give every row the same names")
        rows.append(tuple(read(row[name], f"{where}: {name}") for name in names))
    return Axis(names, rows, origin)


def _name(name: Any, where: str) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"{where}: {name!r:.{_SHOWN}} cannot be the name of a parameter: give text")
    return name


def _text(path: str, option: str) -> str:
    """The content of a file; bytes that are not UTF-8 go through as they are."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError, AttributeError) as error:  # no such file, a NUL in its name, no standard input
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{option} {path} cannot be read ({why}): give a file") from error
    return data.decode("utf-8-sig", "surrogateescape")


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
