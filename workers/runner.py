"""The runner: one process that starts one job, watches over it, and ends all of it.

``python -m workers.runner FD`` stands by on the channel FD until it is told to start. It knows no Redis. It holds
the device's lock and is the subreaper of everything the job starts, so it outlives a worker's death and ends the
job when nobody has fed it for too long. One thread: signals only wake the loop. Messages, records and times are
described in :mod:`workers.runs`.

A command under a lease (``foxqueue lease``) is carried out likewise, with these differences: it shares streams,
directory and perhaps the terminal with its caller, nobody has to feed it, and it ends when the caller is gone.
``python -m workers.runner FD terminal`` stays in the caller's session, without which none of its children could.
"""

# No pathlib: its start must be quick, and paths are bytes.
# ruff: noqa: PTH110, PTH118, PTH123

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, Final

from foxqueue.processes import ProcessId, become_subreaper, fill_standard_fds
from workers import launch, tree
from workers.channel import Channel, Message
from workers.record import REPORT_NAME, RecordFile, is_lack_of_room

TAKEOVER_GRACE_S: Final = 2.0
REST_GRACE_S: Final = 2.0  # for what a job leaves behind when its main process has ended by itself
_NO_FAULT: Final = ("worker_lost", "takeover", "shutdown", "paused")  # ends that say nothing against the job
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.2
_BOOTTIME_STEP_S: Final = 0.5  # a wait does not count the time asleep: look at the clock this often


