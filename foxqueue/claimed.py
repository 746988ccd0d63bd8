"""A job in the hands of a custom worker: what it wants, whether it is still ours, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from foxqueue import codec, payload
from foxqueue.broker import Broker, Claimed, NamespaceSettings
from foxqueue.ending import Verdict, ending_call, outcome_of
from foxqueue.environment import job_environment
from foxqueue.errors import FoxqueueError, InvalidInput, LeaseLost, ServerError, ServerUnavailable
from foxqueue.gpu import Device
from foxqueue.heartbeat import Beating, Heart
from foxqueue.plan import BadPayload, Plan, read_captured
from foxqueue.retry import Retries
from foxqueue.rundirs import files_dir, make_run_dir, mark_of, put_config
from foxqueue.states import RUNNING
from foxqueue.telling import Output, raised
from foxqueue.when import seconds

UNHEARD: Final = "unheard"  # the lease was not renewed for so long that the job may be another's
# Why a custom worker may say that a job failed. The other reasons are the queue's own.
MAY_FAIL: Final = (
    "exception",
    "exit_code",
    "signal",
    "timeout",
    "gpu_oom",
    "host_oom",
    "launch_error",
    "bad_payload",
    "bad_result",
    "unsatisfiable",
)
# The words that answer a call which ended the run; any other says that it was not ours any more.
_ENDED: Final = {
    "complete": ("succeeded", "cancelled"),
    "fail": ("failed", "cancelled"),
    "release": ("released", "cancelled", "failed"),
}

_log = logging.getLogger(__name__)
T = TypeVar("T")


class ClaimedRun:
    """A job that this process carries out itself. Its methods may be called from any thread.

    Attributes:
        number, born: of the job.
        fence: of this run, which every word about it carries.
        attempt: the number of this run, from 1.
        device: what the job has.
        spec: all that was submitted.
        plan: the same, read: argv, cwd, env (what was given by hand), call, time_limit_s and more, see
            :class:`foxqueue.plan.Plan`. Nobody but the custom worker keeps the time limit.
        state: ``running``, then how the run ended: succeeded, failed (the job may be tried again), cancelled, released,
            or lost.
        told: whether the queue knows how the run ended, or need not be told.
    """

    def __init__(
        self,
        broker: Broker,
        settings: NamespaceSettings,
        claimed: Claimed,
        plan: Plan,
        device: Device,
        jobs_dir: Path,
    ) -> None:
        self.number, self.born, self.fence, self.attempt = claimed.number, claimed.born, claimed.fence, claimed.attempt
        self.device = device
        self.plan = plan
        self.spec: dict[str, Any] = codec.unpack(claimed.spec)
        self.state = RUNNING
        self.told = False
        self.mark = mark_of(claimed.instance, claimed.number, int(claimed.born), int(claimed.fence))
        self.retries = Retries(claimed.attempt, claimed.retry_delay_ms / 1000, plan.retry_cap_s, plan.retry_on)
        self._broker = broker
        self._settings = settings
        self._claimed = claimed
        self._jobs_dir = jobs_dir
        self._output = Output(broker, claimed, self.hear)
        self._heart: Heart | None = None
        self._telling = threading.Lock()
        self._pid = os.getpid()
        self._fed_until = 0.0
        self._lost = ""
        self._cancelled: str | None = None
        self._release_requested: str | None = None
        self._unusable: InvalidInput | None = None

    def begin(self, heart: Heart, asked_at: float) -> None:
        """Let ``heart`` keep the lease from now on; the job was asked for at ``asked_at``, of time.monotonic()."""
        self._feed(asked_at + self._settings.ttl_ms / 1000)
        self._heart = heart
        heart.begin(Beating(self.number, self.fence, self._claimed.instance, self._feed), asked_at)
        heart.start()

    def hurry(self) -> None:
        """Ask the queue at once whether something has changed."""
        if self._heart is not None:
            self._heart.hurry()

    def __repr__(self) -> str:
        return f"<ClaimedRun {self.number} {self.state} on {self.device.ref}>"

    # --- what it wants ---------------------------------------------------------------------------------

    @property
    def argv(self) -> list[str]:
        """The command as it was submitted; of a Python call, its text."""
        return list(self.plan.argv)

    @property
    def name(self) -> str:
        """Its name, empty without one."""
        return str(self.spec.get("name") or "")

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self.spec.get("tags") or {})

    @property
    def config(self) -> Any:
        """What was given as its configuration, None without one."""
        return None if self.plan.config is None else json.loads(self.plan.config)

    @property
    def call(self) -> dict[str, Any] | None:
        """Of a Python call: module or script, and qualname of the function; None for a command."""
        return self.plan.call

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a Python call, by place and by name; none of a command.

        Raises:
            ValueError: they cannot be read, or NumPy, which they need, is not installed here.
        """
        if self.plan.call is None:
            return [], {}
        args, kwargs = payload.unpack(self.plan.call["data"])
        return args, kwargs

    def env(self) -> dict[str, str]:
        """The environment that a process of the job would find, its FOXQUEUE_DIR made.

        What is started for the job should get it: should this process die, what carries it is found and ended.

        Raises:
            FoxqueueError: the captured environment is no longer kept.
            OSError: FOXQUEUE_DIR cannot be made.
        """
        claimed, plan = self._claimed, self.plan
        captured: dict[str, str] = {}
        if claimed.env_digest:
            packed = self._patiently(lambda: self._broker.environment(claimed.env_digest))
            try:
                captured = read_captured(packed or b"")
            except BadPayload as error:
                raise FoxqueueError(
                    f"the environment of job {self.number} is no longer kept: submit it again"
                ) from error
        born, fence = int(self.born), int(self.fence)
        run_dir = make_run_dir(self._jobs_dir, claimed.instance, self.number, born, fence)
        if plan.config is not None:
            put_config(run_dir, plan.config)
        return job_environment(
            captured,
            plan.env,
            claimed,
            self.device,
            cwd=plan.cwd,
            visible=plan.visible,
            mark=self.mark,
            files=files_dir(run_dir),
        )

    # --- whether it is still ours ----------------------------------------------------------------------

    @property
    def cancelled(self) -> str | None:
        """Who asked for the job to be cancelled, None if nobody did. Whatever is said then, it ends as cancelled."""
        return self._cancelled

    @property
    def release_requested(self) -> str | None:
        """Who paused the queue, its group or the device and wants the job back, and why; None if nobody."""
        return self._release_requested

    @property
    def lost(self) -> bool:
        """Whether the job is another's by now, or may be: stop, for nothing that is said about it counts any more."""
        if self.state == RUNNING and not self._lost and time.monotonic() > self._fed_until:
            self._lost = UNHEARD
        return bool(self._lost)

    def hear(self, kind: str, text: str, _fence: str) -> None:
        """Called by the heartbeat and the output."""
        if kind == "cancel":
            self._cancelled = text
        elif kind == "give back":
            self._release_requested = text
        elif kind == "lost" and not self.told:
            self._lost = self._lost or text
        elif kind == "away":
            _log.warning("job %d goes on, Redis is away: %s", self.number, text)

    def _feed(self, until: float) -> None:
        """Called by the heartbeat. While Redis is away the file lock keeps the device ours, and it feeds on."""
        self._fed_until = max(self._fed_until, until)

    # --- what it says ----------------------------------------------------------------------------------

    def log(self, data: bytes | str) -> None:
        """Add to the job's output, of which the last 64 KiB are kept. What cannot be sent now goes with the next piece.

        Raises:
            InvalidInput: it is neither bytes nor text, or the run has ended.
        """
        if not isinstance(data, bytes | bytearray | str):
            raise InvalidInput(f"output is bytes or text, not {data!r:.60}")
        self._check_open()
        self._output.add(data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data))
        self._output.send()

    # --- how it ends -----------------------------------------------------------------------------------

    def complete(self, result: Any = None) -> None:
        """The job has succeeded. Waits while Redis is away. If somebody asked for it meanwhile, it is cancelled.

        Args:
            result: what :meth:`foxqueue.client.Job.result` gives: plain data and NumPy arrays, see
                :mod:`foxqueue.payload`.

        Raises:
            InvalidInput: the result cannot be packed or is too large, so nothing was sent; or the run has ended before.
            LeaseLost: the job is no longer this process's; nothing was written.
            ServerRefused: the server refuses us.
        """
        self._check_open()
        value = b"" if result is None and self.plan.call is None else self._packed(result)
        self._end(Verdict("complete", "exit_code", exit_code=0, value=value))

    def fail(self, reason: str = "exception", detail: str = "", exit_code: int | None = None) -> None:
        """The job has failed. It is tried again as the job itself says: attempts, delay, ``retry_on``.

        Args:
            reason: a word of MAY_FAIL.
            detail: a sentence for people.
            exit_code: of a program that was run for it.

        Raises:
            InvalidInput: no such reason, or the run has ended before.
            LeaseLost, ServerRefused: as of :meth:`complete`.
        """
        if reason not in MAY_FAIL:
            raise InvalidInput(f"the reason {reason!r:.60} is not one: give {', '.join(MAY_FAIL)}")
        if exit_code is not None and (isinstance(exit_code, bool) or not isinstance(exit_code, int)):
            raise InvalidInput(f"the exit code {exit_code!r:.60} is not a whole number")
        self._check_open()
        self._end(Verdict("fail", reason, str(detail), exit_code))

    def release(self, detail: str = "", delay: float | str | None = None) -> None:
        """Give the job back: it keeps its place, and the attempt is not counted.

        Args:
            detail: why, for people.
            delay: seconds, or text like ``30m``, before it may start again; None for at once.

        Raises:
            InvalidInput: no such delay, or the run has ended before.
            LeaseLost, ServerRefused: as of :meth:`complete`.
        """
        delay_s = None if delay is None else seconds(delay, "delay")
        self._check_open()
        reason = "later" if delay is not None else "paused" if self._release_requested else "shutdown"
        text = str(detail or "") or self._release_requested or "given back by its worker"
        self._end(Verdict("release", reason, text, delay_s=delay_s))

    def close(self, error: BaseException | None) -> None:
        """The block that claimed it is left.

        Args:
            error: what left it, None when it went to its end.

        Raises:
            LeaseLost, ServerRefused: as of :meth:`complete`, unless there is an error already.
        """
        try:
            if self.state == RUNNING and os.getpid() == self._pid:
                self._close(error)
        except LeaseLost as lost:
            self._let_go()
            if error is None:
                raise
            _log.warning("%s", lost)
        finally:
            if self._heart is not None:
                self._heart.stop()

    def _close(self, error: BaseException | None) -> None:
        if error is None:
            self.complete()
        elif error is self._unusable:
            self._end(Verdict("fail", "bad_result", str(error)))
        elif isinstance(error, Exception):
            self._end(raised(error))
        else:
            self.release(f"its worker was stopped ({type(error).__name__})")

    def _let_go(self) -> None:
        """Nothing can be written about the run any more, but that it has ended, where that is still to be known."""
        verdict = {
            "taken": Verdict("fail", "lease_lost", "its device was taken from it: by an operator, or by another owner"),
            UNHEARD: Verdict("lose"),
        }.get(self._lost)
        try:
            if verdict is not None:
                self._broker.send(*filter(None, [self._call(verdict)]))
        except ServerError as error:
            _log.warning("job %d: %s; it is taken for lost when its lease has run out", self.number, error)
        self.state, self.told = "lost", True

    def _end(self, verdict: Verdict) -> None:
        """Tell the queue, until there is a word."""
        with self._telling:
            self._check_open()
            if self._lost:
                raise self._lease_lost()
            call = self._call(verdict)
            assert call is not None
            word = self._patiently(lambda: self._send(call))
            if word not in _ENDED[verdict.verb]:
                self._lost = word
                raise self._lease_lost()
            self.state, self.told, self._lost = word, True, ""  # a beat may have met this very end
        if self._heart is not None:
            self._heart.stop()

    def _call(self, verdict: Verdict) -> Any:
        record = {"returned": True} if verdict.value else None
        return ending_call(self._broker, self.number, self.fence, verdict, outcome_of(record, verdict), self.retries)

    def _send(self, call: Any) -> str:
        if not self._output.send():
            raise ServerUnavailable("its last output is not sent yet")  # it has to be in before
        return self._broker.send(call)[0].word

    def _lease_lost(self) -> LeaseLost:
        why = {"taken": "its device was taken from it", UNHEARD: "its lease was not renewed in time"}
        return LeaseLost(
            f"job {self.number} is no longer this process's ({why.get(self._lost, f'the queue says {self._lost}')}): "
            "nothing was written, and it may run elsewhere"
        )

    def _packed(self, result: Any) -> bytes:
        try:
            data = payload.pack(result)
            limit = self._patiently(self._broker.settings).max_result_bytes
            if len(data) > limit:
                raise payload.Unpackable(
                    f"it has {len(data):,} bytes, and {limit:,} are allowed: write it to a file and give its path "
                    "(foxqueue config set max_result 4M, say, changes the limit)"
                )
        except payload.Unpackable as error:
            self._unusable = InvalidInput(f"the result of job {self.number} cannot be kept: {error}")
            raise self._unusable from error
        return data

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidInput(f"job {self.number} was claimed by process {self._pid}, not by this one, forked from it")
        if self.state != RUNNING:
            raise InvalidInput(f"the run of job {self.number} has ended before: {self.state}")

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while Redis is away."""
        pause = 0.02
        while True:
            try:
                return ask()
            except ServerUnavailable as error:
                if pause == 0.02:
                    _log.warning("job %d: %s; asking again", self.number, error)
            time.sleep(pause)
            pause = min(pause * 2, 1.0)
