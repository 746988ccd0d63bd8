"""What a run needs before it can start: its plan, its environment, its directory, and the order to the runner."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from foxqueue.broker import Broker, Claimed, NamespaceSettings
from foxqueue.environment import job_environment
from foxqueue.errors import ServerError, ServerUnavailable
from foxqueue.gpu import Device
from foxqueue.plan import BadPayload, Plan, read_captured, read_plan
from foxqueue.rundirs import files_dir, make_run_dir, mark_of, put_config, put_script, script_path
from workers import calling

AGAIN_S: Final = 0.1  # between tries to read what a job needs while Redis is away


class Preparation:
    """Of one run.

    Args:
        broker: the main thread's.
        settings: of the namespace.
        claimed: the job.
        device: that it was granted.
        sent_at: time.monotonic() when the claim was sent.
        jobs_dir: where runs keep their files.

    Attributes:
        mark: names the run in the environment of its processes.
        run_dir: of the run; made by :meth:`put_down`.
        plan: what is to be run; there once :meth:`read` has come back.
        call_limit: bytes that a call may return; None for a command.
    """

    plan: Plan

    def __init__(
        self,
        broker: Broker,
        settings: NamespaceSettings,
        claimed: Claimed,
        device: Device,
        sent_at: float,
        jobs_dir: Path,
    ) -> None:
        self._broker = broker
        self._settings = settings
        self._claimed = claimed
        self._device = device
        self._sent_at = sent_at
        self._jobs_dir = jobs_dir
        self.mark = mark_of(claimed.instance, claimed.number, int(claimed.born), int(claimed.fence))
        self.run_dir = jobs_dir / self.mark
        self.call_limit: int | None = None

    def read(self) -> Plan:
        """Read what the job asks for.

        Raises:
            BadPayload: it cannot be read.
        """
        self.plan = read_plan(self._claimed.spec)
        self.call_limit = self._result_bytes() if self.plan.call else None
        return self.plan

    def environment(self) -> dict[str, str]:
        """What the job finds in its environment.

        Raises:
            BadPayload: what was captured is no longer kept, or cannot be read.
            ServerError: Redis is away for too long, or cannot be asked.
        """
        claimed, plan = self._claimed, self.plan
        captured: dict[str, str] = {}
        if claimed.env_digest:
            packed = self._kept_environment()
            if packed is None:
                raise BadPayload("its environment is no longer kept: submit it again")
            captured = read_captured(packed)
        return job_environment(
            captured,
            plan.env,
            claimed,
            self._device,
            cwd=plan.cwd,
            visible=plan.visible,
            mark=self.mark,
            files=files_dir(self.run_dir),
        )

    def _result_bytes(self) -> int:
        """What a call may return, as the namespace says now."""
        try:
            return self._broker.settings().max_result_bytes
        except ServerError:
            return self._settings.max_result_bytes

    def _kept_environment(self) -> bytes | None:
        """Read it, again while Redis is away, for half of the lease: the job is ours, and can start when it is back."""
        until = self._sent_at + self._settings.ttl_ms / 2000
        while True:
            try:
                return self._broker.environment(self._claimed.env_digest)
            except ServerUnavailable:
                if time.monotonic() + AGAIN_S > until:
                    raise
                time.sleep(AGAIN_S)

    def put_down(self) -> Path:
        """Make the run's directory and what the job finds in it.

        Raises:
            OSError: it cannot be made.
        """
        claimed, plan = self._claimed, self.plan
        run_dir = make_run_dir(self._jobs_dir, claimed.instance, claimed.number, int(claimed.born), int(claimed.fence))
        if plan.call:
            calling.put_down(plan.call, run_dir)
        if plan.script is not None:
            put_script(run_dir, plan.script)
        if plan.config is not None:
            put_config(run_dir, plan.config)
        return run_dir

    def order(self, environ: dict[str, str], grace_s: float, beat_grace_s: float) -> dict[str, Any]:
        """What the runner is told: the fields of :class:`workers.launch.Order`.

        Args:
            environ: from :meth:`environment`.
            grace_s: seconds between TERM and KILL.
            beat_grace_s: the same where the lease may run out.
        """
        plan, claimed = self.plan, self._claimed
        argv = plan.argv
        if plan.call:
            argv = calling.command(plan.call, self.run_dir, self.call_limit or 0)
        elif plan.script is not None:
            argv = [str(script_path(self.run_dir)), *argv[1:]]
        return {
            "job": claimed.number,
            "born": int(claimed.born),
            "fence": int(claimed.fence),
            "argv": argv,
            "env": environ,
            "cwd": plan.cwd,
            "umask": plan.umask,
            "run_dir": str(self.run_dir),
            "time_limit_s": plan.time_limit_s,
            "grace_s": grace_s,
            "beat_grace_s": beat_grace_s,
            "clock": "monotonic",
            "feed_until": self._sent_at + self._settings.ttl_ms / 1000,
        }
