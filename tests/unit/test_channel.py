"""Messages arrive whole and in order, with their descriptors, whatever the socket makes of them."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from workers.channel import Channel, pair


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def frame(message: object, count: int = 0) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("!II", len(body), count) + body


def test_messages_keep_their_order(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    assert theirs.drain() == []
    assert theirs.take() is None
    for number in range(5):
        ours.send({"n": number})
    assert theirs.take() == {"n": 0}
    assert theirs.receive() == {"n": 1}
    assert theirs.drain() == [{"n": 2}, {"n": 3}, {"n": 4}]
    assert not theirs.eof


def test_text_that_is_not_utf8(ends: tuple[Channel, Channel]) -> None:
    message = {"argv": ["\udcff", "🦊", "\0", "\n", ""]}
    ends[0].send(message)
    assert ends[1].receive(5) == message


def test_end_of_file_comes_after_the_last_message(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.send({"never": "read"})
    ours.send({"last": 1})
    ours.close()
    assert theirs.receive(5) == {"last": 1}
    assert theirs.receive(5) is None
    assert theirs.drain() == []
    assert theirs.eof
    with pytest.raises(OSError):
        theirs.send({})


def test_silence_is_an_error_when_a_time_is_given(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(TimeoutError):
        ends[1].receive(0.01)


def test_byte_by_byte() -> None:
    raw, theirs = socket.socketpair()
    with raw:
        channel = Channel(theirs)
        data = frame({"a": "é"}) + frame({"b": 2})
        got = []
        for position in range(len(data)):
            raw.sendall(data[position : position + 1])
            got += channel.drain()
        assert got == [{"a": "é"}, {"b": 2}]
        channel.close()


def test_half_a_message_and_the_end() -> None:
    raw, theirs = socket.socketpair()
    channel = Channel(theirs)
    raw.sendall(frame({"a": 1}) + frame({"b": 2})[:-1])
    raw.close()
    assert channel.drain() == [{"a": 1}]
    assert channel.eof
    channel.close()


@pytest.mark.parametrize("data", [b"\xff" * 8, frame([1]), frame({"a": 1}, count=1), frame({})[:4] + b"\xff" * 99])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    raw, theirs = socket.socketpair()
    with raw:
        channel = Channel(theirs)
        raw.sendall(data)
        with pytest.raises(ValueError):
            channel.drain()
        channel.close()


def test_large_messages_from_many_threads(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends

    def send(name: int) -> None:
        for number in range(4):
            ours.send({"from": name, "n": number, "x": "y" * 300_000}, timeout_s=30)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    got: dict[int, list[int]] = {}
    for _ in range(16):
        message = theirs.receive(30)
        assert message is not None
        assert len(message["x"]) == 300_000
        got.setdefault(message["from"], []).append(message["n"])
    for thread in threads:
        thread.join()
    assert got == {name: [0, 1, 2, 3] for name in range(4)}


def test_who_does_not_read_is_not_waited_for(ends: tuple[Channel, Channel]) -> None:
    ours, _ = ends
    with pytest.raises(TimeoutError):
        ours.send({"x": "y" * 3_000_000}, timeout_s=0.05)
    with pytest.raises(BrokenPipeError):  # the first one is cut off: nothing more may follow it
        ours.send({})


def test_descriptors_stay_with_their_message(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    reader, writer = os.pipe()
    ours.send({"n": 0, "x": "y" * 1000})
    ours.send({"n": 1, "x": "y" * 1000}, [writer, reader])
    ours.send({"n": 2})
    ours.send({"n": 3}, [writer])
    messages = theirs.drain()
    assert ["fds" in message for message in messages] == [False, True, False, True]
    assert [len(message.get("fds", ())) for message in messages] == [0, 2, 0, 1]
    got = [*messages[1]["fds"], *messages[3]["fds"]]
    assert not any(os.get_inheritable(descriptor) for descriptor in got)
    os.write(got[2], b"x")
    assert os.read(got[1], 5) == b"x"
    for descriptor in (reader, writer, *got):
        os.close(descriptor)


def test_descriptors_that_nobody_took_are_closed() -> None:
    ours, theirs = pair()
    other = Channel(theirs)
    reader, writer = os.pipe()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", writer))]
    ours._socket.sendmsg([frame({"cut": "off"}, count=1)[:-1]], rights)
    os.close(writer)
    assert other.drain() == []
    other.close()
    assert os.read(reader, 1) == b""  # the end of file: nobody holds the other end
    os.close(reader)
    ours.close()


def test_too_much_is_refused(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(ValueError):
        ends[0].send({}, [0] * 251)
    with pytest.raises(ValueError):
        ends[0].send({"x": "y" * (65 << 20)})
    ends[0].send({"fine": True})
    assert ends[1].receive(5) == {"fine": True}
