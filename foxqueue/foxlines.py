"""Scripts that are submitted: their ``#FOX`` lines, which are like ``#SBATCH``, and the copy that may go along.

``#FOX --gpu-memory 8G`` counts in the block of comments with which a script begins: up to the first line that is
neither a comment nor blank.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from foxqueue.errors import InvalidInput

MARK = b"#FOX"
MAX_BYTES = 1024 * 1024  # of a copy, and of the comments that are read
_LOOKS_LIKE = re.compile(rb"\s*#+\s*FOX\s*:?\s*--?[a-z]", re.IGNORECASE)
_LINE_BYTES = 64 * 1024


class Line(NamedTuple):
    """The words of one ``#FOX`` line, and where it stands, like ``train.sh line 3``."""

    words: list[str]
    place: str


class Script(NamedTuple):
    """A script with something to be said of it.

    Attributes:
        word: its path, as given.
        lines: its ``#FOX`` lines.
        interpreter: the words of its first line, ``#!/usr/bin/env python``; empty where there is none.
        executable: whether this process may execute it.
        unread: where lines stand that look like ``#FOX`` lines, and are none.
        helped: whether it takes more than its word to run it: a path, or its interpreter.
    """

    word: str
    lines: list[Line]
    interpreter: list[str]
    executable: bool
    unread: list[str]
    helped: bool

    def command(self, arguments: list[str], *, elsewhere: bool = False, copied: bool = False) -> list[str]:
        """A command that runs it, by its interpreter where it is not executable.

        Args:
            arguments: of the script.
            elsewhere: the job runs in another directory than this process.
            copied: its copy will run, which is executable.

        Raises:
            InvalidInput: it names no interpreter.
        """
        relative = "/" in self.word and not self.word.startswith("/")
        if not self.helped or (not self.lines and relative and elsewhere):  # it is looked for where the job runs
            return [self.word, *arguments]
        if not self.interpreter:
            raise InvalidInput(
                f"{self.word} does not say what runs it: give it a first line like #!/bin/sh, or submit the whole "
                f"command, like foxqueue submit -- sh {self.word}"
            )
        here = self.word if "/" in self.word else f"./{self.word}"
        path = os.path.abspath(here) if elsewhere else here  # noqa: PTH100 - Path.resolve would follow links
        return [*([] if self.executable or copied else self.interpreter), path, *arguments]


def script(word: str) -> Script | None:
    """Read the script that a command begins with.

    Args:
        word: the command's first, a path from here.

    Returns:
        It; None where the word is no text file that can be read, and where the file has no ``#FOX`` lines, nothing
        like them, and can be started by the word.

    Raises:
        InvalidInput: a ``#FOX`` line has quotes that do not end.
    """
    try:
        with _regular(word) as file:
            comments = list(_comments(file))
    except (OSError, ValueError):
        return None
    lines = [_line(text, word, at) for at, text in comments if _counts(text)]
    unread = [f"{word} line {at}" for at, text in comments if _LOOKS_LIKE.match(text) and not _counts(text)]
    at, first = comments[0] if comments else (0, b"")
    interpreter = os.fsdecode(first[2:]).split(None, 1) if at == 1 and first.startswith(b"#!") else []
    executable = os.access(word, os.X_OK)
    if "/" in word:
        helped = bool(lines) or (bool(interpreter) and not executable)
    else:
        helped = bool(lines) or ((bool(interpreter) or not executable) and shutil.which(word) is None)
    return Script(word, lines, interpreter, executable, unread, helped) if helped or unread else None


def _counts(text: bytes) -> bool:
    """Whether a comment is a ``#FOX`` line."""
    return text[:4] == MARK and text[4:5] in b" \t"


def kept(word: str) -> bytes:
    """The copy of the script that a command begins with.

    Args:
        word: the command's first, a path from here.

    Raises:
        InvalidInput: it cannot be read, is larger than 1 MiB, or no script: its first line names no interpreter.
    """
    try:
        with _regular(word) as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"--script keeps a copy of the command's first word, and {word!r} cannot be read here ({why}): give the "
            "path of a script, like --script -- ./train.sh"
        ) from error
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"--script: {word} has over 1 MiB, which is too large to travel: leave --script out")
    if not content.startswith(b"#!"):
        raise InvalidInput(
            f"--script: {word} does not say what runs it: give it a first line like #!/bin/sh or #!/usr/bin/env python3"
        )
    return content


def _regular(word: str) -> BinaryIO:
    """A file opened to be read, which would wait for a pipe."""
    if not stat.S_ISREG(os.stat(word).st_mode):  # noqa: PTH116
        raise ValueError("it is no file")
    return open(word, "rb")  # noqa: PTH123


def _comments(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The comments with which a text begins, each with the number of its line.

    Raises:
        ValueError: it is no text.
    """
    at = 0
    while (line := file.readline(_LINE_BYTES)) and file.tell() <= MAX_BYTES:
        at += 1
        text = line.rstrip()
        if text.lstrip()[:1] not in (b"#", b""):
            return
        if b"\0" in text:
            raise ValueError("it is no text")
        if text:
            yield at, text


def _line(text: bytes, word: str, at: int) -> Line:
    place = f"{word} line {at}"
    try:
        return Line(shlex.split(os.fsdecode(text[len(MARK) :])), place)
    except ValueError as error:
        raise InvalidInput(
            f"{place}: {os.fsdecode(text)!r:.100} cannot be read ({error}): quote as a shell does"
        ) from error
