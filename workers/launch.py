"""Starting a job's command, and saying in plain words what is wrong when it cannot be started."""

# No pathlib: paths are bytes, any name goes.
# ruff: noqa: PTH116, PTH118

from __future__ import annotations

import errno
import os
import signal
import stat
from dataclasses import dataclass
from typing import Any, Final

OUTPUT_NAME: Final = "output.log"
_CLOCKS: Final = ("monotonic", "boottime")
_UNCHANGEABLE: Final = {signal.SIGKILL, signal.SIGSTOP}


class LaunchError(Exception):
    """The job cannot be started. The text says what is wrong and what cures it; ``not_found``: no such command."""

    def __init__(self, text: str, *, not_found: bool = False) -> None:
        super().__init__(text)
        self.not_found = not_found


@dataclass(frozen=True)
class Shared:
    """What a command under a lease has in common with who called it, where a job has its own.

    Its standard streams and its directory are descriptors that came with the order, its umask and limits are the
    runner's, which has them from the caller.

    Attributes:
        group: process group that it joins, so that Ctrl-C and Ctrl-Z reach it; None: it gets a session of its own.
        ignored: signals that it is to ignore, as the caller does.
        fds: standard input, output, error, and the directory.
    """

    group: int | None
    ignored: frozenset[int]
    fds: tuple[int, int, int, int]

    @classmethod
    def of(cls, message: dict[str, Any], fds: list[int]) -> Shared:
        """Read the field ``shared`` of a ``start`` message.

        Raises:
            KeyError, TypeError, ValueError: it is malformed.
        """
        group = message["group"]
        stdin, stdout, stderr, directory = fds
        ignored = frozenset(int(number) for number in message["ignored"])
        return cls(None if group is None else int(group), ignored, (stdin, stdout, stderr, directory))

    def close(self) -> None:
        """Close the descriptors: who reads what the command wrote sees its end when the command is gone."""
        for descriptor in self.fds:
            os.close(descriptor)


