"""Commands that enqueue a script, and read the options that stand in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from foxqueue import foxlines
from foxqueue.cli import output
from foxqueue.cli.options import Once, given_before
from foxqueue.cli.submit_options import asked
from foxqueue.errors import FoxqueueError, InvalidInput

_NOT_IN_A_SCRIPT = {
    "--help": "say it on the command line",
    "--url": "where the server is depends on who submits: give it on the command line, by FOXQUEUE_URL or in "
    "foxqueue.toml",
    "--home": "it is the submitter's own: give it on the command line, by FOXQUEUE_HOME or in foxqueue.toml",
}


class Scripted(Once):
    """Reads the options in the script that it is to enqueue, too; those of the command line win."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with the words of the script's lines put before those of the command line."""
        script = None if ctx.resilient_parsing else self._script(ctx, args)
        if script is None:
            return super().parse_args(ctx, args)
        ctx.obj = script, [self._alone(ctx, line) for line in script.lines]
        of_lines = [word for line in script.lines for word in line.words]
        self.refuse_twice(ctx, args)
        self.refuse_twice(ctx, of_lines, f" in the #FOX lines of {script.word}")
        return self.parse_all(ctx, of_lines + given_before(ctx) + args)

    def _script(self, ctx: click.Context, args: list[str]) -> foxlines.Script | None:
        """The script that the command line enqueues, if there is something to say of it."""
        try:
            found, _, _ = self.make_parser(_apart(ctx)).parse_args(list(args))
        except click.UsageError:  # told when all is parsed
            return None
        words = found.get("argv")
        return foxlines.script(words[0]) if isinstance(words, tuple | list) and words else None

    def _alone(self, ctx: click.Context, line: foxlines.Line) -> click.Context:
        """What one line of the script says.

        Raises:
            click.UsageError: it is malformed; the text says where it stands.
        """
        alone = _apart(ctx)
        try:
            for option in self.make_parser(alone).parse_args(list(line.words))[2]:
                for flag in _NOT_IN_A_SCRIPT.keys() & {*option.opts}:
                    raise click.UsageError(f"{flag} is not read in #FOX lines: {_NOT_IN_A_SCRIPT[flag]}", ctx)
            super().parse_args(alone, list(line.words))
        except click.UsageError as error:
            raise click.UsageError(f"{line.place}: {error.format_message()}", ctx) from error
        if alone.params["argv"]:
            word = alone.params["argv"][0]
            raise click.UsageError(f"{line.place}: {word!r} is no option: a #FOX line holds options alone", ctx)
        return alone


def _apart(ctx: click.Context) -> click.Context:
    """A context of the same command that shares nothing with it."""
    return click.Context(
        ctx.command, info_name=ctx.info_name, allow_interspersed_args=False, help_option_names=ctx.help_option_names
    )


def words(context: click.Context, argv: Sequence[str], *, elsewhere: bool, copied: bool = False) -> list[str]:
    """The command that runs what was given, a script by its interpreter where it must; says which lines are not read.

    Args:
        context: of a :class:`Scripted` command.
        argv: the words that were given.
        elsewhere: the job runs in another directory than this process.
        copied: a copy of the script is what runs.

    Raises:
        InvalidInput: it is a script that does not say what runs it.
    """
    if context.obj is None:
        return list(argv)
    script: foxlines.Script = context.obj[0]
    for place in script.unread:
        output.say(f"{place} is not read: a line with options begins with #FOX, in capitals and without blanks")
    return script.command(list(argv[1:]), elsewhere=elsewhere, copied=copied)


@contextmanager
def placed(context: click.Context, last: Callable[[], int]) -> Iterator[None]:
    """Tell what a script's own line gets wrong with its place.

    Args:
        context: of a :class:`Scripted` command.
        last: number of this user's newest job.
    """
    try:
        yield
    except (InvalidInput, click.BadParameter) as error:
        script, lines = context.obj or (None, [])
        for line, alone in zip(script.lines if script else (), lines, strict=True):
            if _fault(alone, last) == str(error):
                raise InvalidInput(f"{line.place}: {error}") from error
        raise


def _fault(alone: click.Context, last: Callable[[], int]) -> str:
    """What is wrong with what one line says; empty when nothing is."""
    from foxqueue.submission import prepare

    try:
        prepare(["true"], asked(alone, last), os.environ)
    except (FoxqueueError, click.BadParameter) as error:
        return str(error)
    return ""
