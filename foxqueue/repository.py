"""Which commit a job's directory stands at, for people who ask later what it was that ran. Nothing here ever fails."""

from __future__ import annotations

import os
import time
from typing import Any

KEPT_S = 5.0  # an answer holds for so long: a loop of submissions does not pay for git each time
LIMIT_S = 2.0
REMEMBERED = 64  # directories

_QUESTION = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")


class Repositories:
    """The state of the repositories in which directories lie. An answer may be KEPT_S seconds old."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, dict[str, Any] | None]] = {}

    def state(self, directory: str) -> dict[str, Any] | None:
        """Commit, branch and dirty of the repository in which a directory lies; branch is None where none is checked
        out, and dirty does not look at files that git does not know.

        Returns:
            The same object as before while the answer holds; None where there is no repository, or git cannot tell.
        """
        now = time.monotonic()
        known = self._known.get(directory)
        if known is None or now >= known[0]:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = look(directory) if in_repository(directory) else None
            if known is not None and known[1] == found:
                found = known[1]
            known = self._known[directory] = (time.monotonic() + KEPT_S, found)
        return known[1]


def in_repository(directory: str) -> bool:
    """Whether it or a directory above it has a ``.git``, without asking git."""
    place = os.path.realpath(directory)
    while not os.path.lexists(os.path.join(place, ".git")):  # noqa: PTH118 - at submissions: Path takes ten times as long
        above = os.path.dirname(place)  # noqa: PTH120
        if above == place:
            return False
        place = above
    return True


def look(directory: str) -> dict[str, Any] | None:
    """Ask git, which may take LIMIT_S seconds; see :meth:`Repositories.state`."""
    import subprocess  # as long to load as git takes

    # GIT_DIR and the like are of a hook that submits, and mean its own repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", directory, *_QUESTION],
            env={**environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return read(done.stdout) if done.returncode == 0 else None


def read(status: bytes) -> dict[str, Any] | None:
    """Read what ``git status --porcelain=v2 --branch`` wrote; None where there is no commit yet."""
    lines = status.decode("utf-8", "replace").splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# ") and " " in line[2:])
    commit, branch = headers.get("branch.oid", ""), headers.get("branch.head", "")
    if not commit or commit == "(initial)":
        return None
    dirty = any(line and not line.startswith("#") for line in lines)
    return {"commit": commit, "branch": None if branch in ("", "(detached)") else branch, "dirty": dirty}
