"""What doctor looks at: each check with what is wrong and what to do about it, and that it changes nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pretend import register
from queue_driver import Queue
from servers import RealServer, binaries
from shell import Shell
from stack import FOXQUEUE, Stack
from wait import until

from foxqueue.broker import Broker
from foxqueue.config import Config, load_config
from foxqueue.doctor import machine, server
from foxqueue.doctor.check import Check, make
from foxqueue.errors import ServerUnavailable

OF_SERVER = ["server", *server.LOOKS]
OF_MACHINE = ["binding", "nvml", "devices", "state", "filesystem", "disk", "inodes", "files"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[..., RealServer]]:
    """Starts servers of the test's own."""
    started: list[RealServer] = []

    def start(*flags: str, binary: Any = None) -> RealServer:
        started.append(RealServer(binary, tmp_path / f"s{len(started)}", *flags).start())
        return started[-1]

    yield start
    for one in started:
        one.close()


def checks_of(shell: Shell, code: int = 0, *words: str) -> dict[str, dict[str, Any]]:
    """The checks of a report by name."""
    report = shell.json("doctor", *words, code=code)
    assert set(report) == {"url", "server", "version", "checks"}
    assert all(set(check) == {"name", "ok", "detail", "cure"} for check in report["checks"])
    assert all(check["cure"] for check in report["checks"] if not check["ok"])
    return {check["name"]: check for check in report["checks"]}


@pytest.mark.parametrize("binary", binaries(), ids=str)
def test_a_sound_server_passes_and_nothing_is_changed(
    alone: Callable[..., RealServer], tmp_path: Path, binary: Any
) -> None:
    own = alone(binary=binary)
    shell = Shell(own, tmp_path)
    report = shell.json("doctor")
    assert [check["name"] for check in report["checks"]] == OF_SERVER + OF_MACHINE
    assert (report["server"], report["version"]) == (binary.product, ".".join(map(str, binary.version)))
    checks = {check["name"]: check for check in report["checks"]}
    needs_a_gpu = {"nvml", "devices"}
    assert {name for name in checks if not checks[name]["ok"]} - needs_a_gpu == {"workers"}
    assert "nobody has used this namespace yet" in checks["settings"]["detail"]
    assert "its machine has" in checks["memory"]["detail"] and "GiB free" in checks["disk"]["detail"]
    assert checks["fsync"]["detail"] == "everysec: a power cut may cost the last second, more on a slow disk"
    broker = Broker.connect(own.url, "test")
    assert broker.redis.dbsize() == 0
    assert not (tmp_path / "home").exists()
    broker.close()
    shell.fox("doctor")  # the table


def test_a_namespace_in_use_is_not_changed_either(shell: Shell, queue: Queue) -> None:
    queue.enqueue()
    register(queue)
    before = queue.snapshot()
    checks = checks_of(shell)
    assert checks["settings"]["detail"] == "schema 2, lease 15 s, beat 5 s"
    assert checks["workers"]["ok"] and checks["workers"]["detail"].startswith("1 of 1")
    assert queue.snapshot() == before


def test_data_of_a_newer_foxqueue_hides_no_other_check(shell: Shell, queue: Queue) -> None:
    queue.enqueue()
    queue.broker.redis.hset(queue.broker.keys.settings, "schema", 99)
    checks = checks_of(shell, 1)
    assert "newer foxqueue" in checks["settings"]["detail"] and "upgrade" in checks["settings"]["cure"]
    assert list(checks) == OF_SERVER + OF_MACHINE
    assert checks["server"]["ok"] and checks["persistence"]["ok"]


def test_a_persistence_that_is_off_or_lax_is_told_with_the_cure(
    alone: Callable[..., RealServer], tmp_path: Path
) -> None:
    """K9: CONFIG SET and the configuration file, for both is needed."""
    off = checks_of(Shell(alone("--appendonly", "no"), tmp_path))
    assert not off["persistence"]["ok"] and "rewrite" not in off and "fsync" not in off
    cure = off["persistence"]["cure"]
    assert "CONFIG SET appendonly yes" in cure and "configuration file" in cure
    lax = checks_of(Shell(alone("--appendfsync", "no", "--maxmemory-policy", "allkeys-lru"), tmp_path))
    assert lax["persistence"]["ok"] and not lax["fsync"]["ok"] and not lax["eviction"]["ok"]
    assert "CONFIG SET appendfsync everysec" in lax["fsync"]["cure"]


