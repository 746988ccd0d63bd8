"""A systemd unit that runs `foxqueue up`, so that workers survive logout and reboot: written, enabled, removed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foxqueue.config import Config, default_home
from foxqueue.errors import AlreadyRunning, FoxqueueError, InvalidInput
from foxqueue.places import write_text
from foxqueue.urls import hide_password

NAME = "foxqueue.service"
MARK = "# Written by foxqueue service install; foxqueue service uninstall removes it."
SYSTEM_UNITS = Path("/etc/systemd/system")
STOPPING_S = 240  # `foxqueue down` waits 130 s for `up`, then some for what a dead one left
_CARRIED = ("CUDA_VISIBLE_DEVICES", "FOXQUEUE_FORCE_NETWORK_FS", "FOXQUEUE_LOCK_DIR", "FOXQUEUE_LOG")
_CARRIED_TOO = ("FOXQUEUE_PASSWORD_FILE", "FOXQUEUE_REDIS_SERVER")  # paths, made absolute
_CURE = "run foxqueue up --detach, or foxqueue up under tmux or honcho"
_LOOK_S = 30.0
_SIMPLE = re.compile(r"[A-Za-z0-9_./:=,@+-]+\Z")

Say = Callable[[str], None]


class NoSystemd(FoxqueueError):
    """systemd does not manage this machine, or this user has no manager here."""


@dataclass(frozen=True)
class Place:
    """Where the unit of one manager lies.

    Attributes:
        units: directory of its units.
        user: whether it is the manager of one user.
        run_as: the user that everything runs as.
    """

    units: Path
    user: bool
    run_as: str

    @property
    def unit(self) -> Path:
        """The unit's file."""
        return self.units / NAME

    @property
    def secrets(self) -> Path:
        """Variables that only its manager reads, mode 0600."""
        return self.unit.with_suffix(".env")

    @property
    def words(self) -> str:
        """The start of a systemctl command, for people."""
        return "systemctl --user" if self.user else "systemctl"


@dataclass(frozen=True)
class Unit:
    """What is to be written.

    Attributes:
        text: of the unit.
        secrets: of the file with passwords; empty without any.
    """

    text: str
    secrets: str


def user_place(environ: Mapping[str, str]) -> Place:
    """That of this user's own manager.

    Raises:
        InvalidInput: it is root by sudo, who has the manager of another one in mind.
    """
    if os.geteuid() == 0 and environ.get("SUDO_USER", "root") != "root":
        raise InvalidInput("--user is for the services of one user: run it without sudo, as that user")
    try:
        account = pwd.getpwuid(os.geteuid())
    except KeyError as error:  # containers run under numbers that no passwd file names
        raise InvalidInput(f"user {os.geteuid()} has no name here, and so no manager of systemd: {_CURE}") from error
    base = environ.get("XDG_CONFIG_HOME", "")
    directory = Path(base) if base.startswith("/") else Path(environ.get("HOME") or account.pw_dir) / ".config"
    return Place(directory / "systemd" / "user", True, account.pw_name)


def system_place(run_as: str | None, environ: Mapping[str, str], units: Path = SYSTEM_UNITS) -> Place:
    """That of the machine's manager.

    Args:
        run_as: the user that jobs run as; by default who called sudo.
        environ: for SUDO_USER.
        units: directory of its units.

    Raises:
        InvalidInput: this is not root, or there is no such user, or it is not said that root is meant.
    """
    if os.geteuid() != 0:
        raise InvalidInput(
            "a service of the whole machine needs root: sudo foxqueue service install, or, for your own, "
            "foxqueue service install --user"
        )
    name = run_as or environ.get("SUDO_USER") or ""
    if not name or (run_as is None and name == "root"):
        raise InvalidInput("say who the jobs shall run as: --run-as NAME (root runs them only if it is named)")
    try:
        pwd.getpwnam(name)
    except KeyError as error:
        raise InvalidInput(f"--run-as {name}: there is no such user") from error
    return Place(units, False, name)


def config_of(place: Place, config: Config) -> Config:
    """The configuration that the service works with: another user's home is not ours."""
    if place.user or "home" in config.sources:
        return config
    return replace(config, home=default_home({"HOME": pwd.getpwnam(place.run_as).pw_dir}))


def groups_of(place: Place) -> set[int]:
    """Numbers of the groups that the service will be in."""
    return set(os.getgrouplist(place.run_as, pwd.getpwnam(place.run_as).pw_gid))


# --- the unit -----------------------------------------------------------------------------------------


