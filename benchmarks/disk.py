"""What of a server's append-only files is on the disk: what syncs covered, what the kernel wrote, a cut back to it."""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import statistics
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("fsync.c")
_FIEMAP, _EXTENTS, _UNWRITTEN = 0xC020660B, 64, 0x4  # linux/fiemap.h: FS_IOC_FIEMAP, _, FIEMAP_EXTENT_DELALLOC
NO_COMPILER = "the parts durability and leases need a C compiler: install gcc or clang, or set CC"


@dataclass(frozen=True)
class Sync:
    """One sync of a file that was done.

    Attributes:
        path: of the file then; what is made anew is called temp- until it is whole.
        inode: of the file.
        size: bytes of it that are on the disk since.
        began: when, by ``time.monotonic()``.
        done: when it had returned.
    """

    path: Path
    inode: int
    size: int
    began: float
    done: float


class Syncs:
    """The syncs of one process.

    Args:
        folder: for the library and the record; kept apart from the data.

    Raises:
        FileNotFoundError: there is no C compiler.
    """

    def __init__(self, folder: Path) -> None:
        self._library = _build(folder)
        self._record = folder / "syncs"

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """For a process whose syncs are to be recorded."""
        preload = f"{self._library}:{base['LD_PRELOAD']}" if base.get("LD_PRELOAD") else str(self._library)
        return {**base, "LD_PRELOAD": preload, "FSYNC_RECORD": str(self._record)}

    def slow_down(self, seconds: float) -> None:
        """From now on each sync takes this much longer."""
        fresh = self._record.with_suffix(".fresh")
        fresh.write_text(str(round(seconds * 1000)), encoding="ascii")
        fresh.replace(f"{self._record}.delay")

    def done(self) -> list[Sync]:
        """All so far, in the order in which they ended.

        Raises:
            OSError: there is no record, because the process did not load the library.
        """
        return [_read(line) for line in self._record.read_text(encoding="ascii").splitlines()]


def _read(line: str) -> Sync:
    inode, size, began, done, path = line.split(" ", 4)
    return Sync(Path(path), int(inode), int(size), int(began) / 1e9, int(done) / 1e9)


def compiler() -> str | None:
    """A C compiler: CC, or one on PATH."""
    return os.environ.get("CC") or next((cc for cc in ("cc", "gcc", "clang") if shutil.which(cc)), None)


def _build(folder: Path) -> Path:
    found = compiler()
    if found is None:
        raise FileNotFoundError(NO_COMPILER)
    library = folder / "fsync.so"
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([*found.split(), *flags], check=True)
    return library


def cut_copy(files: Path, to: Path, syncs: list[Sync], moment: float) -> None:
    """Copy append-only files as a power cut at that moment would have left them at the worst: each as of its last sync.

    The server must be dead. Only the last file may have grown since the moment: a rewrite that ended since would have
    removed files that were there.

    Args:
        files: the server's ``appendonlydir``.
        to: the directory to make.
        syncs: of the server and its children.
        moment: by ``time.monotonic()``.
    """
    to.mkdir(parents=True)
    for file in files.resolve().iterdir():
        inode = file.stat().st_ino  # it may have been another file's before
        covered = [
            sync.size
            for sync in syncs
            if sync.done <= moment and sync.inode == inode and (sync.path == file or sync.path.name.startswith("temp"))
        ]
        with file.open("rb") as source, (to / file.name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
            copy.truncate(min(covered[-1] if covered else 0, copy.tell()))


def unwritten(file: Path) -> bool | None:
    """Whether a part of the file was not even begun to be written by the kernel.

    Returns:
        None where the file system does not tell.
    """
    asked = array.array("b", struct.pack("=QQIIII", 0, 2**63 - 1, 0, 0, _EXTENTS, 0) + bytes(56 * _EXTENTS))
    with file.open("rb") as handle:
        try:
            fcntl.ioctl(handle, _FIEMAP, asked)
        except OSError:
            return None
    (count,) = struct.unpack_from("=I", asked, 20)
    flags = [struct.unpack_from("=I", asked, 32 + 56 * at + 40)[0] for at in range(count)]
    return any(flag & _UNWRITTEN for flag in flags)


def sync_ms(folder: Path, count: int = 50) -> float:
    """What one fdatasync of some hundred new bytes takes on this disk: the median."""
    times = []
    with (folder / "probe").open("ab", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(500))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
