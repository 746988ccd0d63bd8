"""`foxqueue service`: up as a service of systemd."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from foxqueue.cli.options import common, config
from foxqueue.cli.output import say

if TYPE_CHECKING:
    from foxqueue.config import Config
    from foxqueue.service import Place


@click.group(short_help="Run up as a service of systemd.")
@common
def service() -> None:
    """Run foxqueue up as a service of systemd: workers that survive logout and reboot."""


_user = click.option("--user", is_flag=True, help="A service of this user, without root.")


def _place(user: bool, run_as: str | None) -> Place:
    from foxqueue.service import system_place, user_place

    return user_place(os.environ) if user else system_place(run_as, os.environ)


@service.command(short_help="Write, enable and start it.")
@_user
@click.option("--run-as", metavar="NAME", help="User of a service of the machine. [default: who called sudo]")
@click.option("--force", is_flag=True, help="Replace a unit that is other than what would be written.")
@click.option("--dry-run", is_flag=True, help="Print the unit and do nothing.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- UP-OPTIONS]")
@common
def install(user: bool, run_as: str | None, force: bool, dry_run: bool, options: tuple[str, ...]) -> int:
    """Write a unit that runs foxqueue up with these options, enable it and start it.

    Home, namespace and server are spelt out in it as they are configured now. A password goes into a file of mode
    0600 beside the unit.
    """
    from foxqueue.service import compose, config_of, find_program, groups_of
    from foxqueue.service import install as do_it

    if user and run_as is not None:
        raise click.UsageError("--run-as is for a service of the machine, without --user")
    place = _place(user, run_as)
    its = config_of(place, config())
    _check(options, its, groups_of(place))
    unit = compose(place, its, options, os.environ, find_program(sys.argv[0], os.environ))
    if dry_run:
        click.echo(unit.text, nl=False)
        return 0
    from workers.keeper import up_seat

    do_it(place, unit, say, force=force, taken=up_seat(its).taken())
    return 0


@service.command(short_help="Stop, disable and remove it.")
@_user
@click.option("--force", is_flag=True, help="Remove a unit of this name that foxqueue did not write.")
@common
def uninstall(user: bool, force: bool) -> int:
    """Stop the service, disable it and remove its unit. Jobs and data are kept."""
    from foxqueue.service import uninstall as do_it

    do_it(_place(user, "root"), say, force=force)
    return 0


@service.command(short_help="Print its unit.")
@_user
@common
def show(user: bool) -> int:
    """Print the unit that is installed."""
    from foxqueue.service import SYSTEM_UNITS, installed, user_place

    click.echo(installed(user_place(os.environ).units if user else SYSTEM_UNITS), nl=False)
    return 0


def _check(options: tuple[str, ...], its: Config, groups: set[int]) -> None:
    """What `up` would refuse at its start is refused now."""
    from foxqueue.access import check_group, parse_bind
    from foxqueue.cli.serve import up

    with up.make_context("foxqueue up", list(options)) as context:
        values = context.params
        if context.meta:  # nothing else is kept there
            raise click.UsageError("give --url, --namespace and --home before the --")
    if values["detach"]:
        raise click.UsageError("--detach: a service is in the background by itself")
    if (values["group"] or values["bind"]) and its.url:
        raise click.UsageError("--group and --bind are for our own server, and another one is configured")
    if values["group"]:
        check_group(values["group"], groups)
    if values["bind"]:
        parse_bind(values["bind"])
