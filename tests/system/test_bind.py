"""`--bind`: our own server on TCP, for whoever knows the password, and as before for its user."""

from __future__ import annotations

import contextlib
import grp
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from stack import FOXQUEUE, Stack, until_exists
from supervised import Home
from wait import until

from foxqueue import server
from foxqueue.access import Access
from foxqueue.broker import Broker
from foxqueue.config import group_directory, listening_socket, own_password, password_file, url_file
from foxqueue.errors import FoxqueueError, ServerRefused, ServerUnavailable
from foxqueue.listening import look
from foxqueue.places import read_json
from foxqueue.server import ensure_server, find_server, stop_server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture
def bind() -> str:
    return f"127.0.0.1:{free_port()}"


def whole_url(home: Home) -> str:
    return url_file(home.config).read_text().strip()


def secrets_of(pid: int) -> bytes:
    """What others may see of a process, and what its children inherit."""
    with contextlib.suppress(OSError):
        return b"".join((Path("/proc") / str(pid) / name).read_bytes() for name in ("cmdline", "environ"))
    return b""  # it has ended


# --- with whole foxqueues -----------------------------------------------------------------------------


def test_two_homes_share_a_queue_by_url_and_password(stack: Stack, tmp_path: Path, bind: str) -> None:
    stack.up("--simulate", "1x24G", "--bind", bind, workers=1)
    config = stack.api.config
    password = own_password(config)
    assert password and stat.S_IMODE(url_file(config).stat().st_mode) == 0o600
    url = url_file(config).read_text().strip()
    assert url == f"redis://:{password}@{bind}/0"
    away = Stack(tmp_path / "away", {"FOXQUEUE_URL": url})
    try:
        away.up("--simulate", "1x24G", workers=2)
        flag = tmp_path / "go"
        numbers = [away.submit(*until_exists(flag)), stack.submit(*until_exists(flag))]
        hosts = {stack.await_state(number, "running")["worker"] for number in numbers}
        assert len(hosts) == 2, "both homes work for the queue"
        flag.touch()
        for number in numbers:
            assert stack.await_state(number, "succeeded") == away.job(number)
        assert not [pid for pid in stack.all_processes() if password.encode() in secrets_of(pid)]
        assert password not in stack.log("up") + away.log("up") + (config.machine_dir / "server/server.log").read_text()
        assert f"other machines set FOXQUEUE_URL=redis://:***@{bind}/0 (whole in {url_file(config)})" in stack.log("up")
        assert stack.fox("doctor", check=False).returncode == stack.fox("doctor", "--url", url, check=False).returncode
    finally:
        away.end()


@pytest.mark.parametrize("password", ["", ":wrong@"])
def test_who_does_not_know_the_password_is_refused(stack: Stack, bind: str, password: str) -> None:
    stack.start("server", "--bind", bind)
    until(lambda: stack.fox("ls", check=False).returncode == 0, what="the server")
    done = stack.fox("ls", "--url", f"redis://{password}{bind}/0", check=False)
    assert done.returncode == 1 and "refuses the password" in done.stderr and "wrong" not in done.stderr


def test_a_terminal_is_shown_the_whole_url(home: Home, bind: str) -> None:
    terminal, its = pty.openpty()
    process = subprocess.Popen(
        [FOXQUEUE, "server", "--bind", bind], env=home.environ, cwd=home.directory, stderr=its, start_new_session=True
    )
    home.started.append(process)
    os.close(its)
    shown = b""

    def read() -> bool:
        nonlocal shown
        shown += os.read(terminal, 4096)
        return b"answers on" in shown

    with closing(os.fdopen(terminal, "rb", buffering=0)):
        until(read, what="all it has to say")
        assert whole_url(home).encode() in shown and b"no other machine reaches" in shown
        process.terminate()
        assert process.wait(20) == 0


# --- what survives ------------------------------------------------------------------------------------


