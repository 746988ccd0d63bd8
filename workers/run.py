"""One claimed job on one device, from the grant to the moment when its outcome can be told."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from foxqueue.broker import Broker, Claimed, NamespaceSettings
from foxqueue.cuda_errors import TAIL_BYTES
from foxqueue.ending import Verdict, outcome_of
from foxqueue.errors import ServerError, ServerRefused, ServerUnavailable
from foxqueue.gpu import Device
from foxqueue.heartbeat import Beating, Heart
from foxqueue.locks import DeviceLock
from foxqueue.plan import BadPayload
from foxqueue.processes import ProcessId, kill_marked
from foxqueue.retry import Retries
from foxqueue.rundirs import MARK
from workers import calling
from workers.inbox import Event, Inbox
from workers.logtail import LogTail
from workers.output import SLACK_BYTES, BoundedOutput
from workers.preparing import Preparation
from workers.record import is_lack_of_room
from workers.runs import RunnerHandle, output_path, read_exit_record
from workers.tree import kill_orphans
from workers.verdict import judge

GRACE_S = 10.0  # between TERM and KILL
LOOK_S = 0.2  # how often the output is looked at
DRAIN_S = 60.0  # that a job gets to end by itself when its worker is told to stop
SWEEP_UP_S = 20.0  # that killing what a dead runner left may take

_log = logging.getLogger(__name__)


class Run:
    """A run and its runner.

    Args:
        broker: the main thread's.
        settings: of the namespace.
        claimed: the job.
        device: that it was granted.
        lock: the device's ``.gpu`` lock, held; the runner gets a share of it.
        sent_at: time.monotonic() when the claim was sent.
        jobs_dir: where runs keep their files.

    Attributes:
        claimed: the job.
        retries: what it says of further attempts.
        notifies: whether somebody wants to be told of its end.
    """

    def __init__(
        self,
        broker: Broker,
        settings: NamespaceSettings,
        claimed: Claimed,
        device: Device,
        lock: DeviceLock,
        sent_at: float,
        jobs_dir: Path,
    ) -> None:
        self.claimed = claimed
        self._broker = broker
        self._settings = settings
        self._lock = lock
        self._sent_at = sent_at
        self._preparation = Preparation(broker, settings, claimed, device, sent_at, jobs_dir)
        self.mark = self._preparation.mark
        self.time_limit_s: float | None = None
        self.retries = Retries(claimed.attempt, claimed.retry_delay_ms / 1000)
        self.notifies = False
        self._paused = ""  # by whom and why the run was asked back
        self._over_memory = ""  # what it used, and what it may
        self._runner: RunnerHandle | None = None
        self._run_dir: Path | None = None
        self._tail: LogTail | None = None
        self._output: BoundedOutput | None = None
        self._killed_for: set[str] = set()
        self._drain_until: float | None = None
        self._record: dict[str, Any] | None = None
        self._written: dict[str, Any] = {}
        self._leader: dict[str, Any] | None = None
        self._fed_at: float | None = None  # when the first feed was sent that the runner has not answered

    # --- starting --------------------------------------------------------------------------------------

    def start(self, runner: RunnerHandle, heart: Heart, record: dict[str, Any]) -> Verdict | None:
        """Hand the job to the runner.

        Args:
            runner: one that stands by; it is taken over.
            heart: beats for the run from now on.
            record: facts for the lock file, completed here.

        Returns:
            The verdict when the job cannot even be tried, else None.
        """
        self._runner = runner
        claimed, preparation = self.claimed, self._preparation
        heart.begin(Beating(claimed.number, claimed.fence, claimed.instance, self._feed), self._sent_at)
        try:
            plan = preparation.read()
            self.time_limit_s = plan.time_limit_s
            self.notifies = plan.notifies
            self.retries = replace(self.retries, cap_s=plan.retry_cap_s, on=plan.retry_on)
            order = preparation.order(preparation.environment(), GRACE_S, self._beat_grace_s)
            self._prepare(runner, record)
        except BadPayload as error:
            return Verdict("fail", "bad_payload", str(error))
        except (ServerUnavailable, ServerRefused) as error:
            return Verdict("release", "shutdown", f"Redis was away before it started: {error}")
        except ServerError as error:
            return Verdict("fail", "bad_payload", f"its environment cannot be read: {error}")
        except OSError as error:
            text = f"the run cannot be prepared: {error}"
            if is_lack_of_room(error):
                return Verdict("release", "shutdown", text, no_room=True)
            return Verdict("fail", "launch_error", text)
        try:
            runner.start(order, self._lock.fds)
        except OSError as error:
            return Verdict("release", "shutdown", f"its runner died before it started: {error}")
        return None

    def _prepare(self, runner: RunnerHandle, record: dict[str, Any]) -> None:
        """Write down what is about to run, then make its directory: a successor finds it from here on."""
        claimed = self.claimed
        self._written = {
            **record,
            "instance": claimed.instance,
            "job": claimed.number,
            "born": int(claimed.born),
            "fence": int(claimed.fence),
            "run_dir": str(self._preparation.run_dir),
            "mark": self.mark,
            "time_limit_s": self.time_limit_s,
            "call_limit": self._preparation.call_limit,
            "retries": self.retries.to_dict(),
            "runner": runner.identity.to_dict() if runner.identity else None,
        }
        self._lock.write(self._written)
        self._run_dir = self._preparation.put_down()
        self._tail = LogTail(self._broker, claimed.number, claimed.fence, output_path(self._run_dir))
        self._output = BoundedOutput(output_path(self._run_dir))

    @property
    def _beat_grace_s(self) -> float:
        """On the ways where somebody else may soon have the job, all must be dead before its lease has run out."""
        return min(GRACE_S, (self._settings.margin_ms - self._settings.beat_ms) / 1000)

    def _feed(self, until: float) -> None:
        """Called by the heartbeat. A runner that cannot be fed is dead or stopped, which the main loop sees."""
        if self._runner is not None:
            self._fed_at = self._fed_at or time.monotonic()
            with suppress(OSError):
                self._runner.feed(until)

    # --- watching --------------------------------------------------------------------------------------

    def watch(
        self, inbox: Inbox, heart: Heart, each_look: Callable[[], None], keep: Callable[[], Sequence[int]]
    ) -> None:
        """Until the run is over: relay output, obey cancels, lost leases and stop signals.

        Args:
            inbox: where events and signals arrive.
            heart: told that the main thread moves.
            each_look: called about every LOOK_S, for what else the worker has to do.
            keep: tells the pids of the worker's other children, which are none of the run's.
        """
        assert self._runner is not None
        runner = self._runner
        stops = 0
        while self._record is None:
            events = inbox.wait(LOOK_S, runner)
            heart.moved = time.monotonic()
            self._hear(runner)
            for event in events:
                self._obey(event, heart)
            if inbox.stops > stops:
                stops = inbox.stops
                self._drain(stops)
            if self._drain_until is not None and time.monotonic() >= self._drain_until:
                self._kill("shutdown", GRACE_S, "its worker stops")
            self._look_at_output()
            each_look()
            if self._record is None and self._lost_runner(runner):
                heart.runner_gone = True
                break
        self._finish(runner, keep())

    def _look_at_output(self, slack: int = SLACK_BYTES) -> None:
        if self._tail is not None and self._output is not None:
            self._tail.pump()
            cut = self._output.trim(slack)
            if cut:
                self._tail.was_cut(cut)

    def _hear(self, runner: RunnerHandle) -> None:
        for message in runner.hear():
            self._fed_at = None
            if message.get("op") == "exited":
                self._record = message["record"]
            elif message.get("op") == "started":
                self._leader = message["process"]
                try:
                    self._lock.write({**self._written, "leader": self._leader})
                except OSError as error:
                    _log.warning("job %d: its lock record cannot be completed: %s", self.claimed.number, error)

    def _obey(self, event: Event, heart: Heart) -> None:
        if event.fence not in ("", self.claimed.fence):
            return  # about an earlier run
        if event.kind == "cancel":
            self._kill("cancel", GRACE_S, f"cancelled by {event.text}")
        elif event.kind == "give back":
            self._paused = event.text
            self._kill("paused", GRACE_S, f"asked back ({event.text})")
        elif event.kind == "asked":
            heart.hurry()  # the token may be a late one: the beat's answer says whether it is meant
        elif event.kind == "lost":
            why = "lease_lost" if event.text == "taken" else "stale"
            self._kill(why, self._beat_grace_s, f"the lease was refused ({event.text})")
        elif event.kind == "away":
            _log.warning("Redis is away, job %d goes on: %s", self.claimed.number, event.text)
        elif event.kind == "again":
            _log.info("Redis answers again")

    def _drain(self, stops: int) -> None:
        now = time.monotonic()
        self._drain_until = now if stops > 1 else now + DRAIN_S
        _log.info("stopping: job %d has %d s to end", self.claimed.number, self._drain_until - now)

    def _kill(self, why: str, grace_s: float, text: str) -> None:
        """Tell the runner, who keeps the first reason; a later one can only bring the end nearer."""
        if self._runner is not None and why not in self._killed_for:
            _log.warning("job %d: %s: ending the run", self.claimed.number, text)
            self._killed_for.add(why)
            with suppress(OSError):
                self._runner.kill(why, grace_s)

    def end_over_memory(self, text: str) -> None:
        """End it: it uses more of its device's memory than it declared.

        Args:
            text: how much that is, for people.
        """
        self._over_memory = self._over_memory or text
        self._kill("over_memory", GRACE_S, text)

    def _lost_runner(self, runner: RunnerHandle) -> bool:
        """Whether the runner is dead, or has not answered a feed for two beats and is killed for it."""
        gone = runner.gone
        self._hear(runner)  # after a standstill of ours its answer may just wait to be read
        if gone or self._record is not None:
            return self._record is None
        fed_at = self._fed_at
        if fed_at is None or time.monotonic() - fed_at <= 2 * self._settings.beat_ms / 1000:
            return False
        _log.error("job %d: its runner is silent, killing the run", self.claimed.number)
        return True

    # --- ending ----------------------------------------------------------------------------------------

    def _sweep_up(self, runner: RunnerHandle, keep: Sequence[int]) -> None:
        """Kill what a dead runner left: its orphans are ours, as their subreaper; others carry the mark."""
        runner.process.kill()
        runner.process.wait()  # only then have its children become ours
        gone = kill_orphans(keep, SWEEP_UP_S)
        leader = ProcessId.from_dict(self._leader) if self._leader else None
        if not (kill_marked(MARK, self.mark, 0.0, SWEEP_UP_S, leader) and gone):
            _log.error("job %d: processes of its run cannot be killed", self.claimed.number)

    def _finish(self, runner: RunnerHandle, keep: Sequence[int]) -> None:
        """The runner has ended: make sure that nothing of the run is left."""
        if self._record is None and self._run_dir is not None:
            self._record = read_exit_record(self._run_dir, int(self.claimed.fence))
        if self._record is None:
            _log.error("job %d: its runner died", self.claimed.number)
            self._sweep_up(runner, keep)

        self._look_at_output(0)

    def tail_in(self) -> bool:
        """Send the last output. False when Redis is away: it has to be in before the outcome is told."""
        return self._tail is None or self._tail.pump()

    def verdict(self) -> Verdict:
        """How the run ended."""
        report = None
        limit = self._preparation.call_limit
        if limit is not None and self._run_dir is not None:
            report = calling.take_report(self._run_dir, limit)
        return judge(self._record, self.time_limit_s, report, self._paused, self._over_memory)

    def seconds(self) -> float:
        """How long its command ran; 0 when it never began."""
        record = self._record or {}
        return max(0.0, float(record.get("ended_ms", 0) - record.get("started_ms", 0)) / 1000)

    def last_output(self) -> str:
        """The end of its output."""
        if self._run_dir is None:
            return ""
        try:
            with output_path(self._run_dir).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def outcome(self, verdict: Verdict) -> bytes:
        """What came out, packed."""
        return outcome_of(self._record, verdict)

    def close(self) -> RunnerHandle | None:
        """Let go of the runner; its process is waited for by the caller, later."""
        if self._runner is not None:
            self._runner.channel.close()
        return self._runner
