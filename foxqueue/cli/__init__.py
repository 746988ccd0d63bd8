"""The command line: parse, call, print. Its exit codes and its silence about tracebacks are decided here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from traceback import walk_tb

import click

from foxqueue.cli import output
from foxqueue.cli.options import common
from foxqueue.errors import FoxqueueError

INTERRUPTED = 130


# As people meet them, each in module:name. A command's module is loaded when it is asked for: it takes longer to load
# all of them than a command line has.
_COMMANDS = {
    "submit": "submit:submit",
    "sweep": "sweep:sweep",
    "ls": "listing:list_jobs",
    "show": "listing:show",
    "logs": "jobs:logs",
    "wait": "jobs:wait",
    "cancel": "change:cancel",
    "failed": "failed:failed",
    "requeue": "change:requeue",
    "hold": "change:hold",
    "unhold": "change:unhold",
    "reprioritize": "change:reprioritize",
    "groups": "groups:groups",
    "pause": "pause:pause",
    "resume": "pause:resume",
    "drain": "pause:drain",
    "lease": "lease:lease",
    "events": "events:events",
    "gpus": "cluster:gpus",
    "workers": "cluster:workers",
    "stats": "cluster:stats",
    "health": "cluster:health",
    "doctor": "cluster:doctor",
    "config": "settings:config",
    "export": "archive:export",
    "import": "archive:import_",
    "up": "serve:up",
    "down": "serve:down",
    "server": "serve:server",
    "worker": "serve:worker",
    "service": "service:service",
    "version": "cluster:version",
}


class _Commands(click.Group):
    """The commands, loaded one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order above, not by the alphabet."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one; None when there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"foxqueue.cli.{module}"), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@common
def cli() -> None:
    """A queue for training runs: every one gets a GPU that nobody else is using.

    Start with: foxqueue up, then foxqueue submit -- python train.py
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Returns:
        The exit code: 0, 1 failed or refused, 2 usage, 69 can never be met, 75 try later, 124 time-out,
        130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a locale without some character is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _flushed(_run(words))
    except BrokenPipeError:
        output.give_up(sys.stdout)  # whoever read stdout has seen enough
        status = 0
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except OSError:
            output.give_up(sys.stderr)
    return status


def _flushed(status: int) -> int:
    """The exit code, once all is written; 1 where stdout takes nothing."""
    try:
        output.flush()
    except output.NotWritten as error:
        output.give_up(sys.stdout)
        if not status:
            output.say(str(error))
        return status or error.exit_code
    return status


def _run(words: list[str]) -> int:
    from foxqueue import logs

    try:
        logs.configure(os.environ)
        return _invoke(words)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except FoxqueueError as error:
        output.say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        if not _in_click(error):
            return _unexpected(error)
        output.say(str(output.NotWritten(error)))
        return 1
    except Exception as error:  # noqa: BLE001 - the last line of defence: users see a sentence, not a traceback
        return _unexpected(error)


def _invoke(words: list[str]) -> int:
    """As click's own main would, which turns a broken pipe into exit code 1."""
    completion = "_FOXQUEUE_COMPLETE" if "_FOXQUEUE_COMPLETE" in os.environ else "_FOX_COMPLETE"
    if completion in os.environ:
        cli.main(words, prog_name="foxqueue", complete_var=completion)
    with cli.make_context("foxqueue", words) as context:
        status = cli.invoke(context)
    return status if isinstance(status, int) else 0


def _in_click(error: OSError) -> bool:
    """Whether click met it, which writes help on stdout by itself."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")).startswith("click.")


def _unexpected(error: Exception) -> int:
    if os.environ.get("FOXQUEUE_LOG", "").lower().startswith("debug"):
        import traceback

        with contextlib.suppress(OSError):
            traceback.print_exc()
    text = str(error).strip().splitlines()
    output.say(
        f"unexpected {type(error).__name__}{': ' + text[0] if text else ''}; set FOXQUEUE_LOG=debug for the traceback"
    )
    return 1
