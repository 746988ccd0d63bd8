"""What a job wants to be run, read from its spec without trusting it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foxqueue import codec
from foxqueue.retry import MAX_DELAY_S

SPEC_VERSION = 1


class BadPayload(ValueError):
    """A spec or an environment that cannot be read. The text says what is wrong with it."""


@dataclass(frozen=True)
class Plan:
    """A command and its surroundings.

    Attributes:
        time_limit_s: None without a limit.
        call: what to call, None for a command: module or script, qualname, python (the submitter's interpreter), data
            (the arguments, packed).
        retry_on: reasons and exit codes after which it is tried again; None for all that may be.
        retry_cap_s: what the doubling delay between attempts does not go beyond.
        config: JSON text for its directory, None when it has none.
        script: kept copy of its script, executed in place of the command's first word; None when it has none.
        notifies: whether somebody is to be told of its end.
    """

    argv: list[str]
    cwd: str
    umask: int
    env: dict[str, str]
    visible: str
    time_limit_s: float | None
    call: dict[str, Any] | None = None
    retry_on: tuple[str, ...] | None = None
    retry_cap_s: float = MAX_DELAY_S
    config: str | None = None
    script: bytes | None = None
    notifies: bool = False


def read_plan(packed: bytes) -> Plan:
    """Read a spec.

    Raises:
        BadPayload: it is malformed, or of a newer version.
    """
    spec = _unpack(packed, "what it should run")
    if not isinstance(spec, dict):
        raise BadPayload("what it should run cannot be read")
    if spec.get("v") != SPEC_VERSION:
        raise BadPayload(f"it was written by another version of foxqueue (spec version {spec.get('v')!r})")
    limit, cap = spec.get("time_limit_s"), spec.get("retry_cap_s")
    plan = Plan(
        argv=_texts(spec.get("argv"), "its command"),
        cwd=_of(str, spec.get("cwd"), "its directory"),
        umask=_of(int, spec.get("umask"), "its umask"),
        env=read_environment(spec.get("env") or {}),
        visible=_of(str, spec.get("visible") or "index", "its choice of visible devices"),
        time_limit_s=None if limit is None else float(_of((int, float), limit, "its time limit")),
        call=None if spec.get("call") is None else _call(spec["call"]),
        retry_on=None if spec.get("retry_on") is None else tuple(_texts(spec["retry_on"], "its reasons to retry")),
        retry_cap_s=MAX_DELAY_S if cap is None else float(_of((int, float), cap, "its longest delay")),
        config=_of((str, type(None)), spec.get("config"), "its configuration"),
        script=_of((bytes, type(None)), spec.get("script"), "its script"),
        notifies=bool(spec.get("notify")),
    )
    if plan.visible not in ("index", "uuid"):
        raise BadPayload("its choice of visible devices cannot be read")
    return plan


def _call(value: Any) -> dict[str, Any]:
    call: dict[str, Any] = _of(dict, value, "what it should call")
    module, script, python, beside = (call.get(name) for name in ("module", "script", "python", "beside"))
    for text in (module, script, python, beside):
        _of((str, type(None)), text, "what it should call")
    qualname, data = _of(str, call.get("qualname"), "its function"), _of(bytes, call.get("data"), "its arguments")
    if bool(module) is bool(script):
        raise BadPayload("what it should call cannot be read")
    where = {"module": module, "script": script, "qualname": qualname, "beside": beside}
    return {**where, "python": python, "data": data}


def read_captured(packed: bytes) -> dict[str, str]:
    """Read a captured environment.

    Raises:
        BadPayload: it is malformed.
    """
    return read_environment(_unpack(packed, "its environment"))


def read_environment(value: Any) -> dict[str, str]:
    """A mapping of text to text, or BadPayload."""
    if not isinstance(value, Mapping):
        raise BadPayload("its environment cannot be read")
    _texts([*value.keys(), *value.values()], "its environment")
    return dict(value)


def _unpack(packed: bytes, what: str) -> Any:
    try:
        return codec.unpack(packed)
    except ValueError as error:
        raise BadPayload(f"{what} cannot be read") from error


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise BadPayload(f"{what} cannot be read")
    return value


def _of(kind: Any, value: Any, what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadPayload(f"{what} cannot be read")
    return value
