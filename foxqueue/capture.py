"""What of a submitter's surroundings goes along with a job: environment and umask.

The rule: everything, minus ``CUDA_*`` (a worker sets those), minus ``FOXQUEUE_*`` (they belong to the
submitter's own session), minus names that look like secrets, because an environment is stored on the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from foxqueue.errors import InvalidInput

# Parts of a name that mean a secret wherever they stand. TOKENIZERS_PARALLELISM is none.
_SECRET_PART = re.compile(
    r"SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|COOKIE"
)
# Whole words, between underscores: GIT_AUTHOR_NAME, XAUTHORITY and PATH are none.
_SECRET_WORD = re.compile(r"(?:\A|_)(?:O?AUTH\d?|AUTHORIZATION|JWT|BEARER|PASS)(?:_|\Z)")
_SECRET_END = re.compile(r"(?:(?:\A|_)(?:KEYS?|PAT)|_PWD)\Z")
# Look like secrets by the rules above and only say where something is.
_NO_SECRETS = frozenset({"SSH_AUTH_SOCK"})

# True only of the shell that submitted; the worker sets PWD to the job's directory.
_OF_THE_SHELL = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})

# What Python sets LC_CTYPE to.
_COERCED = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})

MAX_STRING = 131_071  # bytes of one argument or variable that Linux takes (MAX_ARG_STRLEN), the closing NUL left out

_SET_BY_WORKER = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})

_last_umask: list[int] = []


@dataclass(frozen=True)
class Captured:
    """A captured environment.

    Attributes:
        env: what goes along.
        left_out: names that do not, sorted. FOXQUEUE_ names, which say where the submitter's own queue is, and
            what is the shell's alone are not told: they would be told at every submission.
    """

    env: dict[str, str]
    left_out: tuple[str, ...]


def is_secret(name: str) -> bool:
    """Whether the name of a variable looks as if its value were a secret."""
    upper = name.upper().replace("-", "_").replace(".", "_")
    if upper in _NO_SECRETS:
        return False
    return bool(_SECRET_PART.search(upper) or _SECRET_WORD.search(upper) or _SECRET_END.search(upper))


def capture(environ: Mapping[str, str]) -> Captured:
    """Take the part of an environment that goes along with a job.

    Args:
        environ: the submitter's environment.
    """
    env: dict[str, str] = {}
    left_out = []
    added = environ is os.environ and locale_is_pythons(environ, first_environment())
    for name, value in environ.items():
        if name in _OF_THE_SHELL or name.startswith("FOXQUEUE_") or (added and name == "LC_CTYPE"):
            continue
        if name.startswith("CUDA_") or is_secret(name):
            left_out.append(name)
        else:
            check_length(value, f"environment variable {name!r:.60}", len(name) + 1)
            env[name] = value
    return Captured(env, tuple(sorted(left_out)))


def comparable(environ: Mapping[str, str]) -> Mapping[Any, Any]:
    """What to compare to see whether an environment has changed: of os.environ its own store, so that its hundred
    values need not be decoded."""
    store: Mapping[Any, Any] = getattr(environ, "_data", environ)
    return store


def locale_is_pythons(environ: Mapping[str, str], first: Mapping[str, str]) -> bool:
    """Whether LC_CTYPE was set by Python itself, which does so where it finds no locale (PEP 538).

    Args:
        environ: the environment as it is.
        first: as this process was given it; empty when that cannot be told, and then nothing is said of Python.
    """
    if environ.get("LC_CTYPE") not in _COERCED or first.get("PYTHONCOERCECLOCALE") == "0":
        return False
    known = any(environ.get(name) == value for name, value in first.items())  # a program may write over that memory
    unset = not first.get("LC_ALL") and not first.get("LC_CTYPE") and first.get("LANG", "") in ("", "C", "POSIX")
    return known and unset


def first_environment() -> dict[str, str]:
    try:
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (os.fsdecode(pair).partition("=") for pair in pairs) if name}


def explicit(pairs: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read ``K=V`` and ``NAME`` as given to ``-e``; the last one of a name counts.

    Raises:
        InvalidInput: a malformed name, a name that only the worker may set, or NAME is not set here.
    """
    env: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator and name in environ:
            value = environ[name]
        elif not separator and name:
            check_env({name: ""})
            raise InvalidInput(f"-e {name}: it is not set here; give a value with -e {name}=VALUE")
        env[name] = value
    check_env(env)
    return env


def check_env(env: Mapping[str, str]) -> None:
    """Raise InvalidInput unless these may be set for a job by its submitter."""
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput(f"environment variable {name!r}: name and value must be text, not {value!r}")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidInput(f"environment variable {name!r} is malformed: write NAME=VALUE or NAME")
        check_length(value, f"environment variable {name!r:.60}", len(name) + 1)
        if name in _SET_BY_WORKER:
            raise InvalidInput(
                f"{name} cannot be passed on: the worker sets it to the device the job was given; "
                "choose what it carries with --visible index|uuid, or run without a GPU with --gpus 0"
            )
        if name.startswith("FOXQUEUE_"):
            raise InvalidInput(f"{name} cannot be passed on: FOXQUEUE_ names are the worker's; choose another name")


def check_length(text: str, what: str, more: int = 0) -> None:
    """Raise InvalidInput when Linux would start no program with this argument or variable.

    Args:
        text: it.
        what: it is, for the message.
        more: characters besides it, the name of a variable.
    """
    if len(text) + more <= MAX_STRING // 4:  # four bytes a character at most
        return
    size = len(text.encode("utf-8", "replace")) + more  # one that stands for a byte of no text becomes one byte
    if size > MAX_STRING:
        raise InvalidInput(
            f"{what} has {size:,} bytes, and Linux starts no program with one of more than {MAX_STRING:,}: "
            "write it to a file and give its path"
        )


def current_umask() -> int:
    """This process's umask.

    The system tells it only to who sets it, and in /proc, which takes long to read. So it is set to what it was at the
    last call, which changes nothing as long as that still holds, and set back to what was found there, both within one
    call of C code: no other Python thread ever runs under another umask.
    """
    if not _last_umask:
        _last_umask.append(_umask_of_proc())
    masks = [_last_umask[0]]
    masks.extend(islice(map(os.umask, masks), 2))  # map reads the list as it grows
    _last_umask[0] = masks[1]
    return masks[1]


def _umask_of_proc() -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    found = re.search(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)
    return int(found[1], 8) if found else 0o077  # a tight one for the moment until it is set back