def compose(place: Place, config: Config, options: Sequence[str], environ: Mapping[str, str], program: Path) -> Unit:
    """Put the unit together.

    Args:
        place: where it will lie.
        config: home, server and namespace, which it spells out.
        options: of ``foxqueue up``.
        environ: what it takes along: PATH, CUDA_VISIBLE_DEVICES and FOXQUEUE_ variables.
        program: absolute path of ``foxqueue``.
    """
    plain, secret = _variables(config, environ)
    _check_words(plain | secret | {"the option": " ".join(options), "the path": str(program)})
    down = f"ExecStop={_quoted(str(program), command=True)} down"
    lines = [
        MARK,
        "[Unit]",
        f"Description=foxqueue: workers{'' if config.url else ' and server'} of {_specifiers(str(config.home))}",
    ]
    if not place.user:  # a user's manager knows neither
        lines += ["Wants=network-online.target", "After=network-online.target nvidia-persistenced.service"]
    lines += [
        f"RequiresMountsFor={_quoted(str(config.home))}",
        "",
        "[Service]",
        "Type=exec",
        *([] if place.user else [f"User={place.run_as}"]),
        "WorkingDirectory=/",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in plain.items()),
        *([f"EnvironmentFile={_specifiers(str(place.secrets))}"] if secret else []),
        "ExecStart=" + " ".join(_quoted(word, command=True) for word in (str(program), "up", *options)),
        "# Ends everything, also what an `up` that was killed left behind.",
        down,
        f"TimeoutStopSec={STOPPING_S}",
        "# Workers and runs outlive an `up` that dies; the next one finds them. With any other mode they were killed.",
        "KillMode=process",
        "# A job that takes all memory is no reason to end all others.",
        "OOMPolicy=continue",
        "Restart=on-failure",
        "RestartSec=5",
        "RestartPreventExitStatus=2",
        "TasksMax=infinity",
        "",
        "[Install]",
        f"WantedBy={'default.target' if place.user else 'multi-user.target'}",
    ]
    return Unit("\n".join(lines) + "\n", "".join(f"{name}={_in_file(value)}\n" for name, value in secret.items()))


