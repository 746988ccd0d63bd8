"""Who else may reach our own server: the members of a Unix group, and whoever knows a password, over TCP."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foxqueue.config import Config, group_directory, password_file, url_file, url_of_socket
from foxqueue.errors import FoxqueueError, InvalidInput, ServerRefused, ServerUnavailable
from foxqueue.places import write_text

_ENDPOINT = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})\Z")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}\Z|[0-9A-Fa-f:.]{2,45}\Z")
_PASSWORD = re.compile(r"[A-Za-z0-9_.~-]{16,200}\Z")  # stands in URLs and in the server's settings as it is
_FREE_S = 1.0  # a killed server's last sockets close some moments after its lock
_EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Access:
    """What our own server is opened to besides its user.

    Attributes:
        group: name of a Unix group whose members may use its socket; None for this user alone.
        bind: ``HOST:PORT`` that it listens on besides, with a password; IPv6 in brackets.
    """

    group: str | None = None
    bind: str | None = None

    @classmethod
    def of(cls, group: str | None, bind: str | None) -> Access:
        """Check what a user asks for.

        Raises:
            InvalidInput: there is no such group, this process is not in it, or ``bind`` is malformed.
        """
        if group is not None:
            check_group(group, {os.getegid(), *os.getgroups()})
        if bind is not None:
            parse_bind(bind)
        return cls(group, bind)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Access:
        """As a record of the server has it; what is malformed there counts as none."""
        group, bind = (record.get(name) for name in ("group", "bind"))
        return cls(group if isinstance(group, str) else None, bind if isinstance(bind, str) else None)

    def to_dict(self) -> dict[str, str]:
        """For the record of the server."""
        return {name: value for name, value in (("group", self.group), ("bind", self.bind)) if value is not None}

    def __str__(self) -> str:
        words = [f"--group {self.group}"] if self.group is not None else []
        return " ".join(words + ([f"--bind {self.bind}"] if self.bind is not None else [])) or "private"


def check_group(name: str, groups: Collection[int]) -> int:
    """Number of a group that somebody may open the server to.

    Args:
        name: of the group.
        groups: numbers of the groups that the server's user is in.

    Raises:
        InvalidInput: there is no such group, or the user is not in it and not root.
    """
    try:
        number = grp.getgrnam(name).gr_gid
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"--group {name}: there is no such group: getent group shows them") from error
    if number not in groups and os.geteuid() != 0:
        raise InvalidInput(
            f"--group {name}: you are not in that group: ask an administrator, then log in again (id shows your groups)"
        )
    return number


def parse_bind(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        InvalidInput: it is malformed.
    """
    found = _ENDPOINT.match(text)
    host = (found["six"] or found["host"]) if found else ""
    if not found or not _HOST.match(host) or bool(found["six"]) != (":" in host):
        raise InvalidInput(
            f"--bind {text!r} is not understood: give a name or an address of this machine and a port, like "
            "10.0.0.1:6390 or [fd00::1]:6390 (0.0.0.0:6390 for all its addresses)"
        )
    port = int(found["port"])
    if not 1 <= port <= 65535:
        raise InvalidInput(f"--bind {text}: port {port} is not possible: give 1 to 65535")
    return host, port


def addresses(bind: str) -> list[str]:
    """The addresses behind ``HOST:PORT``, each free for a server on this machine.

    Raises:
        InvalidInput: no such name, or an address of another machine.
        ServerRefused: something else listens there, or this user may not.
    """
    host, port = parse_bind(bind)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"--bind {bind}: {host} has no address ({error.strerror or error})") from error
    endpoints = list(dict.fromkeys((family, place) for family, _, _, _, place in found))
    for family, place in endpoints:
        _await_free(bind, family, place)
    return [str(place[0]) for _, place in endpoints]


def _await_free(bind: str, family: int, place: Any) -> None:
    deadline = time.monotonic() + _FREE_S
    while True:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
                probe.listen()
            return
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            raise _not_bound(bind, str(place[0]), error) from error


def _not_bound(bind: str, address: str, error: OSError) -> FoxqueueError:
    if error.errno == errno.EADDRINUSE:
        return ServerRefused(f"--bind {bind}: something else listens there: end it, or take another port")
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInput(f"--bind {bind}: {address} is not an address of this machine: ip addr shows them")
    return ServerRefused(f"--bind {bind} is not possible: {error.strerror or error}")


def is_local(bind: str) -> bool:
    """Whether no other machine reaches what listens there."""
    host, port = parse_bind(bind)
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return all(str(place[0]).startswith("127.") or place[0] == "::1" for *_, place in found)
    return False


# --- the password -------------------------------------------------------------------------------------


