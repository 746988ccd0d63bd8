"""Runs the scripts with one rule taken out: a test that does not fail then proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from foxqueue import scripts


@contextlib.contextmanager
def changed(file: str, old: str, new: str) -> Iterator[None]:
    """Replace a piece of one Lua file, in memory only.

    Args:
        file: name of the script or fragment, without ``.lua``.
        old: what stands there exactly once.
        new: what shall stand there.
    """
    original = scripts.source

    def source(name: str) -> str:
        text = original(name)
        if name != file:
            return text
        assert text.count(old) == 1, f"{file}.lua has no single {old!r}: the rule moved"
        return text.replace(old, new)

    with mock.patch.object(scripts, "source", source):
        scripts.load.cache_clear()
        try:
            yield
        finally:
            scripts.load.cache_clear()