def test_a_disk_that_takes_no_append_only_file_fails(alone: Callable[..., RealServer], tmp_path: Path) -> None:
    own = alone(binary=deaf_to_full_disks(tmp_path))
    shell, broker = Shell(own, tmp_path), Broker.connect(own.url, "test")
    resource.prlimit(own.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    broker.redis.set("x", "y")
    until(lambda: broker.redis.info("persistence")["aof_last_write_status"] == "err", 10, "a failed write")
    checks = checks_of(shell, 1)
    assert list(checks) == OF_SERVER + OF_MACHINE, "what PING is refused for hides no other check"
    assert not checks["server"]["ok"] and "MISCONF" in checks["server"]["detail"]
    assert not checks["persistence"]["ok"] and "free space" in checks["persistence"]["cure"]
    assert not checks["scripts"]["ok"] and "MISCONF" in checks["scripts"]["detail"]
    assert checks["latency"]["ok"] and checks["state"]["ok"]
    broker.close()


def deaf_to_full_disks(directory: Path) -> Path:
    """A server that goes on when its files may not grow: a write then fails as on a full disk."""
    program = directory / "deaf-server"
    program.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {binaries()[0].path} \"$@\"\n")
    program.chmod(0o755)
    return program


def test_a_rewrite_that_failed_is_told(alone: Callable[..., RealServer], tmp_path: Path) -> None:
    own = alone()
    place = own.directory / "appendonlydir"
    shutil.rmtree(place)
    place.touch()  # a rewrite has nowhere to put its file
    broker = Broker.connect(own.url, "test")
    try:
        broker.redis.bgrewriteaof()
    except Exception as error:  # noqa: BLE001 - as above
        assert "rewrit" in str(error).lower() or "error" in str(error).lower()
    until(lambda: broker.redis.info("persistence")["aof_last_bgrewrite_status"] == "err", 10, "a failed rewrite")
    checks = checks_of(Shell(own, tmp_path))
    assert not checks["rewrite"]["ok"] and "overcommit" in checks["rewrite"]["cure"]
    broker.close()


