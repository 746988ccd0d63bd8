"""The holder's side of a command under a lease: a runner carries it out, signals are passed on, its end is waited for.

With a terminal the command shares our session and process group, so that Ctrl-C and Ctrl-Z reach it as they reach us,
and we let it do as it likes with them. Without one it has a session of its own, and gets from us what we get.

The runner has a share of the device's lock and ends the command when we are gone. When the runner is killed, what it
leaves becomes ours, and is killed before the device is given back.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from foxqueue.processes import ProcessId, become_subreaper, children, kill_marked
from foxqueue.rundirs import MARK
from workers.runs import RunnerHandle, spawn_runner
from workers.tree import kill_orphans

NOT_FOUND: Final = 127  # as a shell has them
NOT_STARTED: Final = 126
LOST: Final = 1  # of a command that ended well, but only because its lease was lost

_SWEEP_UP_S: Final = 5.0
_LOOK_S: Final = 30.0
_MAY_IGNORE: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)  # as nohup and shells without job control do
_CAUGHT: Final = (*_MAY_IGNORE, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_OF_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)  # it sends them to the whole group, the command included
_HELPER: Final = b"\0foxqueue.leases.helper\0"

Say = Callable[[str], None]


class News:
    """What wakes a holder: signals, and the loss of its lease, which another thread tells.

    Attributes:
        ignored: signals that this process was started to ignore, and ignores.
        lost: why the lease is lost; "" while it is not.
    """

    def __init__(self) -> None:
        self.ignored = [signum for signum in _MAY_IGNORE if signal.getsignal(signum) == signal.SIG_IGN]
        self.lost = ""
        self._signals: list[int] = []
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch signals for a while. Handlers, not SIG_IGN: a system call that waits goes on all the same."""
        numbers = [signum for signum in _CAUGHT if signum not in self.ignored]
        before = {signum: signal.signal(signum, self._note) for signum in numbers}
        wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def lose(self, why: str) -> None:
        """The lease is lost. For any thread."""
        self.lost = self.lost or why or "nobody says why"
        with suppress(OSError):
            self._writer.send(b"\0")

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """The signals that came since."""
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        found, self._signals = self._signals, []
        return found

    def wait(self, seconds: float | None) -> None:
        """Wait for news, so many seconds at most; None for as long as it takes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.select(seconds)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._signals.append(signum)


@dataclass(frozen=True)
class Command:
    """What is to be carried out.

    Attributes:
        argv: its words.
        env: its environment, whole.
        mark: names its processes, in ``env`` too.
        fence: of the lease, 0 for one without a device.
        lock_fds: descriptors of the devices' ``.gpu`` locks, of which the runner gets a share.
        grace_s: between TERM and KILL.
        lost_grace_s: the same when the lease is lost: somebody else may have the device soon.
        until_s: epoch seconds at which it ends; None for never.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    mark: str
    fence: int
    lock_fds: Sequence[int]
    grace_s: float
    lost_grace_s: float
    until_s: float | None = None


