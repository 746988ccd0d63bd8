"""A run's output file keeps its beginning, its end and its offsets, and gives the room between back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from workers import output
from workers.output import BLOCK_BYTES, HEAD_BYTES, SLACK_BYTES, TAIL_BYTES, BoundedOutput

MIB = 1024 * 1024
BOUND = HEAD_BYTES + TAIL_BYTES


def block(at: int) -> bytes:
    """A mebibyte that knows its place."""
    return b"%015d\n" % at * (MIB // 16)


def grow(path: Path, mib: int) -> None:
    with path.open("ab") as file:
        begin = file.tell() // MIB
        for at in range(begin, begin + mib):
            file.write(block(at))


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def test_what_is_within_the_bound_stays_as_it_is(path: Path) -> None:
    assert BoundedOutput(path).trim() == 0  # there is no file yet
    grow(path, (BOUND + SLACK_BYTES) // MIB)
    BoundedOutput(path).trim()
    assert on_disk(path) >= BOUND + SLACK_BYTES
    assert path.read_bytes()[HEAD_BYTES : HEAD_BYTES + 20] == block(1)[:20]


def test_the_middle_goes_and_says_so(path: Path) -> None:
    bounded = BoundedOutput(path)
    grow(path, 90)
    assert bounded.trim() == 0
    grow(path, 30)
    with path.open("ab") as file:
        file.write(b"the end")  # the tail does not begin with a block
    bounded.trim()
    bounded.trim(0)
    size, kept = 120 * MIB + 7, path.read_bytes()
    assert len(kept) == size
    hole_end = (size - TAIL_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    assert kept[:HEAD_BYTES] == block(0)
    marker = f"\n[foxqueue: {hole_end - HEAD_BYTES:,} bytes of output dropped here, it goes on at byte {hole_end:,}] "
    assert kept[HEAD_BYTES:].startswith(marker.encode())
    assert kept[HEAD_BYTES + len(marker) : HEAD_BYTES + BLOCK_BYTES].strip(b" ") == b"\n"
    assert not kept[HEAD_BYTES + BLOCK_BYTES : hole_end].strip(b"\0")
    assert kept[hole_end:] == (b"".join(map(block, range(hole_end // MIB, 120))) + b"the end")[-(size - hole_end) :]
    assert on_disk(path) <= BOUND + 4 * BLOCK_BYTES


def test_another_process_bounds_it_from_anew(path: Path) -> None:
    """A successor knows nothing of the hole that is there."""
    grow(path, 100)
    BoundedOutput(path).trim()
    grow(path, 100)
    BoundedOutput(path).trim(0)
    assert on_disk(path) <= BOUND + 4 * BLOCK_BYTES
    assert path.read_bytes()[-TAIL_BYTES:] == b"".join(map(block, range(136, 200)))


def test_a_job_that_truncates_its_output(path: Path) -> None:
    bounded = BoundedOutput(path)
    grow(path, 100)
    bounded.trim()
    path.write_bytes(b"")
    grow(path, 10)
    bounded.trim(0)
    assert path.read_bytes() == b"".join(map(block, range(10)))
    grow(path, 90)
    bounded.trim()
    assert on_disk(path) <= BOUND + 4 * BLOCK_BYTES


def test_a_job_that_puts_something_else_there(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    grow(other, 100)
    path.symlink_to(other)
    BoundedOutput(path).trim()
    assert on_disk(other) >= 100 * MIB
    path.unlink()
    os.mkfifo(path)
    assert BoundedOutput(path).trim() == 0


def test_without_holes_the_file_is_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no holes here")

    monkeypatch.setattr(output, "punch", cannot)
    bounded = BoundedOutput(path)
    with path.open("ab", buffering=0) as job:
        job.write(block(0) * 90)
        assert bounded.trim() == 90 * MIB
        job.write(b"and on\n")
        assert path.read_bytes() == b"[foxqueue: 94,371,840 bytes of output dropped here]\nand on\n"
        job.write(block(0) * 70)
        assert bounded.trim() == 0
        assert bounded.trim(0) == 0  # at the end nothing is cut that may stay