@dataclass(frozen=True)
class Order:
    """What the worker orders: see the ``start`` message. Times in seconds; text may hold surrogates.

    A command under a lease has ``shared``, and neither ``run_dir`` nor ``feed_until``.
    """

    job: int
    born: int
    fence: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    run_dir: str | None
    time_limit_s: float | None
    grace_s: float
    beat_grace_s: float
    clock: str
    feed_until: float | None
    shared: Shared | None = None

    @classmethod
    def of(cls, message: dict[str, Any], fds: list[int] | None = None) -> Order:
        """Read a ``start`` message.

        Args:
            message: what came.
            fds: descriptors that came with it for the command, of which it shall have the content of ``shared``.

        Raises:
            LaunchError: a field is missing or malformed.
        """
        try:
            limit, feed, run_dir = message["time_limit_s"], message["feed_until"], message["run_dir"]
            shared = message.get("shared")
            order = cls(
                job=int(message["job"]),
                born=int(message["born"]),
                fence=int(message["fence"]),
                argv=[str(part) for part in message["argv"]],
                env={str(name): str(value) for name, value in message["env"].items()},
                cwd=str(message["cwd"]),
                umask=int(message["umask"]) & 0o777,
                run_dir=None if run_dir is None else str(run_dir),
                time_limit_s=None if limit is None else float(limit),
                grace_s=float(message["grace_s"]),
                beat_grace_s=float(message["beat_grace_s"]),
                clock=str(message["clock"]),
                feed_until=None if feed is None else float(feed),
                shared=None if shared is None else Shared.of(shared, fds or []),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LaunchError(f"the worker's order is malformed ({error!r}): restart the worker") from error
        if order.clock not in _CLOCKS:
            raise LaunchError(f"the worker's order names an unknown clock {order.clock!r}: restart the worker")
        return order


def encode(text: str) -> bytes:
    """The bytes the kernel gets. UTF-8 whatever the locale: it is what the text was decoded with.

    Raises:
        LaunchError: the text holds a surrogate that stands for no byte, or a NUL, which no argument can hold.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise LaunchError(f"{_show(text)} holds a character that cannot be encoded: leave it out") from error
    if b"\0" in data:
        raise LaunchError(f"{_show(text)} holds a NUL byte, which no argument can: leave it out")
    return data


def open_output(run_dir: bytes) -> int:
    """Open the file that takes the job's output.

    Raises:
        LaunchError: it cannot be opened.
    """
    path = os.path.join(run_dir, OUTPUT_NAME.encode())
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(
            f"output file {_show(os.fsdecode(path))} cannot be written ({error.strerror}): "
            "check permissions and free space there"
        ) from error


def run_dir_fault(run_dir: str, error: OSError) -> LaunchError:
    """The error for a run directory that takes no exit record."""
    return LaunchError(
        f"run directory {_show(run_dir)} cannot be used ({error.strerror}): "
        "check that it exists, is writable and has free space"
    )


@dataclass(frozen=True)
class _Setting:
    """What a process is started with: its environment, streams, and where it stands among others."""

    env: dict[bytes, bytes]
    streams: tuple[int, int, int]
    group: int | None = None
    ignored: frozenset[int] = frozenset()
    whose: str = "the job's"

    def spawn(self, path: bytes, argv: list[bytes]) -> int:
        """Start a program; returns its pid."""
        place: dict[str, Any] = {"setsid": True} if self.group is None else {"setpgroup": self.group}
        return os.posix_spawn(
            path,
            argv,
            self.env,
            file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(self.streams)],
            setsigmask=[],
            setsigdef=signal.valid_signals() - _UNCHANGEABLE - self.ignored,
            **place,
        )


def spawn(order: Order, output: int | None) -> int:
    """Start the job's command: own session, no input, default signals, none of our descriptors; or as it shares them.

    The umask and working directory of this process are changed and put back: it has one thread and one job. Signals
    that the command is to ignore are ignored here from now on.

    Args:
        order: what to start.
        output: descriptor that becomes standard output and standard error; None where the order shares its streams.

    Returns:
        The pid of the started process.

    Raises:
        LaunchError: it cannot be started.
    """
    if not order.argv:
        raise LaunchError("the command is empty: give one after --")
    argv = [encode(part) for part in order.argv]
    env = {encode(name): encode(value) for name, value in order.env.items()}
    for name in env:
        if not name or b"=" in name:
            raise LaunchError(f"{_show(os.fsdecode(name))} cannot name an environment variable: leave it out")
    if order.shared is not None:
        return _spawn_shared(order.shared, argv, env)
    _enter(order.cwd)
    umask = os.umask(order.umask)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert output is not None
        return _search(argv, _Setting(env, (null, output, output)))
    finally:
        os.close(null)
        os.umask(umask)
        os.chdir("/")


def _spawn_shared(shared: Shared, argv: list[bytes], env: dict[bytes, bytes]) -> int:
    stdin, stdout, stderr, directory = shared.fds
    for signum in shared.ignored:
        signal.signal(signum, signal.SIG_IGN)
    os.fchdir(directory)
    try:
        return _search(argv, _Setting(env, (stdin, stdout, stderr), shared.group, shared.ignored, "your"))
    finally:
        os.chdir("/")


def _enter(cwd: str) -> None:
    path = encode(cwd)
    if not path.startswith(b"/"):
        raise LaunchError(f"working directory {_show(cwd)} is not an absolute path: give one with --cwd")
    try:
        os.chdir(path)
    except OSError as error:
        cures = {
            errno.ENOENT: "does not exist here: create it, or submit with --cwd",
            errno.ENOTDIR: "is not a directory: submit with --cwd",
            errno.EACCES: "may not be entered: change its permissions, or submit with --cwd",
        }
        cure = cures.get(error.errno or 0, f"cannot be entered ({error.strerror}): submit with --cwd")
        raise LaunchError(f"working directory {_show(cwd)} {cure}") from error


def _search(argv: list[bytes], setting: _Setting) -> int:
    """Try the command as execvpe does, in the PATH of the job and not in ours."""
    if b"/" in argv[0]:
        candidates = [argv[0]]
    else:
        path = setting.env.get(b"PATH", os.defpath.encode())
        candidates = [os.path.join(part or b".", argv[0]) for part in path.split(b":")]
    if not argv[0]:
        raise LaunchError("the command is an empty text: give a program's name after --")
    fault: tuple[bytes, OSError] | None = None
    # Each attempt is a process that has to be made, so what is no file is not tried, unless nothing is one.
    for candidate in [place for place in candidates if _is_file(place)] or candidates:
        try:
            return setting.spawn(candidate, argv)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and not _is_file(candidate):
                continue
            if error.errno not in (errno.ENOENT, errno.EACCES):
                raise _explain(candidate, error) from error
            fault = fault or (candidate, error)
    if fault is not None:
        raise _explain(*fault) from fault[1]
    name = _show(os.fsdecode(argv[0]))
    if b"/" in argv[0]:
        text = f"command {name} does not exist here: check the path and the working directory"
    else:
        text = f"command {name} was not found in {setting.whose} PATH: install it, or give its full path"
    raise LaunchError(text, not_found=True)


def _explain(path: bytes, error: OSError) -> LaunchError:
    name = f"command {_show(os.fsdecode(path))}"
    limit = "no process could be started: a limit is reached (ulimit -u, or pids.max of the cgroup); raise it"
    texts = {
        errno.ENOENT: f"{name} names an interpreter in its first line that does not exist here: correct it",
        errno.EACCES: f"{name} is not executable: chmod +x it, or start it through its interpreter",
        errno.ENOEXEC: f"{name} is not a program for this machine: a script needs a first line like #!/bin/sh",
        errno.E2BIG: "the command line and its environment are too long: pass the data in a file",
        errno.ETXTBSY: f"{name} is being written by another process: submit again when it is complete",
        errno.EAGAIN: limit,
        errno.ENOMEM: "no process could be started: the machine is out of memory; free some",
    }
    number = error.errno or 0
    if number == errno.EACCES and _is_dir(path):
        return LaunchError(f"{name} is a directory: name a program")
    return LaunchError(texts.get(number, f"{name} cannot be started ({error.strerror}): try it in a shell"))


def _is_file(path: bytes) -> bool:
    return _mode_of(path, stat.S_ISREG)


def _is_dir(path: bytes) -> bool:
    return _mode_of(path, stat.S_ISDIR)


def _mode_of(path: bytes, test: Any) -> bool:
    try:
        return bool(test(os.stat(path).st_mode))
    except OSError:
        return False


def _show(text: str) -> str:
    """Text in quotes, printable whatever it holds, and not endless."""
    shown = repr(text)
    return shown if len(shown) <= 300 else shown[:297] + "...'"
