"""A device's file lock: one holder on the machine, for as long as any process shares its descriptor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import foxqueue.locks
from foxqueue.errors import InvalidInput, NoDevice
from foxqueue.locks import DeviceLock, lock_places

UUID = "GPU-1"


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "one", tmp_path / "two"]
    for place in made:
        place.mkdir()
    return made


@pytest.fixture
def lock(places: list[Path]) -> Iterator[DeviceLock]:
    made = DeviceLock(UUID, "gpu", places)
    yield made
    made.release()


def other(lock: DeviceLock) -> DeviceLock:
    return DeviceLock(lock.device, lock.role, [path.parent for path in lock.paths])


def test_one_holder(lock: DeviceLock) -> None:
    second = other(lock)
    assert lock.acquire()
    assert lock.acquire()
    assert lock.held
    assert not second.acquire()
    assert (second.held, second.fds) == (False, [])
    lock.release()
    lock.release()
    assert not lock.held
    assert second.acquire()
    second.release()


def test_roles_and_devices_are_apart(lock: DeviceLock, places: list[Path]) -> None:
    assert lock.acquire()
    for free in (DeviceLock(UUID, "worker", places), DeviceLock("GPU-2", "gpu", places)):
        assert free.acquire()
        free.release()


def test_all_places_or_none(lock: DeviceLock, places: list[Path]) -> None:
    elsewhere = DeviceLock(UUID, "gpu", places[1:])
    assert elsewhere.acquire()
    assert not lock.acquire()
    first = DeviceLock(UUID, "gpu", places[:1])
    assert first.acquire()  # nothing of the failed attempt is left
    first.release()
    elsewhere.release()
    assert lock.acquire()


def test_files_are_for_every_user_and_stay(lock: DeviceLock) -> None:
    umask = os.umask(0o077)
    try:
        assert lock.acquire()
    finally:
        os.umask(umask)
    assert [path.stat().st_mode & 0o777 for path in lock.paths] == [0o666, 0o666]
    assert [path.name for path in lock.paths] == ["GPU-1.gpu", "GPU-1.gpu"]
    assert not any(os.get_inheritable(descriptor) for descriptor in lock.fds)
    lock.release()
    assert all(path.exists() for path in lock.paths)


def test_record(lock: DeviceLock) -> None:
    assert lock.read() is None
    with pytest.raises(RuntimeError):
        lock.write({})
    assert lock.acquire()
    assert lock.read() is None
    lock.write({"home": "/a/very/long/path" * 20, "user": "\udcff"})
    lock.write({"user": "é"})
    assert lock.read() == other(lock).read() == {"user": "é"}
    assert [json.loads(path.read_text()) for path in lock.paths] == [{"user": "é"}] * 2
    lock.release()
    assert other(lock).read() == {"user": "é"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null\n"])
def test_a_broken_record_is_none_and_the_next_place_answers(lock: DeviceLock, content: bytes) -> None:
    for path in lock.paths:
        path.write_bytes(content)
    assert lock.read() is None
    lock.paths[1].write_bytes(b'{"a": 1}\n{"old": ')
    assert lock.read() == {"a": 1}


def test_a_replaced_file_is_noticed(lock: DeviceLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a file that is unlinked between opening and locking, then the lock is on the file that is there."""
    flock, turns = foxqueue.locks.fcntl.flock, []

    def replacing(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        turns.append(descriptor)
        if len(turns) <= 2:
            lock.paths[0].unlink()
        if len(turns) == 2:
            lock.paths[0].touch()

    monkeypatch.setattr(foxqueue.locks.fcntl, "flock", replacing)
    assert lock.acquire()
    assert len(turns) == 4
    assert os.fstat(lock.fds[0]).st_ino == lock.paths[0].stat().st_ino
    monkeypatch.undo()
    assert not other(lock).acquire()


def test_a_link_is_not_followed(lock: DeviceLock, tmp_path: Path) -> None:
    lock.paths[1].symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        lock.acquire()
    assert not lock.held
    assert not (tmp_path / "victim").exists()
    lock.paths[1].unlink()
    assert lock.acquire()


def test_a_pipe_in_the_place_of_the_file_does_not_hang(lock: DeviceLock) -> None:
    os.mkfifo(lock.paths[0])
    with pytest.raises(OSError, match="not a regular file"):
        lock.acquire()


def test_shared_with_another_process(lock: DeviceLock, places: list[Path]) -> None:
    """Given a child that shares the descriptors, when we release, then the lock lives until the child ends."""
    assert lock.acquire()
    script = "import sys; sys.stdout.write('up\\n'); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=lock.fds,
    )
    lock.release()
    assert not other(lock).acquire()
    child.communicate()
    assert lock.acquire()


