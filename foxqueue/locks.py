"""The file locks of a device: who serves it (``.worker``) and who uses it (``.gpu``), machine-wide.

A lock is an flock on a file in every place of the machine that users and containers may share. The kernel drops
it when the last descriptor is closed, so it lives exactly as long as the processes that hold it: no time-out, no
clean-up. The files stay for ever, because unlinking one that somebody waits for would make two locks of one.

A slot of a device, ``<uuid>/<number>``, has a file of its own, ``<uuid>~<number>``, and shares that of the whole device
with the other slots. So a device is used whole or in slots, never both, whoever uses it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from foxqueue.errors import InvalidInput, NoDevice

Role = Literal["worker", "gpu"]

SHARED_PLACES: Final = (Path("/run/lock/foxqueue"), Path("/dev/shm/foxqueue"))
_MAX_RECORD: Final = 65536
_MAX_REPLACED: Final = 100
_MAX_REFUSED: Final = 20
_SLOT: Final = re.compile(r"([^/~]+)/([0-9]{1,3})\Z")
_SLOT_FILE: Final = re.compile(r"([^/~]+)~([0-9]{1,3})\Z")


def lock_places(kind: str, machine_dir: Path, environ: Mapping[str, str]) -> list[Path]:
    """The directories that hold the lock files of devices of one kind, in the order in which they are taken.

    Args:
        kind: ``nvml`` for real GPUs, which all users of the machine share; ``simulated`` and ``cpu`` belong to
            one home.
        machine_dir: this machine's part of the home.
        environ: where FOXQUEUE_LOCK_DIR, one more place for real GPUs, is looked up.

    Raises:
        InvalidInput: FOXQUEUE_LOCK_DIR is set and cannot be used.
        NoDevice: no place can be used; the text says which were tried and what was wrong.
    """
    if kind != "nvml":
        place = machine_dir / "locks"
        fault = _fault_of(place, 0o700)
        if fault:
            raise NoDevice(f"no place for lock files: {fault}")
        return [place]
    faults = {place: _fault_of(place, 0o1777) for place in SHARED_PLACES}
    places = [place for place, fault in faults.items() if not fault]
    given = environ.get("FOXQUEUE_LOCK_DIR")
    if given:
        own = Path(given)
        # Never made here: a mount that is missing would leave a lock that nobody shares.
        fault = _fault_of(own, None) if own.is_absolute() else f"{given} is not an absolute path"
        if fault:
            raise InvalidInput(f"FOXQUEUE_LOCK_DIR: {fault}; name an existing directory that all users may write")
        if not any(_same(own, place) for place in places):
            places.append(own)
    if not places:
        tried = "; ".join(fault for fault in faults.values() if fault)
        raise NoDevice(f"no place for lock files: {tried}; set FOXQUEUE_LOCK_DIR to a directory all users may write")
    return places


def slot_of(device: str) -> tuple[str, int | None]:
    """UUID of the whole device, and the number of the slot that ``device`` names, None for a whole device."""
    match = _SLOT.match(device)
    return (match[1], int(match[2])) if match else (device, None)


def devices_in(places: Sequence[Path], role: Role) -> list[str]:
    """The devices and slots that have a lock file of this role in any of the places."""
    found: set[str] = set()
    for place in places:
        with suppress(OSError):
            found.update(name.removesuffix(f".{role}") for name in os.listdir(place) if name.endswith(f".{role}"))  # noqa: PTH208
    return sorted(_SLOT_FILE.sub(r"\1/\2", name) for name in found if name and not name.startswith("."))


class DeviceLock:
    """One lock of one device: a file in each place, all held or none. A slot also shares those of its whole device.

    Args:
        device: UUID of the device, the files' name, or ``<uuid>/<number>`` for one of its slots.
        role: ``worker``, held by the worker that serves the device, or ``gpu``, held while anything uses it.
        places: from :func:`lock_places`.

    Raises:
        InvalidInput: the device's name cannot be a file name, or there is no place.
    """

    def __init__(self, device: str, role: Role, places: Sequence[Path]) -> None:
        self.whole, self.slot = slot_of(device)
        if not self.whole or "/" in self.whole or "\0" in device or device.startswith("."):
            raise InvalidInput(f"{device!r} cannot name a lock file")
        if not places:
            raise InvalidInput("a lock needs at least one place")
        self.device = device
        self.role = role
        name = self.whole if self.slot is None else f"{self.whole}~{self.slot}"
        self.paths = [Path(place) / f"{name}.{role}" for place in places]
        self._shared_paths = [] if self.slot is None else [Path(place) / f"{self.whole}.{role}" for place in places]
        self._fds: list[int] = []
        self._shared: list[int] = []

    @classmethod
    def from_fds(cls, device: str, role: Role, places: Sequence[Path], fds: Sequence[int]) -> DeviceLock:
        """Take over descriptors that another process locked and handed over, in the order of :attr:`fds`.

        Raises:
            InvalidInput: their number is not that of the files.
        """
        lock = cls(device, role, places)
        shared = len(lock._shared_paths)
        if len(fds) != shared + len(lock.paths):
            raise InvalidInput(f"{len(fds)} descriptors for {shared + len(lock.paths)} lock files of {device}")
        for descriptor in fds:
            os.set_inheritable(descriptor, False)
        lock._shared, lock._fds = list(fds[:shared]), list(fds[shared:])
        return lock

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return bool(self._fds)

    @property
    def fds(self) -> list[int]:
        """The locked descriptors, to hand to the runner, those that slots share first; empty when not held."""
        return [*self._shared, *self._fds]

    def acquire(self) -> bool:
        """Lock the files in all places or in none, without waiting.

        Returns:
            Whether the lock is held now; False when somebody else holds it in any place, and when a whole device is
            asked for of which a slot is held, or a slot of one that is held whole.

        Raises:
            OSError: a file cannot be opened or locked for another reason.
        """
        if self._fds:
            return True
        shared = _lock_all(self._shared_paths, fcntl.LOCK_SH)
        if shared is None:
            return False
        try:
            own = _lock_all(self.paths, fcntl.LOCK_EX)
            if own is None:
                return False
            self._shared, self._fds, shared = shared, own, []
            return True
        finally:
            for descriptor in shared:
                os.close(descriptor)

    def relatives(self) -> list[DeviceLock]:
        """The locks of the same device beside this one, held, whose records may tell what a dead holder left.

        For a slot that of the whole device, for a whole device those of its slots. They can be read and written until
        they are released. One that is not held is still in use, by a process that ends at this moment.

        Raises:
            RuntimeError: this lock is not held.
            OSError: a file cannot be opened or locked.
        """
        if not self._fds:
            raise RuntimeError(f"{self.role} lock of {self.device} is not held")
        found = self._beside()
        for lock in found:
            # Who had it whole is gone, since we share it already; other slots may look at the same time.
            lock._fds = _lock_all(lock.paths, fcntl.LOCK_SH if lock.slot is None else fcntl.LOCK_EX) or []
        return found

    def others(self) -> list[dict[str, Any]]:
        """The records of the other slots of the same device; none for a whole device."""
        if self.slot is None:
            return []
        whole = DeviceLock(self.whole, self.role, [path.parent for path in self.paths])
        found = (lock.read() for lock in whole._beside() if lock.slot != self.slot)
        return [record for record in found if record is not None]

    def _beside(self) -> list[DeviceLock]:
        places = [path.parent for path in self.paths]
        if self.slot is not None:
            return [DeviceLock(self.whole, self.role, places)]
        names = (name for name in devices_in(places, self.role) if name.startswith(f"{self.whole}/"))
        return [DeviceLock(name, self.role, places) for name in names]

    def write(self, record: Mapping[str, Any]) -> None:
        """Say in every file who holds the lock and why.

        Raises:
            RuntimeError: the lock is not held.
            OSError: no place took the record. A place that did not is emptied, never left with an older one.
        """
        self.write_packed(json.dumps(dict(record)).encode("ascii"))

    def write_packed(self, record: bytes) -> None:
        """As :meth:`write`, of a record that is JSON already, without a newline."""
        if not self._fds:
            raise RuntimeError(f"{self.role} lock of {self.device} is not held")
        # Read up to the newline, so the moment between writing and truncating shows no mixture.
        data = record + b"\n"
        faults: list[OSError] = []
        for descriptor in self._fds:
            try:
                if os.pwrite(descriptor, data, 0) != len(data):
                    raise OSError(f"short write to a lock file of {self.device}")
                os.ftruncate(descriptor, len(data))
            except OSError as error:
                faults.append(error)
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
        if len(faults) == len(self._fds):
            raise faults[0]

    def read(self) -> dict[str, Any] | None:
        """The record of the last holder, held or not; None when there is none that can be read."""
        for path in self.paths:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                data = os.pread(descriptor, _MAX_RECORD, 0)
            except OSError:
                continue
            finally:
                os.close(descriptor)
            with suppress(ValueError):
                record = json.loads(data.partition(b"\n")[0])
                if isinstance(record, dict):
                    return record
        return None

    def records(self) -> list[dict[str, Any]]:
        """The records of all whose hold may keep this lock from us: its own first, then its relatives'."""
        return [record for lock in (self, *self._beside()) if (record := lock.read()) is not None]

    def release(self) -> None:
        """Close our descriptors. The lock is dropped when the runner, which shares it, has closed its own too.

        Never LOCK_UN: that would unlock the description which the runner still relies on.
        """
        fds, self._fds, self._shared = [*self._fds, *self._shared], [], []
        for descriptor in fds:  # what is shared comes last: without it nobody may have the rest
            os.close(descriptor)

    def unlock(self) -> None:
        """Drop the lock although processes that were forked meanwhile hold its descriptors too. Only for who shares it
        with nobody on purpose.
        """
        for descriptor in (*self._fds, *self._shared):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        self.release()


