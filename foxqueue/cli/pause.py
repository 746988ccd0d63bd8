"""Commands that hold the queue, a group or a device back: pause, resume, drain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from foxqueue.cli import output
from foxqueue.cli.options import Once, client, common, duration, json_option
from foxqueue.errors import ServerError

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.pausing import Scope

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130


def _scoped(command: F) -> F:
    for flag, metavar, text in (
        ("--device", "DEVICE", "This device only: gpu:0, sim:1@HOST or a UUID, as foxqueue gpus shows it."),
        ("--group", "NAME", "Jobs of this group only."),
    ):
        command = click.option(flag, metavar=metavar, help=text)(command)
    return command


_reason = click.option("--reason", default="", metavar="TEXT", help="Why: everybody sees it.")


@click.command(cls=Once, short_help="Start no more jobs of the queue, a group or on a device.")
@_scoped
@_reason
@click.option(
    "--running",
    type=click.Choice(["keep", "requeue"]),
    default="keep",
    show_default=True,
    help="Let what runs go on, or end it and put it back into the queue, its attempt not counted.",
)
@json_option
@common
def pause(group: str | None, device: str | None, reason: str, running: str, as_json: bool) -> int:
    """Start no more jobs: of the whole queue, of a group, or on a device. Jobs can still be submitted.

    Everybody who looks at the queue sees by whom and why. foxqueue resume undoes it; foxqueue drain waits until
    nothing runs.
    """
    fox = client()
    scope = _scope(fox, group, device)
    asked = _pause(fox, scope, reason, requeue_running=running == "requeue", as_json=as_json)
    if as_json:
        output.write_json(_told(fox, scope) | {"asked_to_end": asked})
    return 0


@click.command(cls=Once, short_help="Start jobs again that were paused.")
@_scoped
@json_option
@common
def resume(group: str | None, device: str | None, as_json: bool) -> int:
    """Undo a pause: of the whole queue, of a group, or of a device.

    A group or device that was paused on its own stays paused when the queue is resumed, and the other way round.
    """
    from foxqueue.pausing import resume as resume_scope

    fox = client()
    scope = _scope(fox, group, device)
    news = resume_scope(fox.broker, scope)
    if as_json:
        output.write_json(_told(fox, scope))
    elif news:
        output.write(f"{scope.label} goes on; foxqueue pause{scope.option} stops it again\n")
    else:
        output.say(f"{scope.label} was not paused")
    if scope.word != "*":
        tell_paused(fox.inspector.paused(), as_json)
    return 0


@click.command(cls=Once, short_help="Pause, and wait until nothing runs any more.")
@_scoped
@_reason
@click.option("--timeout", type=duration, metavar="TIME", help="Give up after this time, like 30m, with exit code 124.")
@json_option
@common
def drain(group: str | None, device: str | None, reason: str, timeout: float | None, as_json: bool) -> int:
    """Pause the queue, a group or a device, and wait until nothing of it runs any more. Nothing is ended.

    Of a device it waits for a lease, too (foxqueue lease ls), since a device's pause holds leases back as well.

    Ctrl-C stops waiting (exit code 130), and so does --timeout (124); it stays paused.
    """
    from foxqueue.pausing import await_idle

    def on_change(running: str) -> None:
        if not as_json:
            output.say(f"waiting for {running}")

    fox = client()
    scope = _scope(fox, group, device)
    _pause(fox, scope, reason, requeue_running=False, as_json=as_json)
    told = _told(fox, scope) if as_json else {}  # before the server may go away
    try:
        await_idle(fox.broker, fox.inspector, scope, timeout, on_change)
        told = _told(fox, scope) if as_json else {}
    except KeyboardInterrupt:
        output.say(f"not waiting any longer; {scope.label} stays paused: foxqueue resume{scope.option} undoes it")
        return INTERRUPTED
    finally:
        if as_json:
            output.write_json(told)
    if not as_json:
        output.write(f"nothing of {scope.label} runs any more; it stays paused: foxqueue resume{scope.option}\n")
    return 0


def _scope(fox: Client, group: str | None, device: str | None) -> Scope:
    from foxqueue.pausing import scope_of

    fox.look()
    return scope_of(fox.inspector, group, device)


def _pause(fox: Client, scope: Scope, reason: str, *, requeue_running: bool, as_json: bool) -> int:
    from foxqueue.pausing import pause as pause_scope
    from foxqueue.pausing import paused_by

    news, asked = pause_scope(fox.broker, fox.inspector, scope, reason, requeue_running=requeue_running)
    if as_json:
        return asked
    what = f"{scope.label} is paused"
    if not news:
        what = f"{scope.label} was paused before, by {paused_by(fox.inspector, scope)}"
    runs = "what runs goes on"
    if requeue_running:
        runs = f"{asked:,} running {'job goes' if asked == 1 else 'jobs go'} back into the queue"
    output.write(f"{what}: nothing more starts, {runs}; foxqueue resume{scope.option} undoes it\n")
    return asked


def _told(fox: Client, scope: Scope) -> dict[str, Any]:
    from foxqueue.pausing import paused_by

    group = scope.word[1:] if scope.word.startswith("@") else None
    return {
        "scope": scope.word,
        "group": group,
        "device": None if group or scope.word == "*" else scope.word,
        "paused": paused_by(fox.inspector, scope),
    }


def tell_waiting(fox: Client) -> None:
    """Say on stderr, before somebody waits for jobs, that the queue is paused, if it is. A server that is away is no
    reason not to wait.
    """
    with contextlib.suppress(ServerError):
        tell_paused(fox.inspector.paused(), as_json=False)


def tell_paused(paused: Mapping[str, str], as_json: bool) -> None:
    """Say on stderr that the queue is paused, if it is; programs that ask for JSON find it elsewhere.

    Args:
        paused: what is, as the inspector read it.
        as_json: whether stdout carries JSON.
    """
    if not as_json and "*" in paused:
        output.say(f"the queue is paused by {paused['*']}")
