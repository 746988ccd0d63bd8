"""Files and directories of a home that must belong to this user alone, be whole, and lie on a local disk."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any

from foxqueue.config import Config
from foxqueue.errors import FoxqueueError

# File systems whose locks, renames and caches are another machine's: an append-only file is not safe there.
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
    }
    | {"ocfs2", "gfs2", "glusterfs", "panfs", "orangefs", "davfs", "coda"}
    | {f"fuse.{name}" for name in ("sshfs", "glusterfs", "ceph", "ceph-fuse", "rclone", "s3fs", "gcsfuse", "juicefs")}
)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_ID = re.compile(r"[0-9a-f]{32}\Z")


def private_dir(path: Path) -> Path:
    """Make a 0700 directory, with its parents, or check the one that is there.

    Raises:
        FoxqueueError: it cannot be made, belongs to somebody else, or others may write to it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            check_private(path)
    except OSError as error:
        raise FoxqueueError(f"directory {path} cannot be made: {error.strerror or error}") from error
    return path


def check_private(path: Path) -> None:
    """Raise FoxqueueError unless ``path`` is this user's directory; one that others may only enter is closed."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise FoxqueueError(f"{path} must be a directory: move what is there aside")
    if found.st_uid != os.geteuid():
        raise FoxqueueError(f"{path} belongs to user {found.st_uid}, not to you: set another FOXQUEUE_HOME")
    if found.st_mode & 0o022:  # they may have put something there
        raise FoxqueueError(
            f"others may write to {path} (mode {found.st_mode & 0o777:o}): look what is in it, then chmod 700 {path}"
        )
    if found.st_mode & 0o055:
        path.chmod(0o700)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file by one rename, so that a reader, or the next start after a power cut, sees no half.

    Args:
        path: of the file.
        text: its new content.
        mode: its permissions, whatever the umask; it never has wider ones.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(handle)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replace a file for this user alone, by :func:`write_text`."""
    write_text(path, json.dumps(data))


def read_json(path: Path) -> dict[str, Any]:
    """What the file holds; empty when it is missing, torn or malformed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def home_id(config: Config) -> str:
    """A random name of this home on this machine, made at its first use: 32 hex digits."""
    path = private_dir(config.machine_dir) / "id"
    for _ in range(2):
        try:
            text: str | None = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            text = None
        except (OSError, UnicodeDecodeError) as error:
            raise FoxqueueError(f"{path} cannot be read: {error}") from error
        if text is not None and _ID.match(text):
            return text
        _make_id(path, replace=text is not None)  # torn by a power cut
    raise FoxqueueError(f"{path} does not hold 32 hex digits: remove it")


def _make_id(path: Path, replace: bool) -> None:
    beside = path.with_name(f".id.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with beside.open("w", encoding="ascii") as file:
            file.write(secrets.token_hex(16) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if replace:
            beside.replace(path)
            return
        os.link(beside, path)  # unlike a rename it fails when another process was first
    except FileExistsError:
        return  # the caller reads the other one's
    finally:
        beside.unlink(missing_ok=True)


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Type of the file system ``path`` lies on, as in /proc/mounts; empty when it cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    target = path.resolve()
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[1]))
        if target.is_relative_to(point) and len(point.parts) >= best:  # a later mount covers an earlier one
            best, kind = len(point.parts), fields[2]
    return kind