def _variables(config: Config, environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What everybody may read, and what holds a password."""
    plain = {"FOXQUEUE_HOME": str(config.home)}
    if "namespace" in config.sources:
        plain["FOXQUEUE_NAMESPACE"] = config.namespace
    plain |= {name: environ[name] for name in ("PATH", *_CARRIED) if environ.get(name)}
    plain |= {name: str(Path(environ[name]).expanduser().absolute()) for name in _CARRIED_TOO if environ.get(name)}
    secret: dict[str, str] = {}
    if config.url:
        (plain if hide_password(config.url) == config.url else secret)["FOXQUEUE_URL"] = config.url
        if config.password is not None and ("password" in config.sources or "FOXQUEUE_PASSWORD_FILE" not in plain):
            secret["FOXQUEUE_PASSWORD"] = config.password
    return plain, secret


def _check_words(words: Mapping[str, str]) -> None:
    for name, value in words.items():
        if not value.isprintable():
            raise InvalidInput(f"{name} holds characters that a unit of systemd cannot hold")


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str, command: bool = False) -> str:
    """One word of a unit's line."""
    if _SIMPLE.match(text):
        return text
    word = _specifiers(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word.replace("$", "$$") if command else word}"'


def _in_file(text: str) -> str:
    """A value in an EnvironmentFile, which knows no specifiers."""
    for char in '\\"$`':
        text = text.replace(char, "\\" + char)
    return f'"{text}"'


def find_program(started_as: str, environ: Mapping[str, str]) -> Path:
    """The absolute path of ``foxqueue``.

    Args:
        started_as: sys.argv[0].
        environ: for PATH.

    Raises:
        FoxqueueError: there is none that can be run.
    """
    candidates = [Path(started_as).absolute()] if Path(started_as).name in ("foxqueue", "fox") else []
    candidates.append(Path(sys.executable).with_name("foxqueue"))
    found = shutil.which("foxqueue", path=environ.get("PATH"))
    candidates += [Path(found).absolute()] if found else []
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise FoxqueueError("the program foxqueue is not found: install the package, so that it is on PATH")


# --- doing it -----------------------------------------------------------------------------------------


def install(place: Place, unit: Unit, say: Say, *, force: bool = False, taken: bool = False) -> None:
    """Write the unit, enable and start it; what is so already is left alone.

    Args:
        place: where.
        unit: what.
        say: is given sentences for the user.
        force: replace another unit.
        taken: `foxqueue up` runs for the home, by the service or not.

    Raises:
        NoSystemd: there is no manager to give it to.
        AlreadyRunning: `foxqueue up` runs for the home without the service.
        FoxqueueError: another unit is there and ``force`` is not given, or systemd refuses.
    """
    there = _read(place.unit)
    changed = (there, _read(place.secrets)) != (unit.text, unit.secrets)
    if there and changed and not force:
        whose = "is other than what would be written" if MARK in there else "was not written by foxqueue"
        raise FoxqueueError(f"{place.unit} {whose}: look at it, then give --force to replace it")
    _check_manager(place)
    active = _control(place, "is-active", NAME, check=False) == "active"
    if taken and not active:
        raise AlreadyRunning(
            "foxqueue up runs for this home already: run foxqueue down first, then install the service"
        )
    if changed:
        _write(place, unit)
        _control(place, "daemon-reload")
    if place.user:
        _linger(place, say)
    _control(place, "enable", "--now", NAME, seconds=STOPPING_S + _LOOK_S)  # one that is ending ends first
    if changed and active:
        say(f"{place.unit} replaced; it counts from the next start: {place.words} restart foxqueue")
    else:
        say(f"{place.unit} {'written, ' if changed else 'is there already, '}enabled and started")
    say(f"look after it with {place.words} status foxqueue, and with foxqueue workers")


def uninstall(place: Place, say: Say, *, force: bool = False) -> None:
    """Stop and disable the service, and remove its files. Jobs and data are kept.

    Args:
        place: where.
        say: is given sentences for the user.
        force: remove a unit that is not ours, too.

    Raises:
        NoSystemd: there is no manager to ask.
        FoxqueueError: the unit there is not ours and ``force`` is not given, or systemd refuses.
    """
    there = _read(place.unit)
    if not there:
        say(f"no service is installed ({place.unit})")
        return
    if MARK not in there and not force:
        raise FoxqueueError(f"{place.unit} was not written by foxqueue: look at it, then give --force to remove it")
    _check_manager(place)
    say("ending: running jobs have 60 s to finish")
    _control(place, "disable", "--now", NAME, seconds=STOPPING_S + _LOOK_S)
    for path in (place.unit, place.secrets):
        path.unlink(missing_ok=True)
    _control(place, "daemon-reload")
    say("removed; jobs and data are kept")


def installed(units: Path) -> str:
    """Text of the unit that is there.

    Args:
        units: directory of units.

    Raises:
        FoxqueueError: there is none.
    """
    text = _read(units / NAME)
    if not text:
        raise FoxqueueError(
            f"no service is installed ({units / NAME}): foxqueue service install writes one, with --dry-run it is shown"
        )
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise FoxqueueError(f"{path} cannot be read: {error.strerror}") from error


def _write(place: Place, unit: Unit) -> None:
    try:
        place.units.mkdir(parents=True, exist_ok=True)
        if unit.secrets:
            write_text(place.secrets, unit.secrets)
        else:
            place.secrets.unlink(missing_ok=True)
        write_text(place.unit, unit.text, mode=0o644)
    except OSError as error:
        raise FoxqueueError(f"{place.unit} cannot be written: {error.strerror}") from error


def _check_manager(place: Place) -> None:
    if shutil.which("systemctl") is None:
        raise NoSystemd(f"there is no systemd here (no systemctl on PATH): {_CURE}")
    state = _control(place, "is-system-running", check=False)
    if state not in ("initializing", "starting", "running", "degraded", "maintenance", "stopping"):
        manager = f"no systemd manager of user {place.run_as} answers" if place.user else "systemd does not run here"
        raise NoSystemd(f"{manager} ({state or 'no answer'}): {_CURE}")


def _control(place: Place, *words: str, check: bool = True, seconds: float = _LOOK_S) -> str:
    return _run(["systemctl", *(["--user"] if place.user else []), *words], check, seconds)


def _run(command: Sequence[str], check: bool, seconds: float = _LOOK_S) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FoxqueueError(f"{' '.join(command)} failed: {error}") from error
    text = (done.stdout.strip() or done.stderr.strip()).strip()
    if check and done.returncode:
        raise FoxqueueError(f"{' '.join(command)} failed: {done.stderr.strip() or text or done.returncode}")
    return text


def _linger(place: Place, say: Say) -> None:
    """Without it a user's services end at the logout, and begin only at a login."""
    try:
        _run(["loginctl", "enable-linger", place.run_as], check=True)
    except FoxqueueError as error:
        say(f"warning: workers will end when you log out, and start only when you log in ({error})")
        say(f"an administrator can change that: sudo loginctl enable-linger {place.run_as}")