def test_a_memory_that_is_nearly_full_warns_and_a_full_one_fails(
    alone: Callable[..., RealServer], tmp_path: Path
) -> None:
    own = alone()
    shell, broker = Shell(own, tmp_path), Broker.connect(own.url, "test")
    checks_of(shell)  # scripts take memory, too
    used = broker.redis.info("memory")["used_memory"]
    for limit, code, ok in ((used * 4, 0, True), (int(used * 1.15), 0, False), (used // 2, 1, False)):
        broker.redis.config_set("maxmemory", limit)
        checks = checks_of(shell, code)
        assert checks["memory"]["ok"] is ok and "%" in checks["memory"]["detail"]
        assert ok or "CONFIG SET maxmemory" in checks["memory"]["cure"]
        assert checks["scripts"]["ok"]
    broker.close()


def test_connections_that_run_out_are_told(alone: Callable[..., RealServer], tmp_path: Path) -> None:
    own = alone()
    others = [Broker.connect(own.url, "test") for _ in range(9)]
    others[0].redis.config_set("maxclients", 13)
    checks = checks_of(Shell(own, tmp_path))
    assert not checks["clients"]["ok"] and "12 of 13 connected" in checks["clients"]["detail"]
    for broker in others:
        broker.close()


def test_a_replica_is_named_with_its_master(alone: Callable[..., RealServer], tmp_path: Path) -> None:
    own = alone("--replicaof", "127.0.0.1 1")
    checks = checks_of(Shell(own, tmp_path), 1)
    assert "replica of 127.0.0.1:1" in checks["scripts"]["detail"]
    assert "give the URL of 127.0.0.1:1" in checks["scripts"]["cure"]
    assert checks["server"]["ok"] and checks["persistence"]["ok"]


def test_a_user_without_rights_is_told_what_is_missing(alone: Callable[..., RealServer], tmp_path: Path) -> None:
    own = alone()
    broker = Broker.connect(own.url, "test")
    broker.redis.execute_command("ACL SETUSER fox on >pw ~foxqueue:* +@all -eval -evalsha -script -config")
    shell = Shell(own, tmp_path)
    shell.environ["FOXQUEUE_URL"] = own.url.replace("unix://", "unix://fox:pw@")
    checks = checks_of(shell, 1)
    assert not checks["scripts"]["ok"] and "EVALSHA, SCRIPT" in checks["scripts"]["cure"]
    assert not checks["fsync"]["ok"] and checks["persistence"]["ok"] and checks["latency"]["ok"]
    broker.redis.execute_command("ACL SETUSER fox +@all -info")
    hidden = checks_of(shell, 1)
    assert not hidden["version"]["ok"] and hidden["latency"]["ok"]
    broker.close()


def test_a_server_that_falls_silent_costs_one_time_out(
    shell: Shell, server: RealServer, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said is kept, what the machine says follows, and nothing more is asked of it."""
    asked: list[str] = []

    def silent(name: str) -> Callable[[Broker], Check]:
        def look(broker: Broker) -> Check:
            asked.append(name)
            raise ServerUnavailable("no answer")

        return look

    for name in ("memory", "clients"):
        monkeypatch.setitem(dict_of_looks(), name, silent(name))
    checks = checks_of(shell, 1)
    assert asked == ["memory"]
    assert not checks["server"]["ok"] and checks["server"]["detail"] == "no answer"
    assert checks["persistence"]["ok"] and "clients" not in checks and "disk" in checks


def dict_of_looks() -> dict[str, Any]:
    return server.LOOKS  # type: ignore[return-value]


def test_a_look_that_breaks_hides_no_other(shell: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Check:
        raise KeyError("no such word")

    monkeypatch.setitem(dict_of_looks(), "memory", broken)
    monkeypatch.setattr("foxqueue.doctor.machine.state", broken)
    checks = checks_of(shell)
    assert list(checks) == OF_SERVER + OF_MACHINE
    assert "KeyError" in checks["memory"]["detail"] and "KeyError" in checks["state"]["detail"]


def test_other_products_and_old_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, says in (
        ({"redis_version": "7.4.0", "dragonfly_version": "df-v1.2"}, "Dragonfly df-v1.2 is not supported"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.9"}, "Valkey 7.1.9 is not supported"),
        ({"redis_version": "6.2.14"}, "Redis 6.2.14 is not supported"),
        ({"redis_version": "unknown"}, "is not supported"),
    ):
        monkeypatch.setattr(server, "info", lambda *_, told=told: told)
        check = server.version(None)  # type: ignore[arg-type]
        assert not check.ok and says in check.detail and check.cure
    for product, text in (("valkey_version", "7.2.0"), ("valkey_version", "10.0.1"), ("redis_version", "8.2.3")):
        monkeypatch.setattr(server, "info", lambda *_, told={product: text}: told)
        assert server.version(None).ok  # type: ignore[arg-type]


# --- this machine ---------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(home=tmp_path / "home", environ={"HOME": str(tmp_path)}, cwd=tmp_path)


def test_the_state_directory_is_judged_as_it_is(config: Config) -> None:
    assert machine.state(config).ok and "will be made" in machine.state(config).detail
    config.machine_dir.mkdir(parents=True, mode=0o700)
    assert machine.state(config).ok
    config.machine_dir.chmod(0o777)
    open_to_all = machine.state(config)
    assert not open_to_all.ok and open_to_all.required and "chmod 700" in str(open_to_all.cure)
    assert config.machine_dir.stat().st_mode & 0o777 == 0o777, "a look has changed something"
    config.machine_dir.rmdir()
    config.machine_dir.touch()
    assert "is no directory" in machine.state(config).detail


def test_a_state_directory_of_somebody_else_or_read_only_fails(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config.machine_dir.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "belongs to user" in machine.state(config).detail
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert "cannot be written" in machine.state(config).detail
    shutil.rmtree(config.home)
    assert "cannot be made" in machine.state(config).detail and not config.home.exists()


def test_a_network_file_system_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "file_system", lambda _: "nfs4")
    found = machine.state_file_system(config, {})
    assert found and not found.ok and found.required and "FOXQUEUE_HOME" in str(found.cure)
    forced = machine.state_file_system(config, {machine.FORCE_VARIABLE: "1"})
    assert forced and not forced.ok and not forced.required


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("free_mib", "total_mib", "inodes", "verdicts"),
    [
        (50_000, 100_000, (10**6, 10**7), {"disk": "ok", "inodes": "ok"}),
        (4_000, 100_000, (10**6, 10**7), {"disk": "warning", "inodes": "ok"}),
        (900, 10_000, (9_000, 10_000), {"disk": "warning", "inodes": "warning"}),
        (99, 10_000, (99, 10**7), {"disk": "failed", "inodes": "failed"}),
        (2_000, 4_000, (0, 0), {"disk": "ok"}),
    ],
)
def test_room_on_the_disk(
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    free_mib: int,
    total_mib: int,
    inodes: tuple[int, int],
    verdicts: dict[str, str],
) -> None:
    block = 4096
    values = (block, block, total_mib * MIB // block, 0, free_mib * MIB // block, inodes[1], 0, inodes[0], 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    found = {check.name: check for check in machine.disk(config)}
    said = {name: "ok" if c.ok else "failed" if c.required else "warning" for name, c in found.items()}
    assert said == verdicts
    assert all(check.cure for check in found.values() if not check.ok)


def test_too_few_open_files_are_told(shell: Shell, queue: Queue) -> None:
    def report(limit: str) -> tuple[int, dict[str, Any]]:
        command = ["bash", "-c", f"ulimit {limit}; exec {FOXQUEUE} doctor --json"]
        done = subprocess.run(command, env=shell.environ, cwd=shell.directory, capture_output=True, timeout=60)
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        return done.returncode, checks["files"]

    code, soft = report("-Sn 256")
    assert code == 0 and not soft["ok"] and "ulimit -n 1024 in the shell" in soft["cure"]
    code, hard = report("-n 256")
    assert code == 0 and not hard["ok"] and "LimitNOFILE" in hard["cure"]
    assert report("-Sn 48")[0] == 1


def test_what_up_and_its_workers_open_is_far_below_the_least(stack: Stack) -> None:
    stack.up()
    numbers = [stack.queue("sleep", "600") for _ in range(2)]
    for number in numbers:
        stack.await_state(number, "running")
    counts = []
    for pid in stack.all_processes():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            counts.append(len(list(Path(f"/proc/{pid}/fd").iterdir())))
    assert len(counts) >= 6 and max(counts) <= machine.LEAST_FILES // 2


def test_places_of_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def look(**environ: str) -> Check:
        (check,) = make("locks", lambda: machine.locks(environ))
        return check

    one, two = tmp_path / "one" / "foxqueue", tmp_path / "two" / "foxqueue"
    two.parent.mkdir()
    monkeypatch.setattr(machine, "SHARED_PLACES", (one, two))
    monkeypatch.setattr(machine, "_CONTAINER_MARKS", ())
    assert look() == Check("locks", True, str(two)), "the first has no directory to lie in"
    assert not two.exists(), "a look has made something"
    assert look(FOXQUEUE_LOCK_DIR=str(tmp_path)).detail == f"{two}, {tmp_path}"
    assert "absolute" in look(FOXQUEUE_LOCK_DIR="relative").detail
    assert "is not a directory" in look(FOXQUEUE_LOCK_DIR=str(tmp_path / "none")).detail
    monkeypatch.setattr(machine, "_CONTAINER_MARKS", (tmp_path,))
    contained = look()
    assert not contained.ok and not contained.required and "FOXQUEUE_LOCK_DIR" in str(contained.cure)
    assert look(FOXQUEUE_LOCK_DIR=str(tmp_path)).ok
    two.parent.rmdir()
    nowhere = look()
    assert not nowhere.ok and nowhere.required
