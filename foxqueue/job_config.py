"""The configuration that travels with a job: checked, as JSON, and read from files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from foxqueue.errors import InvalidInput

MAX_BYTES = 1024 * 1024
_HOW = "give what JSON can say"


def as_json(config: Any) -> str:
    """A configuration as JSON text.

    Args:
        config: maps names to plain data: None, booleans, numbers, text, lists, mappings.

    Raises:
        InvalidInput: it holds something else, NaN or infinity, or takes more than 1 MiB; the text names the place.
    """
    if not isinstance(config, Mapping):
        raise InvalidInput(f"config must map names to values, like {{'lr': 0.1}}, not {config!r:.60}")
    try:
        text = json.dumps(_plain(config, "config"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except RecursionError as error:
        raise InvalidInput("config is nested too deeply, or holds itself") from error
    except UnicodeEncodeError as error:
        raise InvalidInput(f"config: {error.object[error.start :]!r:.60} is not text that UTF-8 can say") from error
    if size > MAX_BYTES:
        raise InvalidInput(
            f"config takes {size:,} bytes, at most 1 MiB can go along: write it to a file and give its path"
        )
    return text


def _plain(value: Any, place: str) -> Any:
    """The same as dicts, lists and what JSON has besides."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InvalidInput(f"{place}: the name {name!r:.60} is not text: write it as text")
        return {name: _plain(item, f"{place}[{name!r}]") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{place} is {value}, which JSON cannot say: leave it out, or write it as text")
    if value is None or isinstance(value, str | int | float):
        return value
    raise InvalidInput(f"{place} is of type {type(value).__name__}: {_HOW}, a number, text, a list or a mapping")


def read(path: str) -> dict[str, Any]:
    """Read a configuration from a file, .json or .toml.

    Raises:
        InvalidInput: it cannot be read, is larger than 1 MiB or malformed, or holds no object.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".json", ".toml"):
        raise InvalidInput(f"--config {path}: give a file whose name ends in .json or .toml")
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidInput(f"--config {path} has over 1 MiB, more than can go along: give its path to the command")
        found = _parsed(data.decode("utf-8-sig"), kind)
    except InvalidInput:
        raise
    except OSError as error:
        raise InvalidInput(f"--config {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--config {path} is no {kind[1:].upper()} that can be read: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f'--config {path} holds no object: write names and values, like {{"lr": 0.1}}')
    return found


def _parsed(text: str, kind: str) -> Any:
    if kind == ".json":
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_object)
    import tomllib  # rarely needed

    return tomllib.loads(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of an object; a name that stands twice would lose a value."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.60} stands twice in one object, give it once")
        found[name] = value
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
