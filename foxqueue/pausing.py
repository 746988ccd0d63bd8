"""Pausing the queue, a group or a device, and waiting until nothing runs there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from foxqueue.broker import Broker
from foxqueue.devices import SeenDevice, named
from foxqueue.errors import GroupNotFound, InvalidInput, NoDevice, WaitTimeout
from foxqueue.following import SHOWN, Following, deadline_of
from foxqueue.inspector import BLOCK_S, Inspector
from foxqueue.job import JobView
from foxqueue.states import RUNNING
from foxqueue.submission import user

MAX_REASON = 500  # characters


@dataclass(frozen=True)
class Scope:
    """What is paused or resumed.

    Attributes:
        word: ``*`` for the namespace, ``@group``, or the UUID of a device.
        label: how people name it.
        option: what names it on the command line, "" for the namespace.
    """

    word: str = "*"
    label: str = "the queue"
    option: str = ""

    def holds(self, job: JobView) -> bool:
        """Whether a running job is meant."""
        return self.word == "*" or self.word == f"@{job.group}" or self.word in job.gpu_uuids


def scope_of(inspector: Inspector, group: str | None = None, device: str | None = None) -> Scope:
    """The namespace, or what is named in it.

    Args:
        inspector: of the namespace.
        group: its name.
        device: as :func:`foxqueue.devices.named` takes it.

    Raises:
        InvalidInput: both are given, one is no text, or the device may be more than one.
        GroupNotFound, NoDevice: there is none.
    """
    if group is not None and device is not None:
        raise InvalidInput("a group and a device were given: name one of them, or neither for the whole queue")
    for what, name in (("group", group), ("device", device)):
        if name is not None and not isinstance(name, str):
            raise InvalidInput(f"{what} {name!r:.60} is no name: give text, as foxqueue groups and gpus show it")
    if group is not None:
        return of_group(inspector.group(group).name)
    return Scope() if device is None else of_device(named(inspector.devices(), device))


def of_group(name: str) -> Scope:
    """The scope of a group."""
    return Scope(f"@{name}", f"group {name}", f" --group {name}")


def of_device(device: SeenDevice) -> Scope:
    """The scope of a device."""
    return Scope(device.uuid, device.label, f" --device {device.uuid}")


def pause(
    broker: Broker, inspector: Inspector, scope: Scope, reason: str = "", *, requeue_running: bool = False
) -> tuple[bool, int]:
    """Let nothing of it start any more; what runs goes on, or goes back into the queue.

    Args:
        broker, inspector: of the namespace.
        scope: what to pause.
        reason: for people, one line; where it is paused already and none is given, the one there stays.
        requeue_running: end its runs; their jobs wait again at their old place, the attempt is not counted.

    Returns:
        Whether that is news (False: it was paused, for the same reason, before), and how many runs were asked to end.

    Raises:
        InvalidInput: the reason is too long, or more than one line.
        GroupNotFound, NoDevice: there is no such group or device any more.
        OutcomeUnknown, ServerUnavailable: see :meth:`foxqueue.sender.Sender.resend`.
    """
    if not isinstance(reason, str) or len(reason) > MAX_REASON or not reason.isprintable():
        raise InvalidInput(f"the reason {reason!r:.60} is not usable: give one line of at most {MAX_REASON} characters")
    before = None if reason else paused_by(inspector, scope)
    if before is not None and not requeue_running:
        return False, 0
    reason = reason or (before or "").partition(": ")[2]
    word, asked = broker.pause(scope.word, reason, user(), requeue_running=requeue_running)
    return _there(scope, word) == "ok", asked


def paused_by(inspector: Inspector, scope: Scope) -> str | None:
    """By whom and why it is paused itself, None when it is not."""
    groups = [scope.word[1:]] if scope.word.startswith("@") else []
    return inspector.paused(groups).get(scope.word)


def resume(broker: Broker, scope: Scope) -> bool:
    """Let it start jobs again; False when it was not paused.

    Raises:
        GroupNotFound, NoDevice: there is no such group or device any more.
        OutcomeUnknown, ServerUnavailable: see :meth:`foxqueue.sender.Sender.resend`.
    """
    return _there(scope, broker.resume(scope.word, user())) == "ok"


def _there(scope: Scope, word: str) -> str:
    if word != "missing":
        return word
    kind = GroupNotFound if scope.word.startswith("@") else NoDevice
    raise kind(f"{scope.label} is not there any more")


def await_idle(
    broker: Broker,
    inspector: Inspector,
    scope: Scope,
    timeout: float | str | None = None,
    on_change: Callable[[str], None] | None = None,
) -> None:
    """Wait until nothing of it runs, over every restart of the server.

    Of a device a lease is waited for, too: a device's pause holds leases back as it holds jobs back. That of the whole
    queue or of a group does not, so there nobody waits for leases.

    Args:
        broker, inspector: of the namespace.
        scope: what was paused.
        timeout: seconds, or text like ``30m``; None for as long as it takes.
        on_change: called with what is waited for, in words, at first and whenever that changes.

    Raises:
        WaitTimeout: the time is over.
    """
    following = Following(broker, inspector)
    deadline = deadline_of(timeout)
    event = following.patiently(inspector.last_event, deadline)
    before = ""
    while True:
        following.patiently(following.look, deadline)
        running = following.patiently(partial(_running, inspector, scope), deadline)
        if not running:
            return
        if on_change and running != before:
            on_change(running)
        before = running
        left = BLOCK_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"the time is over, and of {scope.label} {running} still runs; it stays paused")
        event = following.patiently(partial(inspector.news, event, left), deadline).event


def _running(inspector: Inspector, scope: Scope) -> str:
    """What runs, in words; "" when nothing does."""
    numbers = [job.number for job in inspector.every({RUNNING}, scope.holds)]
    named = [jobs_named(numbers)] if numbers else []
    if not scope.word.startswith(("*", "@")):
        seen = inspector.seen().leased
        named += [f"the lease of {it.holder.shown}" for it in seen if it.holder and scope.word in (it.uuid, it.whole)]
    return " and ".join(named)


def jobs_named(numbers: list[int]) -> str:
    """``job 7, 8 and 9``, the first ones."""
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return f"job {shown}" + (f" and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else "")
