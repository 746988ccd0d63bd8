"""Where foxqueue finds its home, its server and its namespace: files, then environment, then flags."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from foxqueue.errors import InvalidInput
from foxqueue.keys import Keys
from foxqueue.urls import check_url, hide_password

_FILE_KEYS = ("home", "url", "namespace", "password_file")
MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, and a server appends to it


@dataclass(frozen=True)
class Config:
    """What one process of foxqueue works with.

    Attributes:
        home: directory of this user's state; may be shared between machines.
        url: the configured server, or None for our own.
        namespace: name of the queue on the server.
        password: of the server, when it is given apart from the URL.
        sources: which file, variable or flag each value came from.
    """

    home: Path
    url: str | None
    namespace: str
    password: str | None
    sources: Mapping[str, str]

    @property
    def machine_dir(self) -> Path:
        """What belongs to this machine under a home that several may share."""
        return self.home / machine_id()

    @property
    def jobs_dir(self) -> Path:
        """Where runs on this machine keep output, exit record and files."""
        return self.machine_dir / "jobs"

    @property
    def shown_url(self) -> str:
        """The URL for messages, with the password hidden."""
        return hide_password(self.url) if self.url else "our own server"


def machine_id() -> str:
    """A name of this machine: systemd's machine id, else the host name."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return text
    return socket.gethostname()


def load_config(
    url: str | None = None,
    namespace: str | None = None,
    home: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """Put together files, environment and arguments, the last one strongest.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` URL.
        namespace: name of the queue.
        home: state directory.
        environ: environment to read, this process's by default.
        cwd: directory whose ``foxqueue.toml`` counts, the current one by default.

    Raises:
        InvalidInput: a file cannot be read, or a value is malformed; the text says which and where it stood.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    for path in _config_files(environ, cwd):
        for key, value in _read_file(path).items():
            values[key], sources[key] = value, str(path)
    for key in (*_FILE_KEYS, "password"):
        variable = "FOXQUEUE_" + key.upper()
        if environ.get(variable):
            values[key], sources[key] = environ[variable], variable
    for key, given in (("url", url), ("namespace", namespace), ("home", home)):
        if given is not None:
            values[key], sources[key] = str(given), f"--{key}"
    return _build(values, sources, environ)


def _build(values: dict[str, str], sources: dict[str, str], environ: Mapping[str, str]) -> Config:
    if "url" in values:
        check_url(values["url"], sources["url"])
    namespace = values.get("namespace", "default")
    Keys(namespace)
    home = _expanded(values["home"], sources["home"]) if "home" in values else default_home(environ)
    if not home.is_absolute():
        here = _here()
        if here is None:
            raise InvalidInput(f"home {home} ({sources['home']}) is relative, and the current directory is gone")
        home = here / home
    password, source = values.get("password"), sources.get("password", "")
    if password is None and "password_file" in values:
        source = sources["password_file"]
        password = _read_password(values["password_file"], source)
    if password and any("\ud800" <= char <= "\udfff" for char in password):
        raise InvalidInput(f"the password ({source}) is not UTF-8")
    return Config(home, values.get("url"), namespace, password, sources)


def _expanded(path: str, source: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidInput(f"{path} ({source}): there is no such user: write the directory out") from error


def _here() -> Path | None:
    """The current directory; None when it was removed, or may not be read."""
    try:
        return Path.cwd()
    except OSError:
        return None


def default_home(environ: Mapping[str, str]) -> Path:
    """The XDG state directory of foxqueue."""
    state = environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):
        return Path(state) / "foxqueue"
    return _home_of_user(environ) / ".local" / "state" / "foxqueue"


def _home_of_user(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError as error:  # containers run under numbers that no passwd file names
        raise InvalidInput("no home directory is known: set HOME, or FOXQUEUE_HOME and XDG_CONFIG_HOME") from error


def server_socket(config: Config) -> Path:
    """Where our own server listens: under the home, or in a short 0700 directory when that path is too long."""
    path = config.machine_dir / "server" / "server.sock"
    digest = _digest(config)
    candidates = [path]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and Path(runtime).is_dir():
        candidates.append(Path(runtime) / f"foxqueue-{digest}" / "server.sock")
    for directory in (tempfile.gettempdir(), "/tmp"):
        candidates.append(Path(directory) / f"foxqueue-{os.getuid()}-{digest}" / "server.sock")
    return next((short for short in candidates if len(os.fsencode(short)) <= MAX_SOCKET_PATH), path)


def group_directory(config: Config) -> Path:
    """Where our own server listens for a group: a short place that others may come to, the same after a reboot."""
    name = f"foxqueue-{os.geteuid()}-{_digest(config)}-group"
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run") / name  # only root can put something else there
    return next((place for place in (Path("/var/tmp"), Path("/tmp")) if place.is_dir()), Path("/tmp")) / name


def password_file(config: Config) -> Path:
    """Holds the password of our own server, once it has one; for this user alone."""
    return config.machine_dir / "server" / "password"


def url_file(config: Config) -> Path:
    """Holds what other machines set as FOXQUEUE_URL, password included; for this user alone."""
    return config.machine_dir / "server" / "url"


def listening_socket(config: Config) -> Path:
    """Where our own server was started to listen: its record says, for the place may depend on the environment."""
    try:
        return Path(server_record(config)["socket"])
    except (KeyError, TypeError):
        return server_socket(config)


def own_password(config: Config) -> str | None:
    """The password of our own server; None when it was started without one, or it cannot be read."""
    if not server_record(config).get("bind"):
        return None
    try:
        return password_file(config).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def server_password(config: Config) -> str | None:
    """The password of the configured server, else of our own; None without one."""
    return config.password if config.url else own_password(config)


def server_record(config: Config) -> dict[str, Any]:
    """What is known about our own server since it was started the last time; empty without one."""
    try:
        record = json.loads((config.machine_dir / "server" / "server.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _digest(config: Config) -> str:
    return hashlib.sha256(os.fsencode(config.machine_dir)).hexdigest()[:16]


def url_of_socket(path: Path) -> str:
    """The URL of a unix socket."""
    return "unix://" + quote(str(path))


def _config_files(environ: Mapping[str, str], cwd: Path | None) -> list[Path]:
    base = environ.get("XDG_CONFIG_HOME", "")
    user = Path(base) if base.startswith("/") else _home_of_user(environ) / ".config"
    here = cwd or _here()
    files = [Path("/etc/foxqueue/foxqueue.toml"), user / "foxqueue" / "foxqueue.toml"]
    return [*files, here / "foxqueue.toml"] if here else files


def _read_file(path: Path) -> dict[str, str]:
    try:
        data = tomllib.loads(_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    for key, value in data.items():
        if key not in _FILE_KEYS:
            raise InvalidInput(f"{path}: unknown setting {key!r}; allowed are {', '.join(_FILE_KEYS)}")
        if not isinstance(value, str):
            raise InvalidInput(f"{path}: {key} must be text, not {value!r}")
    return {key: value for key, value in data.items() if value}


def _text(path: Path) -> str:
    """The file's text. Only regular files are read: a FIFO would hold up every command. /dev/null counts as empty."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(handle, encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
        mode = os.fstat(handle).st_mode
        if stat.S_ISCHR(mode) and path.samefile(os.devnull):
            return ""
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"{path} cannot be read: it is no regular file, remove it")
        return file.read()


def _read_password(path: str, source: str) -> str:
    try:
        return _expanded(path, source).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"password file ({source}) cannot be read: {error}") from error
