"""URLs of servers: which ones are understood, and how they are shown without what is secret in them.

Everything that redis-py would trip over is refused here, before anything is tried.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_plus, urlsplit

from foxqueue.errors import InvalidInput

_SCHEMES = ("redis", "rediss", "unix")
_MAX_SOCKET = 107  # bytes that a socket's address holds
_DATABASE = re.compile(r"[0-9]{1,6}\Z")
_PATH = re.compile(r"/?(?:[0-9]{1,6}/?)?\Z")
_HARMLESS = re.compile(r"[A-Za-z0-9._/-]*\Z")  # a value that can be shown; anything else may be part of a password
_SPECIAL = "in a password write / as %2F, @ as %40, # as %23, ? as %3F"
_YES_OR_NO = ("yes", "no", "true", "false", "1", "0")


def _one_of(*words: str) -> Callable[[str], str | None]:
    return lambda value: None if value.lower() in words else f"give {', '.join(words[:-1])} or {words[-1]}"


def _database(value: str) -> str | None:
    return None if _DATABASE.match(value) else "give the number of a database, like 0"


def _file(value: str) -> str | None:
    return None if Path(value).is_file() else "there is no such file"


def _directory(value: str) -> str | None:
    return None if Path(value).is_dir() else "there is no such directory"


def _anything(_value: str) -> str | None:
    return None


# What may stand behind '?', each with what is wrong with its value (None: nothing). Time-outs and retries are our own.
_PARAMETERS: dict[str, Callable[[str], str | None]] = {
    "db": _database,
    "username": _anything,
    "password": _anything,
    "client_name": lambda value: None if value.isprintable() and " " not in value else "give a name without blanks",
    "protocol": _one_of("2", "3"),
}
_OF_TLS: dict[str, Callable[[str], str | None]] = {
    "ssl_cert_reqs": _one_of("none", "optional", "required"),
    "ssl_check_hostname": _one_of(*_YES_OR_NO),
    "ssl_ca_certs": _file,
    "ssl_ca_path": _directory,
    "ssl_certfile": _file,
    "ssl_keyfile": _file,
}
_SHOWN = {*_PARAMETERS, *_OF_TLS} - {"username", "password"}


def hide_password(url: str) -> str:
    """The URL with ``***`` for a password; what cannot be read is not shown at all."""
    if "://" not in url or ";" in url:
        return "(a URL that cannot be read)"  # it may be the password itself
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return "(a URL that cannot be read)"
    if "@" not in parts.netloc and "@" in url:
        return f"{parts.scheme}://***"  # a stray '/', '?' or '#' in the password moved it out of the host part
    if password is not None:
        userinfo, _, host = parts.netloc.rpartition("@")
        parts = parts._replace(netloc=f"{userinfo.partition(':')[0]}:***@{host}")
    query = "&".join(map(_hidden, parts.query.split("&"))) if parts.query else ""
    shown = parts._replace(query=query, fragment="***" if parts.fragment else "")
    return url if shown == urlsplit(url) else shown.geturl()


def _hidden(parameter: str) -> str:
    """A parameter as it may be shown: a value only when name and value are harmless."""
    name, separator, value = parameter.partition("=")
    if unquote_plus(name) in _SHOWN and _HARMLESS.match(value):
        return parameter
    return f"{name}=***" if separator and _HARMLESS.match(name) else "***"


def check_url(url: str, source: str) -> None:
    """Raise InvalidInput when the URL is not one that redis-py reads, without printing a password."""
    wanted = f"({source}): write redis://HOST:PORT/DB, rediss://… or unix:///PATH"
    if any("\ud800" <= char <= "\udfff" for char in url):
        raise InvalidInput(f"server URL holds bytes that are not UTF-8 {wanted}")
    scheme, separator, rest = url.partition("://")
    shown = hide_password(url)
    if not separator or scheme not in _SCHEMES:
        raise InvalidInput(f"server URL {shown} is not understood {wanted}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"server URL cannot be read {wanted}; {_SPECIAL}") from error
    authority = rest.partition("?")[0]
    if "@" in authority and "@" not in parts.netloc and scheme != "unix":
        raise InvalidInput(
            f"server URL's password holds a character that ends the host part {wanted}; "
            f"{_SPECIAL.removeprefix('in a password ')}, or give it by FOXQUEUE_PASSWORD"
        )
    wrong = _bad_socket(parts) if scheme == "unix" else _bad_host(parts, port)
    if parts.fragment:
        wrong = wrong or f"holds a '#': {_SPECIAL}"
    if wrong:
        raise InvalidInput(f"server URL {shown} {wrong} {wanted}")
    _check_parameters(parts, shown, source)


def _bad_socket(parts: SplitResult) -> str | None:
    path = unquote(parts.path)
    if parts.netloc.rpartition("@")[2]:
        return "names a socket by a relative path, give an absolute one behind three slashes"
    if not path.strip("/"):
        return "names no socket"
    if "\0" in path:
        return "names a socket by a path with a NUL character"
    if len(os.fsencode(path)) > _MAX_SOCKET:
        return f"names a socket by a path of more than {_MAX_SOCKET} bytes, which no program can open"
    return None


def fault_of_web(url: str) -> str | None:
    """What is wrong with the URL of a web service, None when nothing is. One with a user is: it would be seen by all.

    Args:
        url: with its scheme.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or its port (1 to 65535) cannot be read"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}:// is not understood"
    if "@" in parts.netloc:
        return "it holds a user or a password (before the '@'), which everybody in the queue could read"
    if not parts.hostname:
        return "it names no host"
    if port == 0:
        return "there is no port 0, there are 1 to 65535"
    if not url.isprintable() or " " in url:
        return "it holds a blank or what cannot be printed (write %20)"
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        return "it names a host that no host can have"
    return None


def _bad_host(parts: SplitResult, port: int | None) -> str | None:
    if not parts.hostname:
        return "names no host"
    host = unquote(parts.hostname)
    try:
        host.encode("idna")
    except UnicodeError:
        return "names a host that no host can have"
    if any(char <= " " or char in "\x7f�" for char in host):
        return "names a host that no host can have"
    if port == 0:
        return "names port 0, give 1 to 65535"
    if not _PATH.match(unquote(parts.path)):
        return "names a database that is no number"
    return None


def _check_parameters(parts: SplitResult, shown: str, source: str) -> None:
    known = _PARAMETERS | _OF_TLS if parts.scheme == "rediss" else _PARAMETERS
    seen: set[str] = set()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known or name in seen:
            which = f" {name}" if _HARMLESS.match(name) else ""
            fault = "stands twice" if name in seen else f"is not one of {', '.join(known)}"
            raise InvalidInput(f"server URL {shown} ({source}): parameter{which} {fault}")
        seen.add(name)
        wrong = known[name](value)
        if wrong:
            raise InvalidInput(f"server URL {shown} ({source}): {name}: {wrong}")
