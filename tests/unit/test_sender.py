"""How many users' commands go in a round trip: as many as the server does soon, for heartbeats wait behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foxqueue import sender
from foxqueue.messages import Reply
from foxqueue.sender import PIPELINED, Sender


class Timed(Sender):
    """A server that takes so long for the way and for each call, on a clock of its own."""

    def __init__(self, way_s: float, call_s: float) -> None:
        super().__init__(None, "test")  # type: ignore[arg-type]
        self.way_s, self.call_s = way_s, call_s
        self.now, self.sizes = 0.0, list[int]()

    def monotonic(self) -> float:
        return self.now

    def send(self, *calls: Any) -> list[Reply]:
        self.sizes.append(len(calls))
        self.now += self.way_s + self.call_s * len(calls)
        return [Reply(call.number, "", ()) for call in calls]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(way_s: float, call_s: float) -> Timed:
        made = Timed(way_s, call_s)
        monkeypatch.setattr(sender.time, "monotonic", made.monotonic)
        return made

    return make


def send(to: Timed, count: int, script: str = "requeue") -> list[int]:
    to.sizes.clear()
    calls = [SimpleNamespace(script=SimpleNamespace(name=script), number=str(at)) for at in range(count)]
    replies = to.resend_all([(call, "") for call in calls])  # type: ignore[misc]
    assert [reply.word for reply in replies] == [str(at) for at in range(count)], "each once, in order"
    return to.sizes


@pytest.mark.parametrize("way_s", [0.0001, 0.03, 0.3], ids=["near", "far", "very far"])
def test_quick_commands_go_a_hundred_at_once_however_long_the_way(timed: Any, way_s: float) -> None:
    server = timed(way_s, 0.0001)
    assert send(server, 500) == [1, 2, 4, 8, 16, 32, 64, 100, 100, 100, 73]
    assert send(server, 100) == [PIPELINED], "what was learnt stays"


@pytest.mark.parametrize("call_s", [0.005, 0.02, 0.2])
@pytest.mark.parametrize("way_s", [0.0001, 0.3])
def test_commands_that_take_long_go_by_few(timed: Any, way_s: float, call_s: float) -> None:
    server = timed(way_s, call_s)
    assert max(send(server, 200)) * call_s <= max(2 * sender.SLOW_S, 2 * call_s)


def test_after_quick_ones_slow_ones_shrink_at_once(timed: Any) -> None:
    server = timed(0.001, 0.0001)
    send(server, 500)
    server.call_s = 0.02
    assert send(server, 4, "cancel") == [1, 2, 1], "another script is another matter"
    assert send(server, 200)[:3] == [100, 5, 5]
    server.call_s = 0.0001
    assert send(server, 500)[-2] == PIPELINED


def test_nothing_is_sent_for_nothing(timed: Any) -> None:
    assert send(timed(1.0, 1.0), 0) == []
