"""Looks at this machine: the state directory and its disk, file descriptors, places of locks. Nothing is made."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from foxqueue.config import Config
from foxqueue.doctor.check import Check, size
from foxqueue.locks import SHARED_PLACES, fault_of
from foxqueue.places import NETWORK_FILE_SYSTEMS, file_system
from foxqueue.server import FORCE_VARIABLE

MIB = 1024 * 1024
LOW_DISK = 1024 * MIB
LEAST_DISK = 100 * MIB
LOW_SHARE = 0.05
LOW_INODES = 10_000
LEAST_INODES = 100  # a run makes about five files, beside its own
# `up` holds about 10 files and a worker 20. The server that `up` starts needs one a connection, four a worker, and
# one for each command that runs; with fewer files it takes fewer connections.
WANTED_FILES = 1024
LEAST_FILES = 64
_ANOTHER_HOME = "set another FOXQUEUE_HOME"
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


def state(config: Config) -> Check:
    """Whether the state directory is there or can be made, is this user's alone, and can be written."""
    path = config.machine_dir
    if not os.path.lexists(path):
        parent = _nearest(path)
        if os.access(parent, os.W_OK | os.X_OK) and parent.is_dir():
            return Check("state", True, f"{path} will be made", required=True)
        cure = f"make {config.home} for this user, or {_ANOTHER_HOME}"
        return Check("state", False, f"{path} cannot be made in {parent}", cure, required=True)
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        return Check("state", False, f"{path} is no directory", "move what is there aside", required=True)
    if found.st_uid != os.geteuid():
        return Check("state", False, f"{path} belongs to user {found.st_uid}", _ANOTHER_HOME, required=True)
    if not os.access(path, os.W_OK | os.X_OK):
        cure = f"chmod 700 {path}, or mount its disk for writing"
        return Check("state", False, f"{path} cannot be written", cure, required=True)
    if found.st_mode & 0o022:
        detail = f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):o})"
        return Check("state", False, detail, f"look what is in it, then chmod 700 {path}", required=True)
    return Check("state", True, f"{path}", required=True)


def state_file_system(config: Config, environ: Mapping[str, str]) -> Check | None:
    """Whether it lies on a disk of this machine."""
    kind = file_system(_nearest(config.machine_dir))
    if kind not in NETWORK_FILE_SYSTEMS:
        return Check("filesystem", True, kind or "unknown")
    detail = f"{config.home} lies on a network file system ({kind}), where locks and files may come late or be lost"
    own_server = config.url is None and environ.get(FORCE_VARIABLE) != "1"
    cure = f"set FOXQUEUE_HOME to a local directory; {FORCE_VARIABLE}=1 runs our own server there all the same"
    return Check("filesystem", False, detail, cure, required=own_server)


def disk(config: Config) -> Iterator[Check]:
    """Room for output, exit records and the server's file, in bytes and in files."""
    place = _nearest(config.machine_dir)
    found = os.statvfs(place)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    yield _room("disk", f"{size(free)} of {size(total)} free at {place}", free, total, (LOW_DISK, LEAST_DISK))
    if found.f_files:  # some file systems have no fixed number
        free, total = found.f_favail, found.f_files
        yield _room("inodes", f"{free:,} of {total:,} free at {place}", free, total, (LOW_INODES, LEAST_INODES))


def _room(name: str, detail: str, free: int, total: int, bounds: tuple[int, int]) -> Check:
    low, least = bounds
    if free >= max(low, total * LOW_SHARE):
        return Check(name, True, detail)
    cure = "delete what is not needed there, or set FOXQUEUE_HOME to a directory on another disk"
    return Check(name, False, detail, cure, required=free < least)


def files() -> Check:
    """How many files one process may have open, against what `up` and the server that it starts need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED_FILES:
        return Check("files", True, "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} open files a process")
    allowed = hard == resource.RLIM_INFINITY or hard >= WANTED_FILES
    how = "in the shell that starts it" if allowed else "as root, or in limits.conf (systemd: LimitNOFILE)"
    detail = f"{soft} open files a process: the server that up starts can take {max(soft - 32, 0)} connections"
    return Check("files", False, detail, f"ulimit -n {WANTED_FILES} {how}", required=soft < LEAST_FILES)


def locks(environ: Mapping[str, str]) -> Iterator[Check]:
    """Where the locks of real GPUs can lie, so that users and containers meet."""
    given = environ.get("FOXQUEUE_LOCK_DIR")
    cure = "set FOXQUEUE_LOCK_DIR to a directory that all users may write"
    if given:
        fault = fault_of(Path(given)) if Path(given).is_absolute() else f"{given} is not an absolute path"
        if fault:
            detail, cure = f"FOXQUEUE_LOCK_DIR: {fault}", "name an existing directory that all users may write"
            yield Check("locks", False, detail, cure, required=True)
            return
    faults = {place: fault_of(place if place.exists() else place.parent) for place in SHARED_PLACES}
    usable = [str(place) for place, fault in faults.items() if not fault]
    if given:
        usable.append(given)
    if not usable:
        detail = f"no place for lock files: {'; '.join(faults.values())}"
        yield Check("locks", False, detail, cure, required=True)
    elif not given and any(mark.exists() for mark in _CONTAINER_MARKS):
        detail = f"{', '.join(usable)}, which this container may have for itself: others then use its GPUs unseen"
        yield Check("locks", False, detail, "mount one directory into all of them, and name it by FOXQUEUE_LOCK_DIR")
    else:
        yield Check("locks", True, ", ".join(usable))


def _nearest(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))
