"""What a submitter asks for besides the command itself, checked. Nothing of this process goes in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from foxqueue.capture import check_env
from foxqueue.errors import InvalidInput
from foxqueue.requirement import Requirement
from foxqueue.units import parse_duration, parse_memory, parse_priority

MAX_NAME = 200
MAX_TEXT = 4 * 1024 * 1024
MAX_RETRIES = 1000
HASH_FIELD_BYTES = 64  # a longer field makes the whole job hash grow; the spec keeps the full name
VISIBLE = ("index", "uuid")
OWN = frozenset({"name", "tags", "description", "env"})  # options in which jobs that are alike differ


class Options(TypedDict, total=False):
    """What can be asked for. The defaults are those of the command line too.

    Attributes:
        name: for people; none by default.
        priority: 0-9, or low, medium, high; by default what the namespace says of the model type, else medium.
        gpus: 1, the default, or 0 for a CPU slot.
        gpu_memory: floor of the device's memory, like ``8G``.
        time_limit: seconds, or text like ``30m``; None, the default, is no limit.
        retries: how many more attempts after a failed one; 0 by default.
        retry_delay: before the first retry, seconds or text, 10 s by default; doubles with each further one.
        cwd: where it runs; the current directory by default.
        env: variables set besides the captured environment.
        tags: names and values for people.
        description: for people.
        model_type: what is trained.
        visible: what CUDA_VISIBLE_DEVICES carries: ``index``, the default, or ``uuid``.
        umask: of the job; this process's by default.
    """

    name: str | None
    priority: int | str | None
    gpus: int
    gpu_memory: str | None
    time_limit: float | str | None
    retries: int
    retry_delay: float | str
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    tags: Mapping[str, str] | None
    description: str | None
    model_type: str | None
    visible: str
    umask: int | None


@dataclass(frozen=True, eq=False)
class Wishes:
    """Checked options, those in OWN left out. One is equal to itself alone.

    Attributes:
        need: what it asks of a device.
        shape: its spelling.
        priority: None when the namespace is to say.
        cwd: as given, not yet looked for.
        umask: None for this process's.
        spec: what of all this goes into the job's spec; what has its default is left out.
    """

    need: Requirement
    shape: str
    priority: int | None
    model_type: str | None
    retries: int
    retry_delay_ms: int
    cwd: str | os.PathLike[str] | None
    umask: int | None
    spec: Mapping[str, Any]


def check(options: Mapping[str, Any]) -> Wishes:
    """Check options, those in OWN left out.

    Raises:
        InvalidInput: there is no such option, or a value is malformed; the text says what is allowed.
    """
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise InvalidInput(f"there is no option {unknown[0]!r}: give {', '.join(Options.__annotations__)}")
    get = options.get
    visible = get("visible", "index")
    if visible not in VISIBLE:
        raise InvalidInput(f"visible {visible!r} is not understood: give index or uuid")
    need = Requirement(_count(get("gpus", 1), "gpus", 1), memory(get("gpu_memory")))
    model_type = _line(get("model_type"), "model type", MAX_NAME)
    spec = {
        "time_limit_s": time_limit(get("time_limit")),
        "visible": visible if visible != "index" else None,
        "model_type": model_type,
    }
    return Wishes(
        need=need,
        shape=need.shape,
        priority=None if get("priority") is None else parse_priority(options["priority"]),
        model_type=model_type,
        retries=_count(get("retries", 0), "retries", MAX_RETRIES),
        retry_delay_ms=round(seconds(get("retry_delay", 10.0), "retry delay") * 1000),
        cwd=_path(get("cwd")),
        umask=None if get("umask") is None else _count(options["umask"], "umask", 0o777),
        spec={key: value for key, value in spec.items() if value},
    )


def check_own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options in OWN; as they go into the job's spec, empty ones left out.

    Raises:
        InvalidInput: a value is malformed.
    """
    env = _mapping(options.get("env"), "env")
    check_env(env)
    found = {
        "name": _line(options.get("name"), "name", MAX_NAME),
        "tags": tags(options.get("tags")),
        "description": _line(options.get("description"), "description", MAX_TEXT),
        "env": env,
    }
    return {key: value for key, value in found.items() if value}


def short_name(name: str) -> str:
    """A name as far as it fits into a field of the job's hash.

    Raises:
        InvalidInput: it cannot be written as UTF-8.
    """
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the name {name!r:.60} is not text: it cannot be written as UTF-8") from error
    return name if len(data) <= HASH_FIELD_BYTES else data[:HASH_FIELD_BYTES].decode("utf-8", "ignore")


def memory(given: str | None) -> int:
    """A memory floor in MiB; 0 for none."""
    if given is None:
        return 0
    if not isinstance(given, str):
        raise InvalidInput(f"GPU memory {given!r} has no unit: write it as text, like '8G' or '512M'")
    return parse_memory(given)


def time_limit(given: float | str | None) -> float | None:
    """A time limit in seconds, or None."""
    if given is None:
        return None
    limit = seconds(given, "time limit")
    if limit <= 0:
        raise InvalidInput("a time limit of 0 would end the job at once: leave it out for none")
    return limit


def seconds(given: float | str, what: str) -> float:
    """Seconds from a number of them or text like ``30m``."""
    if isinstance(given, str):
        return parse_duration(given)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 365 * 86400:
        raise InvalidInput(f"{what} {given!r} is not understood: give seconds up to a year, or text like '30m'")
    return float(given)


def tags(given: Mapping[str, str] | None) -> dict[str, str]:
    """Tags, checked: text to text, names without ``=``."""
    found = _mapping(given, "tags")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise InvalidInput(f"tag {name!r}: {value!r} is malformed: name and value must be text, like model=dqn")
    return found


def _path(given: Any) -> str | os.PathLike[str] | None:
    if given is not None and not isinstance(given, str | os.PathLike):
        raise InvalidInput(f"the directory {given!r:.60} is no path: give text, like '/data'")
    return given


def _mapping(given: Any, what: str) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput(f"{what} must map names to values, like {{'A': '1'}}, not {given!r:.60}")
    return dict(given or {})


def _count(value: Any, what: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidInput(f"{what} {value!r} is not possible: give 0 to {most}")
    return value


def _line(value: Any, what: str, most: int) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{what} {value!r} must be text")
    if value and len(value) > most:
        raise InvalidInput(f"the {what} has {len(value):,} characters: at most {most:,}")
    return value or None
