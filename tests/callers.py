"""Puts Python calls into the queue of a stack as the client does, field by field, and reads what came of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from stack import Stack

from foxqueue import payload
from foxqueue.broker import Environment, NewJob
from foxqueue.codec import pack


class Caller:
    """Calls functions of one module, or of one script, on the workers of a stack.

    Args:
        stack: with workers.
        module: the module's name in the stack's work directory.
        script: an absolute path in place of a module.
    """

    def __init__(self, stack: Stack, module: str | None = None, script: Path | None = None) -> None:
        self.stack = stack
        self.module = module
        self.script = script

    def queue(
        self,
        qualname: str,
        *args: Any,
        kwargs: dict[str, Any] | None = None,
        python: str | None = sys.executable,
        data: bytes | None = None,
        time_limit_s: float | None = None,
    ) -> int:
        """Put one call in; the number of the job."""
        call = {
            "module": self.module,
            "script": None if self.script is None else str(self.script),
            "qualname": qualname,
            "python": python,
            "data": payload.pack([list(args), kwargs or {}]) if data is None else data,
        }
        spec = {
            "v": 1,
            "argv": [f"{self.module or self.script}:{qualname}()"],
            "cwd": str(self.stack.work),
            "umask": 0o022,
            "env": {},
            "time_limit_s": time_limit_s,
            "visible": "index",
            "call": call,
        }
        job = NewJob(name="", shape="g1", priority=5, retries=0, retry_delay_ms=0, spec=pack(spec))
        return self.stack.api.broker.enqueue(job, Environment.of({"PATH": os.environ["PATH"]}))[0]

    def ended(self, number: int, seconds: float = 20.0) -> dict[str, Any]:
        """The job, when it has ended."""
        return self.stack.await_state(number, "succeeded", "failed", "cancelled", seconds=seconds)

    def failure(self, qualname: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Call what is to fail, and the job then."""
        job = self.ended(self.queue(qualname, *args, **options))
        assert job["state"] == "failed", job
        return job

    def value(self, qualname: str, *args: Any, **options: Any) -> Any:
        """Call what is to succeed, and what it returned."""
        number = self.queue(qualname, *args, **options)
        job = self.ended(number)
        assert job["state"] == "succeeded", (job, self.output(number))
        return self.value_of(number)

    def value_of(self, number: int) -> Any:
        """What a call returned."""
        packed = self.stack.api.inspector.value(number)
        assert packed is not None
        return payload.unpack(packed)

    def output(self, number: int) -> str:
        """What is kept of its output."""
        return self.stack.api.job(number).logs().decode()

    def raised(self, number: int) -> dict[str, str]:
        """The exception in the result of a job."""
        found: dict[str, str] = self.stack.api.job(number).view.result["exception"]
        return found
