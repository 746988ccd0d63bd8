"""Does the steps of acquiring and releasing, one after another, in the thread that asks."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from foxqueue.leases.core import Core
from foxqueue.leases.ear import Ear
from foxqueue.leases.effects import Ask, Listen, Local, Pause, Read, Step, Steps

T = TypeVar("T")


def drive(core: Core, steps: Steps[T]) -> T:
    """Do what steps ask for, one after another, and return what comes of them."""
    doing = _Doing(core)
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                value, error = doing.do(step), None
            except BaseException as problem:  # noqa: BLE001 - it cleans up, and raises it again
                value, error = None, problem
    finally:
        doing.close()


class _Doing:
    """Does steps."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ear: Ear | None = None

    def do(self, step: Step) -> Any:
        """Do one."""
        match step:
            case Ask(calls):
                return self._core.broker.send(*calls)
            case Read(commands):
                return self._core.broker.connection.answers(commands, "leases")
            case Local(call):
                return call()
            case Pause(seconds):
                return time.sleep(seconds)
            case Listen(key, seconds):
                if self._ear is None:
                    self._ear = Ear(self._core.broker.connection, key)
                self._ear.ask(time.monotonic())
                return self._ear.take(seconds)

    def close(self) -> None:
        """Hear no more."""
        if self._ear is not None:
            self._ear.close()