def test_killed_server_comes_back_as_it_was_and_a_later_up_makes_it_private(home: Home, bind: str) -> None:
    group = some_group()
    up = home.up(bind=bind, group=group)
    url, directory = whole_url(home), group_directory(home.config)
    with closing(Broker.connect(url, "default")) as broker:
        broker.redis.set("kept", 1)
    for _ in range(2):
        home.kill_server()
        broker = until(lambda: reached(url), what="the server by TCP")
        assert broker.redis.get("kept") == b"1"
        broker.close()
        assert whole_url(home) == url and stat.S_IMODE(directory.stat().st_mode) == 0o2750
        assert stat.S_IMODE((directory / "server.sock").stat().st_mode) == 0o770
    assert Access(group, bind) == Access.recorded(up_record(home))
    up.terminate()
    assert up.wait(30) == 0

    up = home.up()
    assert f"our own server is private now, it was --group {group} --bind {bind}" in home.said
    assert not url_file(home.config).exists() and stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not list(directory.iterdir()) and own_password(home.config) is None
    with pytest.raises(ServerUnavailable):
        Broker.connect(url, "default", patience_s=0)
    with closing(Broker.open(home.config)) as broker:
        assert broker.redis.get("kept") == b"1"
    up.terminate()
    assert up.wait(30) == 0

    home.up(bind=bind)
    assert whole_url(home) == url, "the same password as the first time"


def reached(url: str) -> Broker | None:
    try:
        return Broker.connect(url, "default", patience_s=0)
    except FoxqueueError:
        return None


def up_record(home: Home) -> dict[str, object]:
    return read_json(home.config.machine_dir / "server" / "server.json")


def some_group() -> str:
    """A group that this user may open a socket to, not its own where there is another."""
    own = os.getegid()
    allowed = [group for group in grp.getgrall() if os.geteuid() == 0 or group.gr_gid in os.getgroups()]
    return next((group.gr_name for group in allowed if group.gr_gid != own), grp.getgrgid(own).gr_name)


def test_plain_up_beside_a_bound_server_keeps_it_bound(home: Home, bind: str) -> None:
    serve = home.start("serve", bind=bind)
    until(lambda: "answers on" in home.said, what="the server")
    home.up()
    assert f"runs already, and stays as it was started until foxqueue down: --bind {bind}" in home.said
    serve.kill()
    serve.wait()
    home.kill_server()
    until(lambda: reached(whole_url(home)), what="the server by TCP").close()


def test_detached_up_serves_and_down_ends_a_guarded_server(home: Home, bind: str) -> None:
    assert home.run("up", bind=bind, detach=True) == 0
    assert home.said.count(f"redis://:***@{bind}/0") == 1
    log = (home.config.machine_dir / "up.log").read_text()
    assert f"redis://:***@{bind}/0" in log and own_password(home.config) not in log
    assert home.run("down") == 0
    assert find_server(home.config) is None and not home.workers()