class Holder:
    """Who holds a lease for a command, from the start to the moment when its last process is gone.

    Args:
        command: what to carry out.
        news: of signals and the loss of the lease; its signals are caught.
        note: writes down who the runner is, for who finds the device's lock after our death.
        say: tells people.
    """

    def __init__(self, command: Command, news: News, note: Callable[[Mapping[str, Any]], None], say: Say) -> None:
        self._command = command
        self._news = news
        self._note = note
        self._say = say
        self._terminal = has_terminal()
        self._started = False
        self._record: dict[str, Any] | None = None
        self._leader: ProcessId | None = None
        self._asked: int | None = None  # the first signal that asked for its end
        self._told_lost = False

    def run(self) -> int:
        """Carry it out.

        Returns:
            Its exit code, 128 and the signal's number when one ended it, 126 or 127 when it could not be started.

        Raises:
            OSError: no runner could be started.
        """
        become_subreaper()  # of what a killed runner leaves
        runner = spawn_runner(terminal=self._terminal)
        try:
            self._write_down(mark=self._command.mark, command=runner.identity and runner.identity.to_dict())
            self._start(runner)
            self._watch(runner)
        finally:
            if self._record is None:
                self._sweep_up(runner)
            runner.close()
        return self._status()

    def _write_down(self, **facts: Any) -> None:
        with suppress(OSError):  # then who finds the lock after our death has the device's own mark to go by
            self._note(facts)

    def _start(self, runner: RunnerHandle) -> None:
        command = self._command
        left_s = None if command.until_s is None else max(command.until_s - time.time(), 0.0)
        order = {
            "job": 0,
            "born": 0,
            "fence": command.fence,
            "argv": [_portable(word) for word in command.argv],
            "env": {_portable(name): _portable(value) for name, value in command.env.items()},
            "cwd": ".",
            "umask": 0,
            "run_dir": None,
            "time_limit_s": left_s,
            "grace_s": command.grace_s,
            "beat_grace_s": command.lost_grace_s,
            "clock": "monotonic",
            "feed_until": None,
            "shared": {"group": os.getpgrp() if self._terminal else None, "ignored": self._news.ignored},
        }
        directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # it is dead, and then we see that
                runner.start(order, [0, 1, 2, directory, *command.lock_fds])
        finally:
            os.close(directory)

    def _watch(self, runner: RunnerHandle) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._news, selectors.EVENT_READ)
            selector.register(runner, selectors.EVENT_READ)
            while self._record is None:
                gone = runner.gone
                self._hear(runner)
                if gone:
                    return
                for signum in self._news.take():
                    self._obey(runner, signum)
                if self._news.lost and not self._told_lost:
                    self._told_lost = True
                    self._say(f"the lease is lost ({self._news.lost}): ending the command")
                    self._kill(runner, "lease_lost", self._command.lost_grace_s)
                selector.select(_LOOK_S)

    def _hear(self, runner: RunnerHandle) -> None:
        for message in runner.hear():
            if message.get("op") == "exited":
                self._record = message["record"]
            elif message.get("op") == "started":
                self._started = True
                self._leader = ProcessId.named(message, "process")
                if not self._terminal:  # else what shares its session is not only the command's
                    self._write_down(leader=message["process"])

    def _obey(self, runner: RunnerHandle, signum: int) -> None:
        if signum == signal.SIGTERM or not self._started:
            again = self._asked is not None
            self._asked = self._asked or signum
            self._kill(runner, "cancel", 0.0 if again else self._command.grace_s)
        elif not (self._terminal and signum in _OF_TERMINAL):
            with suppress(OSError):
                runner.signal(signum)

    def _kill(self, runner: RunnerHandle, why: str, grace_s: float) -> None:
        with suppress(OSError):
            runner.kill(why, grace_s)

    def _sweep_up(self, runner: RunnerHandle) -> None:
        """Kill what a dead runner left, however long that takes: until then the device is not to be given back."""
        runner.process.kill()
        runner.process.wait()  # only then have its children become ours
        told = False
        leader = None if self._terminal else self._leader
        while not (
            kill_orphans(_helpers(), _SWEEP_UP_S) and kill_marked(MARK, self._command.mark, 0.0, _SWEEP_UP_S, leader)
        ):
            if not told:
                self._say("processes of the command cannot be killed and may still use the device: waiting for them")
            told = True

    def _status(self) -> int:
        record = self._record
        if record is None:
            self._say("the process that watched over the command was killed, and the command with it")
            return 128 + signal.SIGKILL
        if record["error"]:
            self._say(str(record["error"]))
            return NOT_FOUND if record.get("not_found") else NOT_STARTED
        if record["why"] == "timeout":
            self._say("the time of the lease was over: the command was ended")
        if record["exit_code"] is not None:
            code = int(record["exit_code"])
            return code or (LOST if record["why"] == "lease_lost" else 0)
        if record["signal"] is not None:
            return 128 + int(record["signal"])
        return LOST if self._asked is None else 128 + self._asked  # it was over before it began


def has_terminal() -> bool:
    """Whether this process has a terminal that could send it signals."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def hold(news: News, until_s: float | None) -> int | None:
    """Hold a lease without a command, until its time is over, a signal asks for its end, or it is lost.

    Args:
        news: its signals are caught.
        until_s: epoch seconds; None for ever.

    Returns:
        The signal; None for another reason.
    """
    while not news.lost:
        asked = [signum for signum in news.take() if signum in (*_MAY_IGNORE, signal.SIGTERM)]
        if asked:
            return asked[0]
        left = None if until_s is None else until_s - time.time()
        if left is not None and left <= 0:
            break
        news.wait(_LOOK_S if left is None else min(left, _LOOK_S))  # a clock that is set is noticed
    return None


def _helpers() -> list[int]:
    """Children of this process that renew its leases: they are none of a command's."""
    found = []
    for pid in children(os.getpid()):
        with suppress(OSError):
            if _HELPER in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _portable(text: str) -> str:
    """A word of this process's command line or environment as the runner reads it, whatever the locale."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")
