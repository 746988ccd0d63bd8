"""What a submitter asks for besides the command itself, checked. Nothing of this process goes in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from foxqueue.capture import check_env
from foxqueue.errors import InvalidInput
from foxqueue.parents import OPTIONS as PARENTS
from foxqueue.parents import Handle, parents
from foxqueue.requirement import Requirement, in_group
from foxqueue.retry import LATER
from foxqueue.states import RETRIED
from foxqueue.units import parse_memory, parse_priority
from foxqueue.urls import fault_of_web, hide_password
from foxqueue.when import Moment, seconds, times

MAX_NAME = 200
MAX_TEXT = 4 * 1024 * 1024
MAX_RETRIES = 1000
HASH_FIELD_BYTES = 64  # a longer field makes the whole job hash grow; the spec keeps the full name
MAX_KEY_BYTES = 64
MAX_NOTIFY = 2000
RETRY_CAP_S = 3600.0
VISIBLE = ("index", "uuid")
IF_EXISTS = ("refuse", "return", "replace")
_RARE = frozenset({"unique", "if_exists", "config", *PARENTS})
OWN = frozenset({"name", "tags", "description", "env"}) | _RARE  # options in which jobs that are alike differ


class Options(TypedDict, total=False):
    """What can be asked for. The defaults are those of the command line too.

    Attributes:
        name: for people; none by default.
        priority: 0-9, or low, medium, high; by default what the namespace says of the model type, else medium.
        gpus: 1, the default, or 0 for a CPU slot.
        gpu_memory: floor of the device's memory, like ``8G``.
        no_gpu_ok: True to take a CPU slot as long as no GPU is served.
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
        retry_on: reasons (words of ``RETRIED``) and exit codes after which it is tried again, a list or text with
            commas; by default all of ``RETRIED``.
        retry_cap: what the doubling delay does not go beyond, seconds or text, 1 h by default.
        after: jobs that must have succeeded before it starts: numbers or handles, one or several, or text like
            ``41,43-45``.
        after_any: jobs that must have succeeded or failed.
        after_failed: jobs that must have failed.
        delay: seconds or text; it starts so much later at the earliest.
        at: when it may start at the earliest, instead of delay: RFC 3339 with an offset, local time like
            ``2026-12-01 08:00``, or a datetime.
        expires: seconds or text; cancelled if it has not started within it; ``off`` for never. By default as the
            namespace says.
        unique: a key that only one unfinished job may have, 1 to 64 bytes.
        if_exists: where one has it: ``refuse``, the default, ``return`` that one, or ``replace`` it.
        group: name of the group it belongs to.
        hold: True to start it only after ``unhold``.
        notify: a command or an http(s) URL that is told of its end.
        config: names and values that the job finds as config.json in FOXQUEUE_DIR.
    """

    name: str | None
    priority: int | str | None
    gpus: int
    gpu_memory: str | None
    no_gpu_ok: bool
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
    retry_on: Sequence[str | int] | str | None
    retry_cap: float | str
    after: Handle | int | str | Iterable[Handle | int] | None
    after_any: Handle | int | str | Iterable[Handle | int] | None
    after_failed: Handle | int | str | Iterable[Handle | int] | None
    delay: float | str | None
    at: datetime | str | None
    expires: float | str | None
    unique: str | None
    if_exists: str | None
    group: str | None
    hold: bool
    notify: str | None
    config: Mapping[str, Any] | None


@dataclass(frozen=True, eq=False)
class Wishes:
    """Checked options, those in OWN left out. One is equal to itself alone.

    Attributes:
        need: what it asks of a device.
        shape: its spelling, with the group.
        group: its name, None without one.
        priority: None when the namespace is to say.
        cwd: as given, not yet looked for.
        umask: None for this process's.
        start: the moment before which it does not start, where one was named.
        hold: whether it waits to be let go by hand.
        more: its times and its notice, lines for the queue: see :class:`foxqueue.messages.NewJob`.
        spec: what of all this goes into the job's spec; what has its default is left out.
    """

    need: Requirement
    shape: str
    group: str | None
    priority: int | None
    model_type: str | None
    retries: int
    retry_delay_ms: int
    cwd: str | os.PathLike[str] | None
    umask: int | None
    start: Moment | None
    hold: bool
    more: str
    spec: Mapping[str, Any]


class Own(NamedTuple):
    """Checked options of OWN.

    Attributes:
        spec: what of them goes into the job's spec; what is empty is left out.
        more: parents and key, lines for the queue.
        if_exists: what to do where an unfinished job has the key; empty without one.
    """

    spec: dict[str, Any]
    more: str = ""
    if_exists: str = ""


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
    need = Requirement(
        _count(get("gpus", 1), "gpus", 1), memory(get("gpu_memory")), _flag(get("no_gpu_ok", False), "no_gpu_ok")
    )
    model_type = _line(get("model_type"), "model type", MAX_NAME)
    group = _line(get("group"), "group", MAX_TEXT, empty=False)
    when = times(get("delay"), get("at"), get("expires"))
    retry_delay_s = seconds(get("retry_delay", 10.0), "retry delay")
    spec = {
        "time_limit_s": time_limit(get("time_limit")),
        "visible": visible if visible != "index" else None,
        "model_type": model_type,
        "retry_on": retry_on(options),
        "retry_cap_s": _retry_cap(get("retry_cap"), retry_delay_s),
        "notify": notify(get("notify")),
    }
    return Wishes(
        need=need,
        shape=in_group(need.shape, group),
        group=group,
        priority=None if get("priority") is None else parse_priority(options["priority"]),
        model_type=model_type,
        retries=_count(get("retries", 0), "retries", MAX_RETRIES),
        retry_delay_ms=round(retry_delay_s * 1000),
        cwd=_path(get("cwd")),
        umask=None if get("umask") is None else _count(options["umask"], "umask", 0o777),
        start=when.start,
        hold=_flag(get("hold", False), "hold"),
        more=when.more + ("notify=1\n" if spec["notify"] else ""),
        spec={key: value for key, value in spec.items() if value},
    )


def check_own(options: Mapping[str, Any]) -> Own:
    """Check the options in OWN.

    Raises:
        InvalidInput: a value is malformed.
    """
    env = _mapping(options.get("env"), "env")
    check_env(env)
    found: dict[str, Any] = {
        "name": _line(options.get("name"), "name", MAX_NAME),
        "tags": tags(options.get("tags")),
        "description": _line(options.get("description"), "description", MAX_TEXT),
        "env": env,
    }
    more, if_exists = ("", "") if _RARE.isdisjoint(options) else _check_rare(options, found)
    return Own({key: value for key, value in found.items() if value}, more, if_exists)


def _check_rare(options: Mapping[str, Any], spec: dict[str, Any]) -> tuple[str, str]:
    """Add configuration and parents to a spec; the lines for the queue, and what to do where a job has the key."""
    if options.get("config") is not None:
        from foxqueue.job_config import as_json  # rarely needed

        spec["config"] = as_json(options["config"])
    family = parents(options)
    spec["after"] = {str(number): parent.condition for number, parent in family.items()}
    if_exists, more = _unique(options.get("unique"), options.get("if_exists"))
    more += "".join(f"after={number}:{parent.born}:{parent.condition}\n" for number, parent in family.items())
    return more, if_exists


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


def retry_on(options: Mapping[str, Any]) -> list[str] | None:
    """Reasons and exit codes after which a job is tried again, None for the default.

    Raises:
        InvalidInput: one is neither, or there are no retries.
    """
    given = options.get("retry_on")
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, Iterable) or isinstance(parts, bytes | Mapping):
        raise InvalidInput(f"retry_on {given!r:.60} is not understood: give a list, like ['signal', 3]")
    found = list(dict.fromkeys(_retried(part) for part in parts))
    if not found:
        raise InvalidInput("retry_on is empty, so nothing would be retried: leave it out for all, or retries for none")
    if "retries" not in options:
        raise InvalidInput("retry_on says after what to retry, and there are no retries: give --retries N (retries=)")
    return None if RETRIED.issubset(found) else found


def _retried(given: Any) -> str:
    word = str(given).strip()
    if isinstance(given, str | int) and not isinstance(given, bool):
        if word in RETRIED:
            return word
        if word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= 255:
            code = int(word)
            if code == LATER:
                raise InvalidInput(
                    f"retry_on {LATER} is not possible: a command that exits with {LATER} says that it cannot do its "
                    "work yet, and always runs again later, without an attempt being counted; leave it out"
                )
            return str(code)
    raise InvalidInput(
        f"retry_on {given!r:.60} is not understood: give exit codes 1 to 255, or of {', '.join(sorted(RETRIED))}"
    )


def _retry_cap(given: Any, delay_s: float) -> float | None:
    cap = RETRY_CAP_S if given is None else seconds(given, "retry cap")
    if given is not None and cap < delay_s:
        raise InvalidInput(
            f"a retry cap of {cap:g} s is below the retry delay of {delay_s:g} s: raise it, or lower --retry-delay"
        )
    return None if cap == RETRY_CAP_S else cap


def notify(given: Any) -> str | None:
    """What is told of the end of a job: a command line for a shell, or a URL."""
    found = _line(given, "notify", MAX_NOTIFY, empty=False)
    if found is None:
        return None
    if not found.strip() or "\0" in found:
        raise InvalidInput(f"notify {found!r:.60} is no command: give one, or a URL")
    if not is_url(found):
        return found
    wrong = fault_of_web(found)
    if wrong:
        shown = f"{found.partition('://')[0]}://***" if "@" in found else hide_password(found)  # a user may be a token
        raise InvalidInput(
            f"notify {shown:.80} is no URL that can be told: {wrong}; give http://HOST/…, https://HOST/… or a command"
        )
    return found


def is_url(notify: str) -> bool:
    """Whether ``notify`` is a URL rather than a command: it begins with a scheme and ``://``."""
    scheme, separator, _ = notify.partition("://")
    return bool(separator) and scheme.isascii() and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()


def _unique(key: Any, if_exists: Any) -> tuple[str, str]:
    """What to do where an unfinished job has the key, and the lines for the queue."""
    if if_exists is not None and if_exists not in IF_EXISTS:
        raise InvalidInput(f"if_exists {if_exists!r:.60} is not understood: give {', '.join(IF_EXISTS)}")
    if key is None:
        if if_exists is not None:
            raise InvalidInput("if_exists says what to do with a unique key, and there is none: give --unique KEY")
        return "", ""
    usable = isinstance(key, str) and key.strip() and key.isprintable()
    if not usable or not 1 <= len(key.encode()) <= MAX_KEY_BYTES:
        raise InvalidInput(f"unique key {key!r:.100} is not usable: give 1 to 64 bytes of printable text")
    what = if_exists or IF_EXISTS[0]
    return what, f"unique={key}\nexists={what}\n"


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


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} {value!r:.60} is not understood: give True or False")
    return value


def _line(value: Any, what: str, most: int, *, empty: bool = True) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{what} {value!r} must be text")
    if value == "" and not empty:
        raise InvalidInput(f"{what} is an empty text: leave it out for none")
    if value and len(value) > most:
        raise InvalidInput(f"the {what} has {len(value):,} characters: at most {most:,}")
    return value or None
