"""`--group`: our own server's socket for the members of a Unix group, and for nobody else."""

from __future__ import annotations

import grp
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from stack import Stack
from supervised import Home
from wait import until

from foxqueue import Client, access
from foxqueue.access import Access, check_group
from foxqueue.broker import Broker
from foxqueue.config import group_directory, listening_socket, url_of_socket
from foxqueue.errors import FoxqueueError, InvalidInput
from foxqueue.server import ensure_server, find_server

SOMEBODY = 65534  # a user without any rights here
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture
def group() -> grp.struct_group:
    """One that this user may open a socket to, not its own where there is another."""
    own = os.getegid()
    allowed = [group for group in grp.getgrall() if os.geteuid() == 0 or group.gr_gid in os.getgroups()]
    return next((group for group in allowed if group.gr_gid not in (own, SOMEBODY)), grp.getgrgid(own))


def as_somebody(groups: list[int], body: Callable[[], None]) -> str:
    """Run ``body`` as another user; what it raised, or nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            os.setgroups(groups)
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
            os.chdir("/")
            os.environ["XDG_CONFIG_HOME"] = os.environ["HOME"] = "/nonexistent"
            body()
        except BaseException as error:  # noqa: BLE001 (the last frame of this process)
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:  # noqa: PTH123 (a descriptor)
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@as_root
def test_members_use_the_queue_and_others_do_not(stack: Stack, group: grp.struct_group) -> None:
    stack.up("--simulate", "1x24G", "--group", group.gr_name, workers=1)
    directory = group_directory(stack.api.config)
    try:
        url = url_of_socket(directory / "server.sock")
        assert f"members of group {group.gr_name} set FOXQUEUE_URL={url}" in stack.log("up")
        assert f"so do the jobs of everybody in group {group.gr_name}" in stack.log("up")
        with Client(url=url, home="/nonexistent") as loaded:  # what is imported late could not be read later
            early = loaded.submit(["true"], cwd="/").wait(20)
            assert early.logs() == b""
            before = len(loaded.jobs())

        def use() -> None:
            with Client(url=url, home="/nonexistent") as fox:
                ran = fox.submit(["id", "-u"], cwd="/").wait(20)
                assert ran.state == "succeeded", ran.to_dict()
                assert ran.logs().strip() == b"0", "jobs run as the user of the workers"
                left = fox.submit(["sleep", "60"], cwd="/")
                until(lambda: left.refresh().running, what="the job to run")
                left.cancel()
                assert len(fox.jobs()) == before + 2

        assert as_somebody([group.gr_gid], use) == ""
        assert "Permission denied" in as_somebody([], lambda: Client(url=url, home="/nonexistent").close())
        assert stack.fox("ls").stdout.count("succeeded") >= 1, "its own user needs to set nothing"
    finally:
        stack.end()
        shutil.rmtree(directory, ignore_errors=True)


def test_only_the_group_may_enter_and_only_its_user_may_change(home: Home, group: grp.struct_group) -> None:
    server = ensure_server(home.config, Access(group=group.gr_name))
    directory, path = group_directory(home.config), listening_socket(home.config)
    assert path.parent == directory and server.url == url_of_socket(path) == find_server(home.config)
    for place, mode in ((directory, 0o2750), (path, 0o770)):
        found = place.stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (group.gr_gid, mode), place
    assert [name.name for name in directory.iterdir()] == ["server.sock"]
    with closing(Broker.open(home.config)) as broker:
        assert broker.redis.ping()


def test_unknown_and_foreign_groups_are_refused_before_anything_starts(
    home: Home, group: grp.struct_group, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.run("up", group="no-such-group") == 2
    assert "--group no-such-group: there is no such group" in home.said
    assert not home.config.machine_dir.exists() and not home.notes()
    monkeypatch.setattr(access.os, "geteuid", lambda: 12345)
    with pytest.raises(InvalidInput, match="you are not in that group"):
        check_group(group.gr_name, {group.gr_gid + 1})
    assert check_group(group.gr_name, {group.gr_gid}) == group.gr_gid


@as_root
def test_a_directory_of_somebody_else_is_refused(home: Home, group: grp.struct_group) -> None:
    directory = group_directory(home.config)
    directory.mkdir(mode=0o755)
    os.chown(directory, SOMEBODY, SOMEBODY)
    assert home.run("up", group=group.gr_name) == 1
    assert f"{directory} belongs to user {SOMEBODY}, not to you" in home.said
    assert find_server(home.config) is None and not list(directory.iterdir())
    assert directory.stat().st_uid == SOMEBODY and stat.S_IMODE(directory.stat().st_mode) == 0o755
    home.up()  # a private server minds no such directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_links_and_writable_directories_are_refused(home: Home, group: grp.struct_group, tmp_path: Path) -> None:
    directory = group_directory(home.config)
    directory.symlink_to(tmp_path)
    try:
        with pytest.raises(FoxqueueError, match="cannot be used for the server's socket"):
            ensure_server(home.config, Access(group=group.gr_name))
    finally:
        directory.unlink()
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(FoxqueueError, match="others may write"):
        ensure_server(home.config, Access(group=group.gr_name))
    assert find_server(home.config) is None


def test_an_umask_and_an_earlier_group_change_nothing(home: Home, group: grp.struct_group) -> None:
    directory = group_directory(home.config)
    directory.mkdir(mode=0o700)
    before = os.umask(0o077)
    try:
        ensure_server(home.config, Access(group=group.gr_name, bind=f"127.0.0.1:{free_port()}"))
    finally:
        os.umask(before)
    modes = {place.name: stat.S_IMODE(place.stat().st_mode) for place in (directory, *directory.iterdir())}
    assert modes == {directory.name: 0o2750, "server.sock": 0o770, "password": 0o640}
    assert {place.stat().st_gid for place in directory.iterdir()} == {group.gr_gid}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_stays_when_the_environment_of_another_login_differs(home: Home, group: grp.struct_group) -> None:
    """The place of a group does not depend on TMPDIR or XDG_RUNTIME_DIR, which others do not share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(home.directory))
        patch.setenv("TMPDIR", str(home.directory))
        there = group_directory(home.config)
    assert there == group_directory(home.config) and len(os.fsencode(there / "server.sock")) < 100
