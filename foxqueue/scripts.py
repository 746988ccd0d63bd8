"""Loads the Lua files. A file's header is its signature: calls go by name, and a wrong name is a TypeError.

Header lines of a script, in ``foxqueue/lua/<verb>.lua``::

    -- verb: state, state -> state          the transition (or what else it does)
    -- KEYS[1] running ZSET …               a key by name; one of Keys' own names is filled in by itself
    -- ARGV[2] fence …                      an argument by name
    -- ARGV[5..] shapes …                   the rest, a list
    -- FOUND job:<n> HASH …                 keys that the script finds out itself, built from ``prefix``
    -- INCLUDE _clock _job                  fragments, put in front of the body in this order
    -- RETURNS …

The loader puts ``local running, … = KEYS[1], …`` in front, so the body speaks in names and an index can
never be off. Fragments (``_name.lua``) say with ``-- NEEDS name …`` which names must be there before them. Lua makes
every function of a script anew in each run, which takes as long as a command: so what few runs need stands where
they need it, at a line ``-- HERE _name …`` in the body.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from foxqueue.keys import Keys

Value = str | bytes | int

_SLOT = re.compile(r"-- (KEYS|ARGV)\[(\d+)(\.\.)?\] (\w+)")
_HERE = re.compile(r"^ *-- HERE (.*)\n", re.MULTILINE)
_LINE = re.compile(r"-- (INCLUDE|NEEDS|RETURNS|FOUND) (.*)")


@dataclass(frozen=True)
class Script:
    """One script as it is sent: its text, its names in order, and what its header says."""

    name: str
    title: str
    keys: tuple[str, ...]
    arguments: tuple[str, ...]
    rest: str | None
    includes: tuple[str, ...]
    returns: str
    text: str
    sha: str


@dataclass(frozen=True)
class Call:
    """A script with its keys and arguments bound: the same bytes however often it is sent."""

    script: Script
    parts: tuple[Value, ...]

    def evalsha(self) -> tuple[Value, ...]:
        """The command to send."""
        return ("EVALSHA", self.script.sha, str(len(self.script.keys)), *self.parts)

    def eval(self) -> tuple[Value, ...]:
        """The same with the script's text, for a server that has forgotten it."""
        return ("EVAL", self.script.text, str(len(self.script.keys)), *self.parts)


@cache
def source(name: str) -> str:
    """Text of ``foxqueue/lua/<name>.lua``."""
    return resources.files("foxqueue").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def names() -> list[str]:
    """All scripts, fragments left out."""
    folder = resources.files("foxqueue").joinpath("lua")
    files = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".lua") for name in files if name.endswith(".lua") and name[0] != "_")


@cache
def load(name: str) -> Script:
    """Read one script and put its fragments in.

    Raises:
        ValueError: the header is inconsistent: a gap in the numbers, a name twice, or a fragment's need not met.
    """
    text = source(name)
    header = _header(text)
    slots = {"KEYS": [], "ARGV": []}  # type: dict[str, list[str]]
    rest: str | None = None
    for match in filter(None, map(_SLOT.match, header)):
        kind, index, more, slot = match.groups()
        if int(index) != len(slots[kind]) + 1 or rest is not None:
            raise ValueError(f"{name}.lua: {kind}[{index}] is out of order")
        if more:
            rest = slot
        else:
            slots[kind].append(slot)
    words = _words(header)
    declared = [*slots["KEYS"], *slots["ARGV"], *([rest] if rest else [])]
    if len(set(declared)) != len(declared):
        raise ValueError(f"{name}.lua: a name stands twice in the header")
    known = set(declared)
    fragments = _fragments(name, known, words["INCLUDE"])
    later = [fragment for match in _HERE.finditer(text) for fragment in match[1].split()]
    known |= _locals(text)
    text = _HERE.sub(lambda match: _fragments(name, known, match[1].split()), text)
    full = _preamble(slots["KEYS"], slots["ARGV"], rest) + fragments + text
    sha = hashlib.sha1(full.encode(), usedforsecurity=False).hexdigest()
    return Script(
        name,
        header[0].removeprefix("-- "),
        tuple(slots["KEYS"]),
        tuple(slots["ARGV"]),
        rest,
        (*words["INCLUDE"], *later),
        " ".join(words["RETURNS"]),
        full,
        sha,
    )


def _header(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))]


def _words(header: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"INCLUDE": [], "NEEDS": [], "RETURNS": [], "FOUND": []}
    for match in filter(None, map(_LINE.match, header)):
        found[match[1]] += match[2].split()
    return found


def _preamble(keys: Sequence[str], arguments: Sequence[str], rest: str | None) -> str:
    lines = [f"local {name} = KEYS[{index}]\n" for index, name in enumerate(keys, 1)]
    lines += [f"local {name} = ARGV[{index}]\n" for index, name in enumerate(arguments, 1)]
    if rest:
        first = len(arguments) + 1
        lines.append(f"local {rest} = {{}}\nfor i = {first}, #ARGV do {rest}[i - {first - 1}] = ARGV[i] end\n")
    return "".join(lines)


def _fragments(name: str, known: set[str], includes: Iterable[str]) -> str:
    """The fragments' text; their own names become known."""
    texts = []
    for fragment in includes:
        text = source(fragment)
        missing = set(_words(_header(text))["NEEDS"]) - known
        if missing:
            raise ValueError(f"{name}.lua: {fragment} needs {', '.join(sorted(missing))}")
        known |= _locals(text)
        texts.append(text)
    return "".join(texts)


def _locals(text: str) -> set[str]:
    return set(re.findall(r"^ *local (?:function )?(\w+)", text, re.MULTILINE))


@dataclass(frozen=True)
class _Plan:
    """What binding a script takes: its parts with the namespace's own filled in, and where which name goes."""

    script: Script
    parts: tuple[Value, ...]
    open: tuple[tuple[int, str], ...]


class Scripts:
    """The scripts of one namespace, called by name."""

    def __init__(self, keys: Keys) -> None:
        self._fixed: dict[str, Value] = {
            name: getattr(keys, name) for name, kind in vars(Keys).items() if isinstance(kind, property)
        }
        self._plans: dict[str, _Plan] = {}

    def call(self, name: str, /, **values: Value | Sequence[Value]) -> Call:
        """Bind keys and arguments by name. Keys of the namespace and its prefix are filled in.

        Raises:
            TypeError: a name of the header was not given, or one given is not in the header.
        """
        script = load(name)
        plan = self._plans.get(name)
        if plan is None or plan.script is not script:
            plan = self._plans[name] = self._planned(script)
        given: dict[str, Any] = values
        parts: list[Value] = list(plan.parts)
        try:
            for index, slot in plan.open:
                parts[index] = given[slot]
            if script.rest:
                parts += given[script.rest]
        except KeyError as error:
            raise TypeError(f"{name} needs {error.args[0]!r}") from None
        if len(given) != len(plan.open) + bool(script.rest):
            unknown = set(given) - {slot for _, slot in plan.open} - {script.rest}
            raise TypeError(f"{name} has no {', '.join(sorted(unknown))}")
        return Call(script, tuple(parts))

    def _planned(self, script: Script) -> _Plan:
        slots = (*script.keys, *script.arguments)
        return _Plan(
            script,
            tuple(self._fixed.get(slot, "") for slot in slots),
            tuple((index, slot) for index, slot in enumerate(slots) if slot not in self._fixed),
        )
