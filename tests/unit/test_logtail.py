"""The log's relay sends each byte once, or says by its offset what it left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foxqueue.broker import Broker, Reply
from foxqueue.errors import ServerUnavailable
from foxqueue.scripts import Call
from workers import logtail
from workers.logtail import PIECE_BYTES, TAIL_BYTES, LogTail


class Sent(Broker):
    """Records log calls in place of sending them."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, int, bytes]] = []
        self.away = False
        self.fault: dict[str, bool] = {}  # what is said of it

    def log_call(self, number: int, fence: str, offset: int, keep_from: int, data: bytes) -> Any:
        return (offset, keep_from, data)

    def send(self, *calls: Call) -> list[Reply]:
        if self.away:
            raise ServerUnavailable("away", **self.fault)
        self.pieces += calls  # type: ignore[arg-type]
        return []


def test_pieces_follow_each_other(tmp_path: Path) -> None:
    file, sent = tmp_path / "output.log", Sent()
    tail = LogTail(sent, 1, "5", file)
    assert tail.pump()  # no file yet
    file.write_bytes(b"a" * 10)
    tail.pump()
    with file.open("ab") as more:
        more.write(b"b" * (PIECE_BYTES + 1))
    tail.pump()
    assert [(offset, len(data)) for offset, _, data in sent.pieces] == [
        (0, 10),
        (10, PIECE_BYTES),
        (10 + PIECE_BYTES, 1),
    ]


def test_what_comes_too_fast_is_skipped_and_its_offset_says_so(tmp_path: Path) -> None:
    file, sent = tmp_path / "output.log", Sent()
    tail = LogTail(sent, 1, "5", file)
    file.write_bytes(b"x" * (3 * TAIL_BYTES) + b"end")
    tail.pump()
    assert sent.pieces[0][0] == 2 * TAIL_BYTES + 3
    assert sum(len(data) for _, _, data in sent.pieces) == TAIL_BYTES
    assert sent.pieces[-1][1] == sent.pieces[-1][0] - TAIL_BYTES


def test_redis_away_loses_nothing(tmp_path: Path) -> None:
    file, sent = tmp_path / "output.log", Sent()
    tail = LogTail(sent, 1, "5", file)
    file.write_bytes(b"one")
    sent.away = True
    assert not tail.pump()
    sent.away = False
    assert tail.pump()
    assert sent.pieces == [(0, 0, b"one")]


def test_a_full_server_holds_up_the_end_for_a_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given refusals, then the end of the run may be told after a while, and the output still goes when it can."""
    file, sent = tmp_path / "output.log", Sent()
    tail = LogTail(sent, 1, "5", file)
    file.write_bytes(b"one")
    sent.away, sent.fault = True, {"definite": True}
    assert not tail.pump()
    monkeypatch.setattr(logtail, "REFUSED_S", 0.0)
    assert tail.pump()
    sent.fault = {}
    assert not tail.pump(), "who does not answer takes no end either"
    sent.fault = {"definite": True, "passing": True}
    assert not tail.pump(), "it will answer soon"
    sent.away = False
    assert tail.pump()
    assert sent.pieces == [(0, 0, b"one")]
    monkeypatch.setattr(logtail, "REFUSED_S", 5.0)
    file.write_bytes(b"one two")
    sent.away, sent.fault = True, {"definite": True}
    assert not tail.pump(), "that time is over"


def test_a_job_that_truncates_its_own_output_is_still_followed(tmp_path: Path) -> None:
    file, sent = tmp_path / "output.log", Sent()
    tail = LogTail(sent, 1, "5", file)
    file.write_bytes(b"a long line\n")
    tail.pump()
    file.write_bytes(b"short\n")
    tail.pump()
    assert [(offset, data) for offset, _, data in sent.pieces] == [(0, b"a long line\n"), (12, b"short\n")]


def test_offsets_go_on_when_the_worker_itself_cuts_the_file(tmp_path: Path) -> None:
    file, sent = tmp_path / "output.log", Sent()
    tail = LogTail(sent, 1, "5", file)
    file.write_bytes(b"seen")
    tail.pump()
    file.write_bytes(b"seen, and some that was not")
    tail.was_cut(27)
    file.write_bytes(b"[cut]\n, and a file that has grown beyond what was read before")
    tail.pump()
    assert [offset for offset, _, _ in sent.pieces] == [0, 27]
    assert sent.pieces[-1][2].startswith(b"[cut]\n")