def test_a_killed_holder_holds_nothing(lock: DeviceLock, places: list[Path]) -> None:
    script = (
        "import sys, pathlib; from foxqueue.locks import DeviceLock\n"
        "lock = DeviceLock('GPU-1', 'gpu', [pathlib.Path(p) for p in sys.argv[1:]])\n"
        "assert lock.acquire(); lock.write({'who': 'child'}); print('up', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, places)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    assert not lock.acquire()
    assert lock.read() == {"who": "child"}
    child.kill()
    child.communicate()
    assert lock.acquire()


def test_descriptors_are_taken_over(lock: DeviceLock, places: list[Path]) -> None:
    assert lock.acquire()
    copy = DeviceLock.from_fds(UUID, "gpu", places, [os.dup(fd) for fd in lock.fds])
    lock.release()
    assert copy.held
    assert not lock.acquire()
    copy.write({"a": 1})
    copy.release()
    assert lock.acquire()
    with pytest.raises(InvalidInput):
        DeviceLock.from_fds(UUID, "gpu", places, lock.fds[:1])


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a\0b"])
def test_names_that_are_no_file_names(places: list[Path], name: str) -> None:
    with pytest.raises(InvalidInput):
        DeviceLock(name, "gpu", places)


def test_no_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        DeviceLock(UUID, "gpu", [])


@pytest.mark.parametrize("kind", ["simulated", "cpu"])
def test_places_of_one_home(tmp_path: Path, kind: str) -> None:
    places = lock_places(kind, tmp_path / "home" / "machine", {"FOXQUEUE_LOCK_DIR": "/nowhere"})
    assert places == [tmp_path / "home" / "machine" / "locks"]
    modes = [place.stat().st_mode & 0o7777 for place in (places[0], *places[0].parents[:2])]
    assert modes == [0o700] * 3
    assert lock_places(kind, tmp_path / "home" / "machine", {}) == places


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    pair = (tmp_path / "run", tmp_path / "shm")
    for parent in pair:
        parent.mkdir()
    found = (pair[0] / "foxqueue", pair[1] / "foxqueue")
    monkeypatch.setattr(foxqueue.locks, "SHARED_PLACES", found)
    return found


def test_places_of_the_machine(tmp_path: Path, shared: tuple[Path, Path]) -> None:
    assert lock_places("nvml", tmp_path, {}) == list(shared)
    assert [place.stat().st_mode & 0o7777 for place in shared] == [0o1777] * 2
    own = tmp_path / "own"
    own.mkdir()
    assert lock_places("nvml", tmp_path, {"FOXQUEUE_LOCK_DIR": str(own)}) == [*shared, own]
    assert lock_places("nvml", tmp_path, {"FOXQUEUE_LOCK_DIR": str(shared[1])}) == list(shared)
    assert lock_places("nvml", tmp_path, {"FOXQUEUE_LOCK_DIR": ""}) == list(shared)


def test_places_that_cannot_be_used_are_left_out(tmp_path: Path, shared: tuple[Path, Path]) -> None:
    shared[0].parent.rmdir()
    assert lock_places("nvml", tmp_path, {}) == [shared[1]]
    shared[1].rmdir()
    shared[1].touch()
    with pytest.raises(NoDevice) as caught:
        lock_places("nvml", tmp_path, {})
    for word in (*map(str, shared), "FOXQUEUE_LOCK_DIR"):
        assert word in str(caught.value)
    own = tmp_path / "own"
    own.mkdir()
    assert lock_places("nvml", tmp_path, {"FOXQUEUE_LOCK_DIR": str(own)}) == [own]


@pytest.mark.parametrize("given", ["{tmp}/none", "{tmp}/file", "relative"])
def test_a_lock_directory_that_cannot_be_used_is_refused(tmp_path: Path, shared: tuple[Path, Path], given: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="FOXQUEUE_LOCK_DIR"):
        lock_places("nvml", tmp_path, {"FOXQUEUE_LOCK_DIR": given.replace("{tmp}", str(tmp_path))})
    assert not (tmp_path / "none").exists()
