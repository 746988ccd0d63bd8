"""What the commands share: options that may stand before and after the command, job numbers, the client."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from foxqueue.errors import InvalidInput
from foxqueue.units import parse_duration

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.config import Config

F = TypeVar("F", bound=Callable[..., Any])

_META = "foxqueue."
_COMMON = (
    ("--url", "URL", "Server: redis://HOST:PORT/DB, rediss://… or unix:///PATH."),
    ("--namespace", "NAME", "Name of the queue on the server."),
    ("--home", "DIR", "State directory."),
)


def common(command: F) -> F:
    """Add --url, --namespace and --home; the one that stands last counts."""
    for flag, metavar, text in reversed(_COMMON):
        option = click.option(flag, metavar=metavar, help=text, expose_value=False, callback=_remember)
        command = option(command)
    return command


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        if not value:
            raise click.BadParameter("it is empty", context, parameter)
        context.meta[_META + str(parameter.name)] = value


def given_before(context: click.Context) -> list[str]:
    """Those of --url, --namespace and --home that were given before this command, as words."""
    given = ((flag, context.meta.get(_META + flag.lstrip("-"))) for flag, _, _ in _COMMON)
    return [word for flag, value in given if value is not None for word in (flag, value)]


def config() -> Config:
    """The configuration, with the options of this command line."""
    from foxqueue.config import load_config

    url, namespace, home = given()
    return load_config(url, namespace, home)


def client() -> Client:
    """A client of the configured server and namespace."""
    from foxqueue.client import Client

    return Client(*given())


def given() -> tuple[str | None, str | None, str | None]:
    """The options --url, --namespace and --home of this command line, None for those that were left out."""
    meta = click.get_current_context().meta
    return meta.get(_META + "url"), meta.get(_META + "namespace"), meta.get(_META + "home")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def job_number(text: str) -> int:
    """Read the number of a job. A parameter's ``type``."""
    if text.isascii() and text.isdigit() and len(text) <= 15 and int(text) > 0:
        return int(text)
    raise click.BadParameter(
        f"{text!r} is not the number of a job: give a positive whole number, as foxqueue ls shows it"
    )


JOB = "NUMBER|last"  # how an argument of one_job is shown


def one_job(text: str) -> int | None:
    """Read the number of a job; None for ``last``, the newest of this user. A parameter's ``type``."""
    if text == "last":
        return None
    try:
        return job_number(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, or last for your newest") from error


class Once(click.Command):
    """A command that refuses an option which takes one value and is given two, of which one would be lost."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does."""
        if not ctx.resilient_parsing:
            self.refuse_twice(ctx, args)
        return self.parse_all(ctx, args)

    def parse_all(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does: the last value of an option counts."""
        return super().parse_args(ctx, args)

    def refuse_twice(self, ctx: click.Context, args: list[str], where: str = "") -> None:
        """Refuse words in which an option of one value stands twice; --url and the like may, the last one counts.

        Args:
            ctx: of this command.
            args: the words.
            where: they stand, for the message.

        Raises:
            click.UsageError: there is one.
        """
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
        except click.UsageError:  # told when all is parsed
            return
        for option in order:
            once = isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count)
            if once and option.expose_value and order.count(option) > 1:
                flag = max(option.opts, key=len)
                raise click.UsageError(f"{flag} is given twice{where}, and takes one value: give it once", ctx)


class Whole(click.IntRange):
    """A whole number in ASCII digits. Python's own reader takes those of every script, and ``1_0``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,15}", value):
            self.fail(f"{value!r} is not a whole number, like 1.", param, ctx)
        return super().convert(value, param, ctx)


def duration(text: str) -> float:
    """Read a time such as 30m as seconds. A parameter's ``type``."""
    try:
        return parse_duration(text)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from error


def lease_ttl(text: str) -> float:
    """Read the length of a lease as seconds. A parameter's ``type``."""
    seconds = duration(text)
    if not 0.3 <= seconds <= 600:
        raise click.BadParameter(f"a lease of {text} is not possible: give 300ms to 10m")
    return seconds


def simulated(text: str) -> str:
    """Check simulated devices such as 2x24G. A parameter's ``type``."""
    from foxqueue.gpu import parse_simulate

    try:
        parse_simulate(text)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from error
    return text