class Signals:
    """Turns signals into a readable descriptor, and remembers whether TERM was among them."""

    def __init__(self) -> None:
        self.terminated = False
        self._reader, writer = socket.socketpair()
        self._reader.setblocking(False)
        writer.setblocking(False)
        self._writer = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: ignoring is inherited through exec, a handler is not.
        for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, self._wake)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def fileno(self) -> int:
        return self._reader.fileno()

    def clear(self) -> None:
        """Empty the descriptor. One byte may stand for many signals, so nothing is read from it."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def _wake(self, signum: int, frame: FrameType | None) -> None:
        pass

    def _terminate(self, signum: int, frame: FrameType | None) -> None:
        self.terminated = True


class Run:
    """One job, from its start to the moment when the last of its processes is gone."""

    def __init__(self, order: launch.Order, channel: Channel, signals: Signals) -> None:
        self._order = order
        self._channel = channel
        self._signals = signals
        self._clock = time.CLOCK_BOOTTIME if order.clock == "boottime" else time.CLOCK_MONOTONIC
        self._feed_until: float | None = order.feed_until
        self._limit_at: float | None = None
        self._kill_at: float | None = None  # set: TERM was sent
        self._why: str | None = None
        self._rest = False
        self._killing = False
        self._pause_s = _FIRST_PAUSE_S
        self._pid: int | None = None
        self._status: int | None = None
        self._error: str | None = None
        self._not_found = False
        self._no_room = False
        self._output: int | None = None
        self._started_ms = 0
        group = order.shared.group if order.shared else None
        self._terminal = None if group is None else tree.Terminal(group)

    def serve(self) -> dict[str, Any]:
        """Run the job to its end, leave the record in the run directory, if it has one, and return it."""
        record_file: RecordFile | None = None
        run_dir = self._order.run_dir
        try:
            if run_dir is not None:
                place = launch.encode(run_dir)
                record_file = RecordFile(place)
                self._output = launch.open_output(place)
            if self._may_start():
                self._start(self._output)
        except launch.LaunchError as error:
            self._error, self._not_found = str(error), error.not_found
            self._no_room = is_lack_of_room(error.__cause__)
        except OSError as error:
            self._error = str(launch.run_dir_fault(run_dir or "", error))
            self._no_room = is_lack_of_room(error)
        if self._pid is not None:
            self._watch()
        record = self._record()
        if record_file is not None:
            try:
                record_file.write(record)
            except OSError as error:  # the worker, if there is one, still hears it
                note(run_dir, f"exit record not written: {error}")
        return record

    def _may_start(self) -> bool:
        """Whether the order still holds: a worker that stood still since its claim may have lost the job."""
        self._obey()
        self._look_at_clocks()
        return self._kill_at is None

    def _start(self, output: int | None) -> None:
        try:
            pid = launch.spawn(self._order, output)
        finally:
            if self._order.shared is not None:
                self._order.shared.close()
        self._pid = pid
        self._started_ms = time.time_ns() // 1_000_000
        if self._order.time_limit_s is not None:
            self._limit_at = time.monotonic() + self._order.time_limit_s
        identity = ProcessId.of(pid)
        process = None if identity is None else identity.to_dict()
        self._tell({"op": "started", "pid": pid, "process": process})

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            selector.register(self._channel, selectors.EVENT_READ)
            while not self._reap():
                self._obey()
                if self._channel.eof and self._channel in selector.get_map():
                    selector.unregister(self._channel)
                self._look_at_clocks()
                if self._killing:
                    tree.strike()
                selector.select(self._wait_s())
                self._signals.clear()

    def _reap(self) -> bool:
        """Take the status of every child that has ended; whether no descendant is left at all."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._pid and self._status is None:
                    self._status = status
        except ChildProcessError:
            return True
        if self._status is not None and not self._rest:
            # The main process left something behind. Without a reason of ours its own status counts. When the end
            # was under way already, the rest has the time that it was given: a shell dies of the TERM at once, and
            # the training behind it still writes its checkpoint.
            self._rest = True
            self._limit_at = None
            if self._kill_at is None:
                self._end(None, min(self._order.grace_s, REST_GRACE_S))
        return False

    def _obey(self) -> None:
        if self._signals.terminated:
            self._signals.terminated = False
            self._end("takeover", TAKEOVER_GRACE_S)
        for message in self._channel.drain():
            if message.get("op") == "feed":
                self._feed(float(message["until"]))
            elif message.get("op") == "kill":
                self._end(str(message["why"]), float(message["grace_s"]))
            elif message.get("op") == "signal" and self._pid is not None and self._status is None:
                tree.pass_on(self._pid, int(message["signum"]))
        if self._channel.eof and self._order.shared is not None:
            self._end("worker_lost", self._order.grace_s)

    def _feed(self, until: float) -> None:
        """Let the job live until then; never shorter than before, and not when its time has run out."""
        if self._feed_until is not None:
            self._feed_until = max(self._feed_until, until)
            self._tell({"op": "fed", "until": self._feed_until})

    def _look_at_clocks(self) -> None:
        if self._feed_until is not None and time.clock_gettime(self._clock) >= self._feed_until:
            self._feed_until = None
            self._end("worker_lost", self._order.beat_grace_s)
        now = time.monotonic()
        if self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            self._end("timeout", self._order.grace_s)
        if self._kill_at is not None and now >= self._kill_at:
            self._killing = True
        if self._terminal is not None:
            self._terminal.look()

    def _end(self, why: str | None, grace_s: float) -> None:
        """Begin to end the job, or bring its end nearer; the first reason stays."""
        if self._why is None and self._status is None and not (why in _NO_FAULT and self._has_returned()):
            self._why = why
        kill_at = time.monotonic() + max(0.0, grace_s)
        if self._kill_at is None:
            self._kill_at = kill_at
            tree.terminate(self._pid if self._status is None else None)
        self._kill_at = min(self._kill_at, kill_at)

    def _has_returned(self) -> bool:
        """Whether it is a Python call that is over but for the rest of its interpreter: that counts."""
        run_dir = self._order.run_dir
        return run_dir is not None and os.path.exists(os.path.join(launch.encode(run_dir), REPORT_NAME.encode()))

    def _wait_s(self) -> float | None:
        if self._killing:
            # Rounds come close together at first; what cannot be killed (it sleeps in the kernel, or is
            # another user's) is tried for as long as it lives, and the device's lock is kept.
            self._pause_s = min(self._pause_s * 1.3, _LONGEST_PAUSE_S)
            return self._pause_s
        now = time.monotonic()
        waits = [at - now for at in (self._limit_at, self._kill_at) if at is not None]
        if self._feed_until is not None:
            waits.append(self._feed_until - time.clock_gettime(self._clock))
            if self._clock == time.CLOCK_BOOTTIME:
                waits.append(_BOOTTIME_STEP_S)
        if self._terminal is not None:
            waits.append(self._terminal.LOOK_S)
        return max(0.0, min(waits)) if waits else None

    def _record(self) -> dict[str, Any]:
        ended_ms = time.time_ns() // 1_000_000
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        order = self._order
        return {
            **blank_record(order.job, order.born, order.fence),
            **_meaning(self._status),
            "why": self._why,
            "killed": self._killing,
            "error": self._error,
            "not_found": self._not_found,
            "no_room": self._no_room,
            "started_ms": self._started_ms or ended_ms,
            "ended_ms": ended_ms,
            "max_rss_kib": usage.ru_maxrss,
            "user_s": round(usage.ru_utime, 3),
            "system_s": round(usage.ru_stime, 3),
            "output_bytes": 0 if self._output is None else os.fstat(self._output).st_size,
        }

    def _tell(self, message: Message) -> None:
        tell(self._channel, message)