def make_password(config: Config) -> str:
    """The password of our own server, made at its first use; its directory must be there.

    Raises:
        ServerRefused: the file holds something else.
        ServerUnavailable: it cannot be read or written.
    """
    path = password_file(config)
    try:
        if not path.exists():
            write_text(path, secrets.token_urlsafe(32) + "\n")
        path.chmod(0o600)
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerUnavailable(f"{path} cannot be used: {error}") from error
    if not _PASSWORD.match(text):
        raise ServerRefused(f"{path} does not hold 16 to 200 letters, digits, '-' or '_': remove it to get another")
    return text


def server_settings(access: Access, listens_on: Collection[str], password: str | None) -> str:
    """What the server reads besides redis.conf."""
    lines = ["unixsocketperm 770"] if access.group is not None else []
    if access.bind is not None:
        lines += [f"port {parse_bind(access.bind)[1]}", f"bind {' '.join(listens_on)}", f"requirepass {password}"]
    return "".join(f"{line}\n" for line in lines)


# --- what others need ---------------------------------------------------------------------------------


def remote_url(bind: str, password: str) -> str:
    """What other machines set as FOXQUEUE_URL."""
    host, port = parse_bind(bind)
    if host in _EVERYWHERE:
        host = socket.gethostname()
    return f"redis://:{password}@{f'[{host}]' if ':' in host else host}:{port}/0"


def hand_out(config: Config, access: Access, password: str | None) -> None:
    """Write the files that others read: the whole URL, and for a group the password.

    Raises:
        ServerUnavailable: they cannot be written.
    """
    try:
        url_file(config).unlink(missing_ok=True)
        if access.bind is not None and password is not None:
            write_text(url_file(config), remote_url(access.bind, password) + "\n")
        if access.group is not None:
            theirs = group_directory(config) / "password"
            theirs.unlink(missing_ok=True)
            if password is not None:
                write_text(theirs, password + "\n", mode=0o640)
    except OSError as error:
        raise ServerUnavailable(f"{error.filename} cannot be written: {error.strerror}") from error


def instructions(config: Config, access: Access, whole: bool) -> Iterator[str]:
    """Sentences about what others set.

    Args:
        config: whose server.
        access: what it was opened to.
        whole: with the password; they are for the eyes of this user alone.
    """
    if access.group is not None:
        directory = group_directory(config)
        text = f"members of group {access.group} set FOXQUEUE_URL={url_of_socket(directory / 'server.sock')}"
        yield text + (f" FOXQUEUE_PASSWORD_FILE={directory / 'password'}" if access.bind is not None else "")
        if os.geteuid() == 0:
            yield f"warning: the workers run as root, and so do the jobs of everybody in group {access.group}"
    if access.bind is not None:
        url = remote_url(access.bind, "***")
        if whole:
            with contextlib.suppress(OSError):
                url = url_file(config).read_text(encoding="utf-8").strip()
        yield f"other machines set FOXQUEUE_URL={url}{'' if whole else f' (whole in {url_file(config)})'}"
        if is_local(access.bind):
            yield f"warning: no other machine reaches {access.bind}: give --bind an address that they know"


# --- the directory of a group -------------------------------------------------------------------------


def open_directory(config: Config, group: str) -> Path:
    """Make or check the directory that the group may enter and only this user may change.

    Raises:
        FoxqueueError: somebody else's, no directory, writable by others, or it cannot be made.
        InvalidInput: there is no such group.
    """
    path = group_directory(config)
    number = check_group(group, {os.getegid(), *os.getgroups()})
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FoxqueueError(f"{path} cannot be used for the server's socket: {error.strerror or error}") from error
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            raise FoxqueueError(f"{path} belongs to user {found.st_uid}, not to you: have it removed")
        if found.st_mode & 0o022:
            raise FoxqueueError(f"others may write to {path}: look what is in it, then remove it")
        if (found.st_gid, stat.S_IMODE(found.st_mode)) == (number, 0o2750):
            return path
        os.fchmod(handle, 0o700)  # closed until it has its group, whoever was in there before
        os.fchown(handle, -1, number)
        os.fchmod(handle, 0o2750)  # setgid: the socket gets the group without our help
        if stat.S_IMODE(os.fstat(handle).st_mode) != 0o2750:
            raise FoxqueueError(f"{path} cannot be given to group {group}: log in again to be in it")
    except OSError as error:
        raise FoxqueueError(f"{path} cannot be given to group {group}: {error.strerror}") from error
    finally:
        os.close(handle)
    return path


def close_directory(config: Config) -> None:
    """Shut the group out again, and keep the directory so that nobody puts another server in its place."""
    path = group_directory(config)
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(handle).st_uid == os.geteuid():
                os.fchmod(handle, 0o700)
                for name in ("password", "server.sock"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=handle)
        finally:
            os.close(handle)