def test_shutdown_by_the_socket_tells_the_password(home: Home, bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a server of another container, which no signal reaches."""
    running = ensure_server(home.config, Access(bind=bind))
    assert look(listening_socket(home.config), own_password(home.config)) == "ready"
    monkeypatch.setattr(server, "_judge", lambda _place: None)
    assert stop_server(home.config) and not running.alive()


def test_loading_is_told_from_behind_a_password(tmp_path: Path) -> None:
    path = tmp_path / "s"
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            link = listener.accept()[0]
            with link:
                heard.append(link.recv(100))
                link.sendall(b"+OK\r\n")
                link.sendall(b"-LOADING data\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert look(path, "secret") == "loading"
        thread.join(10)
    assert heard == [b"AUTH secret\r\nPING\r\n"]


# --- what is refused ----------------------------------------------------------------------------------


def test_a_server_that_runs_is_not_opened_in_silence(home: Home, bind: str) -> None:
    home.start("serve")
    until(lambda: "answers on" in home.said, what="the server")
    assert home.run("up", bind=bind) == 1
    assert re.search(rf"runs already \(private\).*foxqueue down first.*\(--bind {bind}\)", home.said)
    assert not home.notes() and not password_file(home.config).exists()


def test_workers_that_live_on_do_not_meet_a_server_that_was_opened(home: Home, bind: str) -> None:
    up = home.up()
    pid = home.server_pid()
    up.kill()
    os.kill(pid, signal.SIGKILL)
    until(lambda: find_server(home.config) is None, what="the death of the server")
    assert home.run("up", bind=bind) == 1
    assert "know the server as it was (private): run foxqueue down first" in home.said
    assert home.run("down") == 0
    home.up(bind=bind)


def test_a_port_that_is_taken_is_refused_before_anything_starts(home: Home) -> None:
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        port = theirs.getsockname()[1]
        assert home.run("up", bind=f"127.0.0.1:{port}") == 1
        assert f"--bind 127.0.0.1:{port}: something else listens there" in home.said
        assert home.run("serve", bind=f"0.0.0.0:{port}") == 1
        assert find_server(home.config) is None and not home.notes()
        assert not password_file(home.config).exists()


@pytest.mark.parametrize(
    ("bind", "text"),
    [
        ("203.0.113.7:6390", "203.0.113.7 is not an address of this machine"),
        ("no-such-host.invalid:6390", "no-such-host.invalid has no address"),
        ("localhost", "is not understood"),
        ("localhost:0", "give 1 to 65535"),
    ],
)
def test_addresses_of_nobody_are_refused(home: Home, bind: str, text: str) -> None:
    assert home.run("up", bind=bind) == 2
    assert text in home.said and find_server(home.config) is None and not home.notes()


def test_a_configured_server_is_not_ours_to_open(tmp_path: Path, bind: str) -> None:
    home = Home(tmp_path, "redis://:s3cret@localhost:1/0")
    try:
        for verb in ("up", "serve"):
            assert home.run(verb, bind=bind) == 2
        assert "--group and --bind are for our own server" in home.said and "s3cret" not in home.said
    finally:
        home.close()


def test_a_password_file_with_something_else_is_refused(home: Home, bind: str) -> None:
    assert home.run("up", bind="127.0.0.1:1x") == 2
    ensure_server(home.config)
    stop_server(home.config)
    password_file(home.config).write_text('x" \nrename-command PING ""\n')
    with pytest.raises(ServerRefused, match="does not hold 16 to 200"):
        ensure_server(home.config, Access(bind=bind))
    assert find_server(home.config) is None


# --- races --------------------------------------------------------------------------------------------


def test_eight_racing_ups_give_one_server_and_one_password(home: Home, bind: str) -> None:
    racers = [home.start("up", bind=bind) for _ in range(8)]
    until(lambda: sum(racer.poll() is None for racer in racers) == 1, what="one winner", seconds=60)
    until(lambda: "2 of 2 workers ready" in home.said, what="readiness", seconds=30)
    winner = next(racer for racer in racers if racer.poll() is None)
    assert {racer.returncode for racer in racers if racer is not winner} == {1}
    assert home.said.count("already runs for") == 7
    with closing(Broker.connect(whole_url(home), "default")) as broker:
        assert broker.redis.info("server")["process_id"] == home.server_pid()
    assert len(home.notes("start")) == 2


ASK = """
import sys
from foxqueue.access import Access
from foxqueue.config import load_config, own_password
from foxqueue.server import ensure_server
sys.stdin.readline()
config = load_config(home=sys.argv[1])
print(ensure_server(config, Access(bind=sys.argv[2])).process.pid, own_password(config))
"""


def test_eight_who_ask_for_the_server_at_once_get_the_same(home: Home, bind: str) -> None:
    words = [sys.executable, "-c", ASK, str(home.config.home), bind]
    racers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = set()
    try:
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            answers.add(racer.communicate(timeout=60)[0])
    finally:
        for racer in racers:
            racer.kill()
    assert len(answers) == 1 and str(home.server_pid()) in answers.pop()