def _lock_all(paths: Sequence[Path], how: int) -> list[int] | None:
    """Open and lock all files or none; None when somebody else holds one."""
    taken: list[int] = []
    done = False
    try:
        for path in paths:
            descriptor = _lock(path, how)
            if descriptor is None:
                return None
            taken.append(descriptor)
        done = True
        return taken
    finally:
        if not done:
            for descriptor in taken:
                os.close(descriptor)


def _lock(path: Path, how: int) -> int | None:
    """Open and lock one file; None when somebody else holds it."""
    for _ in range(_MAX_REPLACED):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            ours, there = os.fstat(descriptor), os.lstat(path)
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass  # removed between opening and locking: what we locked is nobody's lock file
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(f"lock file {path} is replaced again and again")


def _open(path: Path) -> int:
    """Open a lock file, made when missing, writable for every user of the machine."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for turn in range(_MAX_REPLACED):
        # Opened without O_CREAT first: in a sticky directory fs.protected_regular refuses O_CREAT on the
        # file of another user.
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            pass
        except PermissionError:
            if turn >= _MAX_REFUSED:
                raise
            time.sleep(0.001)  # another user has just made it and not yet opened it to all
            continue
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            raise OSError(f"lock file {path} is not a regular file")
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        os.fchmod(descriptor, 0o666)  # whatever the umask
        return descriptor
    raise OSError(f"lock file {path} comes and goes")


def _fault_of(place: Path, make_mode: int | None) -> str:
    """Why a directory cannot hold lock files, empty when it can; made with ``make_mode`` when missing."""
    if make_mode is not None:
        try:
            if make_mode == 0o700:
                for parent in reversed(place.parents):
                    with suppress(FileExistsError):
                        parent.mkdir(0o700)
            place.mkdir(make_mode)
            place.chmod(make_mode)  # whatever the umask
        except FileExistsError:
            pass
        except OSError as error:
            return f"{place}: {error.strerror}"
    return fault_of(place)


def fault_of(place: Path) -> str:
    """Why a directory cannot hold lock files; empty when it can. It is only looked at."""
    if not place.is_dir():
        return f"{place} is not a directory"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} cannot be written"
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"{place}: {error.strerror}"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # somebody locked the directory itself: so it can be locked
    except OSError as error:
        return f"{place} does not take locks: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return one.samefile(other)
    return False