def blank_record(job: Any, born: Any, fence: Any) -> dict[str, Any]:
    """The exit record of a run that never started."""
    now_ms = time.time_ns() // 1_000_000
    return {
        "job": job,
        "born": born,
        "fence": fence,
        "exit_code": None,
        "signal": None,
        "core": False,
        "why": None,
        "killed": False,
        "error": None,
        "not_found": False,
        "no_room": False,
        "started_ms": now_ms,
        "ended_ms": now_ms,
        "max_rss_kib": 0,
        "user_s": 0.0,
        "system_s": 0.0,
        "output_bytes": 0,
    }


def _meaning(status: int | None) -> dict[str, Any]:
    """What a wait status says."""
    if status is None:
        return {}
    if os.WIFEXITED(status):
        return {"exit_code": os.WEXITSTATUS(status)}
    return {"signal": os.WTERMSIG(status), "core": os.WCOREDUMP(status)}


def tell(channel: Channel, message: Message) -> None:
    """Send to the worker, who may be gone or stopped: the job does not depend on it."""
    with contextlib.suppress(OSError):
        channel.send(message, timeout_s=0.5)


def note(run_dir: str | None, text: str) -> None:
    """Leave a line in the run directory, if there is one: the worker's terminal may be gone."""
    if run_dir is None:
        return
    with contextlib.suppress(OSError, launch.LaunchError):
        path = os.path.join(launch.encode(run_dir), b"runner.log")
        with open(path, "ab") as file:
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def stand_by(channel: Channel, signals: Signals) -> Message | None:
    """Wait for the order to start; None when there will be none: the worker is gone, or we are to go."""
    with selectors.DefaultSelector() as selector:
        selector.register(signals, selectors.EVENT_READ)
        selector.register(channel, selectors.EVENT_READ)
        while not signals.terminated:
            while message := channel.take():  # one at a time: what follows the order is for the run
                if message.get("op") == "start":
                    return message
            if channel.eof:
                return None
            selector.select()
            signals.clear()
    return None


def main(arguments: list[str]) -> int:
    """Serve one run on the channel whose descriptor is the first argument; the exit status is 0 unless it broke."""
    caller = os.getppid()
    fill_standard_fds()  # else leave_terminal would take our own descriptors for them
    if "terminal" not in arguments[1:]:
        with contextlib.suppress(PermissionError):  # we lead a session already
            os.setsid()
    signals = Signals()
    channel = Channel.from_fd(int(arguments[0]))
    os.chdir("/")
    become_subreaper()
    tell(channel, {"op": "ready", "pid": os.getpid()})
    message = stand_by(channel, signals)
    if message is None:
        return 0
    locks: list[int] = message.pop("fds", [])
    theirs, locks = (locks[:4], locks[4:]) if "shared" in message else ([], locks)
    leave_terminal()
    try:
        order = launch.Order.of(message, theirs)
    except launch.LaunchError as error:
        numbers = (message.get(name) for name in ("job", "born", "fence"))
        record = {**blank_record(*numbers), "error": str(error)}
    else:
        record = serve(order, channel, signals)
    for descriptor in locks:
        os.close(descriptor)
    tell(channel, {"op": "exited", "record": record})
    if theirs and os.getppid() == caller:
        os.kill(caller, signal.SIGCONT)  # stopped, it would keep the device for nothing
    return 0


def serve(order: launch.Order, channel: Channel, signals: Signals) -> dict[str, Any]:
    """Run the order; when we break, nothing of the job is left running without a watcher."""
    try:
        return Run(order, channel, signals).serve()
    except BaseException as error:
        note(order.run_dir, f"runner broke: {error!r}")
        tree.kill_orphans((), deadline_s=30.0)
        raise


def leave_terminal() -> None:
    """Let go of the worker's standard descriptors: we may outlive it, and who reads from them waits for us."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
