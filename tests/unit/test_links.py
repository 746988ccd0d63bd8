"""How commands are packed for the wire."""

from __future__ import annotations

import signal
import subprocess
import sys

import hiredis
import pytest
import redis

from foxqueue.links import Packer, packed

UNDER_FIRE = """
import signal, time
from foxqueue.links import packed
from foxqueue.connection import Connection
class Now(Exception): pass
pack, inside, caught = PACK, False, 0
def raises(*_):
    global inside
    if inside:
        inside = False
        raise Now
signal.signal(signal.SIGALRM, raises)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 30
while caught < 200 and time.monotonic() < end:
    try:
        inside = True
        while True:
            pack(("XREAD", b"COUNT", 500, "BLOCK", 1000, 1.5))
    except Now:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(caught)
"""


def test_words_are_packed_as_redis_py_packs_them() -> None:
    command = ("SET", b"\xff\x00", "ü", 5, -7, 2.5, bytearray(b"x"), memoryview(b"y"))
    assert packed(command) == hiredis.pack_command(("SET", b"\xff\x00", "ü", "5", "-7", "2.5", b"x", b"y"))
    assert Packer().pack("CONFIG GET", "maxmemory") == [packed((b"CONFIG", b"GET", "maxmemory"))]


@pytest.mark.parametrize("word", [None, True, [1], object()])
def test_what_is_no_word_is_refused(word: object) -> None:
    with pytest.raises(redis.exceptions.DataError, match="neither text nor bytes nor a number"):
        packed(("SET", "a", word))


OURS = "packed"
REDIS_PYS = "(lambda link: lambda words: link.pack_command(*words))(Connection('redis://h').client.connection_pool" + (
    ".make_connection())"
)


@pytest.mark.parametrize("pack", [OURS, REDIS_PYS], ids=["ours", "redis-py's"])
def test_a_signal_while_packing_is_only_an_exception(pack: str) -> None:
    """Ctrl-C once ended a waiting command by SIGSEGV."""
    done = subprocess.run(
        [sys.executable, "-c", UNDER_FIRE.replace("PACK", pack)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, signal.Signals(-done.returncode) if done.returncode < 0 else done.stderr
    assert done.stdout == "200\n"
