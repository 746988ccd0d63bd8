"""From what a submitter asks for to a job that can be enqueued: every input checked, the surroundings captured."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from foxqueue import capture
from foxqueue.broker import NewJob
from foxqueue.codec import pack
from foxqueue.errors import InvalidInput
from foxqueue.requirement import Requirement
from foxqueue.units import DEFAULT_PRIORITY, parse_duration, parse_memory, parse_priority

SPEC_VERSION = 1
MAX_SPEC_BYTES = 4 * 1024 * 1024  # Linux starts no command with more than 2 MiB of arguments and environment
MAX_NAME = 200
MAX_RETRIES = 1000
HASH_FIELD_BYTES = 64  # a longer field makes the whole job hash grow; the spec keeps the full name
VISIBLE = ("index", "uuid")

Word = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@dataclass(frozen=True)
class Request:
    """What a submitter asks for, as given; the defaults are those of the command line too.

    Attributes:
        argv: the command as a list, executed verbatim.
        name: for people; empty is none.
        priority: 0-9, or low, medium, high.
        gpus: 1, or 0 for a CPU slot.
        gpu_memory: floor of the device's memory, like ``8G``.
        time_limit: seconds, or text like ``30m``; None is no limit.
        retries: how many more attempts after a failed one.
        retry_delay: before the first retry, seconds or text; doubles with each further one.
        cwd: where it runs; the current directory by default.
        env: variables set besides the captured environment.
        tags: names and values for people.
        visible: what CUDA_VISIBLE_DEVICES carries: ``index`` or ``uuid``.
        umask: of the job; this process's by default.
    """

    argv: Sequence[Word]
    name: str | None = None
    priority: int | str = DEFAULT_PRIORITY
    gpus: int = 1
    gpu_memory: str | None = None
    time_limit: float | str | None = None
    retries: int = 0
    retry_delay: float | str = 10.0
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None
    description: str | None = None
    model_type: str | None = None
    visible: str = "index"
    umask: int | None = None


class Options(TypedDict, total=False):
    """The same, for calls by keyword."""

    name: str | None
    priority: int | str
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


@dataclass(frozen=True)
class Submission:
    """A checked request: the job to enqueue, what it needs, and which variables stay behind."""

    job: NewJob
    need: Requirement
    left_out: tuple[str, ...]


def prepare(request: Request, environ: Mapping[str, str]) -> Submission:
    """Check a request and capture the submitter's surroundings.

    Raises:
        InvalidInput: something is malformed; the text says what, and what is allowed.
    """
    argv = command(request.argv)
    cwd = directory(request.cwd, environ)
    given = dict(request.env or {})
    capture.check_env(given)
    captured = capture.capture(environ, cwd, given)
    if request.visible not in VISIBLE:
        raise InvalidInput(f"visible {request.visible!r} is not understood: give index or uuid")
    need = Requirement(_count(request.gpus, "gpus", 1), memory(request.gpu_memory))
    name = _line(request.name, "name", MAX_NAME)
    spec = {
        "v": SPEC_VERSION,
        "argv": argv,
        "cwd": cwd,
        "umask": capture.current_umask() if request.umask is None else _count(request.umask, "umask", 0o777),
        "env": given,
        "time_limit_s": time_limit(request.time_limit),
        "visible": request.visible,
        "tags": tags(request.tags),
        "description": _line(request.description, "description", MAX_SPEC_BYTES),
        "model_type": _line(request.model_type, "model type", MAX_NAME),
        "submit_host": socket.gethostname(),
        "user": user(),
        "name": name,
    }
    try:
        packed = pack(spec)
    except UnicodeEncodeError as error:  # half of a surrogate pair: no text, and no bytes of a file name either
        raise InvalidInput(f"{error.object!r:.60} is not text: it cannot be written as UTF-8") from error
    if len(packed) > MAX_SPEC_BYTES:
        raise InvalidInput(f"the job is too large: {len(packed):,} bytes of command and texts, at most 4 MiB")
    job = NewJob(
        name=_short(name or ""),
        shape=need.shape,
        priority=parse_priority(request.priority),
        retries=_count(request.retries, "retries", MAX_RETRIES),
        retry_delay_ms=round(seconds(request.retry_delay, "retry delay") * 1000),
        spec=packed,
        env=captured.env,
    )
    return Submission(job, need, captured.left_out)


def user() -> str:
    """Login name of this process's user, or its number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())  # containers run under numbers that no passwd file names


def command(argv: Sequence[Word]) -> list[str]:
    """A command as a list of text, checked."""
    if isinstance(argv, str | bytes):
        raise InvalidInput(
            'the command is one piece of text: give a list, like ["python", "train.py"]; for a shell ["sh", "-c", "…"]'
        )
    try:
        words = [os.fsdecode(word) for word in argv]
    except TypeError as error:
        raise InvalidInput(f"the command must be a list of text: {error}") from error
    if not words:
        raise InvalidInput("empty command: write it after --, like foxqueue submit -- python train.py")
    if not words[0]:
        raise InvalidInput("empty command: the program's name is an empty text")
    if any("\0" in word for word in words):
        raise InvalidInput("the command holds a NUL character, which no program can be given")
    return words


def directory(given: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str:
    """The job's directory as an absolute path, symbolic links kept."""
    if given is None:
        try:
            return _here(environ)
        except OSError as error:
            raise InvalidInput("the current directory is gone: give one with -d DIR (--cwd)") from error
    if not os.fspath(given):
        raise InvalidInput("the directory is an empty text: leave -d (--cwd) out for the current one")
    try:
        path = os.path.abspath(Path(given).expanduser())  # noqa: PTH100 - Path.resolve would follow links
    except OSError as error:
        raise InvalidInput(f"directory {given} is relative, and the current directory is gone: give -d /DIR") from error
    except RuntimeError as error:
        raise InvalidInput(f"directory {given}: there is no such user; write it out") from error
    try:
        if Path(path).is_dir():
            return path
        what = "is not a directory: give" if Path(path).exists() else "does not exist: make it, or give"
    except OSError as error:
        what = f"cannot be used ({error.strerror or error}): give"
    raise InvalidInput(f"directory {path} {what} another with -d DIR (--cwd)")


def _here(environ: Mapping[str, str]) -> str:
    physical = Path.cwd()
    logical = Path(environ.get("PWD", ""))
    try:
        same = logical.is_absolute() and logical.samefile(physical)
    except OSError:
        same = False
    return str(logical if same else physical)


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
    found = dict(given or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise InvalidInput(f"tag {name!r}: {value!r} is malformed: name and value must be text, like model=dqn")
    return found


def _count(value: int, what: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidInput(f"{what} {value!r} is not possible: give 0 to {most}")
    return value


def _line(value: str | None, what: str, most: int) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{what} {value!r} must be text")
    if value and len(value) > most:
        raise InvalidInput(f"the {what} has {len(value):,} characters: at most {most:,}")
    return value or None


def _short(name: str) -> str:
    data = name.encode("utf-8", "surrogateescape")[:HASH_FIELD_BYTES]
    return data.decode("utf-8", "ignore")
