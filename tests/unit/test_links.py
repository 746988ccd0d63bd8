"""How commands are packed for the wire, and where a URL leads."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest
import trustme

from foxqueue.links import Link, Links, Packer, packed, read_target

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
    with pytest.raises(TypeError, match="neither text nor bytes nor a number"):
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


@pytest.mark.parametrize(
    ("url", "where", "greeting"),
    [
        ("redis://h", ("", "h", 6379), ()),
        ("redis://h:1/0", ("", "h", 1), ()),
        ("redis://h/2", ("", "h", 6379), (("SELECT", 2),)),
        ("redis://h/2?db=3", ("", "h", 6379), (("SELECT", 3),)),
        ("redis://[::1]:7", ("", "::1", 7), ()),
        ("redis://:p%40ss%2F@h", ("", "h", 6379), (("AUTH", "p@ss/"),)),
        ("redis://ann:secret@h", ("", "h", 6379), (("AUTH", "ann", "secret"),)),
        ("redis://ann@h?password=x", ("", "h", 6379), (("AUTH", "ann", "x"),)),
        (
            "redis://h?username=ann&password=x&client_name=c",
            ("", "h", 6379),
            (("AUTH", "ann", "x"), ("CLIENT", "SETNAME", "c")),
        ),
        ("unix:///run/a%20b.sock", ("/run/a b.sock", "", 6379), ()),
        ("unix://:secret@/run/s?db=4", ("/run/s", "", 6379), (("AUTH", "secret"), ("SELECT", 4))),
    ],
)
def test_a_url_says_where_and_what_to_say_first(
    url: str, where: tuple[str, str, int], greeting: tuple[object, ...]
) -> None:
    target = read_target(url, None)
    assert (target.path, target.host, target.port) == where
    assert target.greeting == greeting
    assert target.tls is None


def test_a_password_from_elsewhere_is_used_where_the_url_has_none() -> None:
    assert read_target("redis://ann@h", "other").greeting == (("AUTH", "ann", "other"),)
    assert read_target("redis://ann:own@h", "other").greeting == (("AUTH", "ann", "own"),)


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A port where every connection is greeted by TLS and every question is answered PONG; and whom to trust for it."""
    authority = trustme.CA()
    certificate = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(raw, server_side=True) as link:
                    while link.recv(4096):
                        link.sendall(b"+PONG\r\n")
            except OSError:
                raw.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1], certificate
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_tls_believes_the_certificate_that_it_is_told(encrypted: tuple[int, Path]) -> None:
    port, certificate = encrypted
    link = Link(read_target(f"rediss://localhost:{port}?ssl_ca_certs={certificate}", None), 5.0)
    assert link.roundtrip([("PING",)]) == [b"PONG"]
    assert link.idle()
    link.close()


def test_tls_refuses_strangers_and_other_names(encrypted: tuple[int, Path]) -> None:
    port, certificate = encrypted
    for url in (f"rediss://localhost:{port}", f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"):
        with pytest.raises(ssl.SSLCertVerificationError):
            Link(read_target(url, None), 5.0)


def test_tls_can_be_told_to_believe_all(encrypted: tuple[int, Path]) -> None:
    port, certificate = encrypted
    for query in ("ssl_cert_reqs=none", f"ssl_ca_certs={certificate}&ssl_check_hostname=no"):
        link = Link(read_target(f"rediss://127.0.0.1:{port}?{query}", None), 5.0)
        assert link.roundtrip([("PING",)]) == [b"PONG"]
        link.close()


def test_a_server_that_hangs_up_is_an_error_and_the_next_question_has_a_new_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        links = Links(read_target(f"redis://127.0.0.1:{listener.getsockname()[1]}", None), 5.0)
        answers, closed = iter([b"", b"+PONG\r\n", b"+PONG\r\n"]), threading.Semaphore(0)

        def serve() -> None:
            for answer in answers:
                link, _ = listener.accept()
                with link:
                    link.recv(4096)
                    link.sendall(answer)
                closed.release()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(ConnectionError, match="closed the connection"):
            links.roundtrip([("PING",)])
        assert links.roundtrip([("PING",)]) == [b"PONG"]
        assert all(closed.acquire(timeout=5) for _ in range(2))
        assert links.roundtrip([("PING",)]) == [b"PONG"]
        thread.join(5)
        links.close()
