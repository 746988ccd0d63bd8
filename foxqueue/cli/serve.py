"""Commands that run things: up, down, server, worker. They parse and call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from foxqueue import logs, streams
from foxqueue.cli.options import Whole, common, config, lease_ttl, simulated

F = TypeVar("F", bound=Callable[..., Any])


def _log() -> None:
    """Programs that run for long say what they do; the other commands speak when something is wrong."""
    streams.be_patient()
    logs.configure(os.environ, "info")


def _devices(command: F) -> F:
    simulate = click.option(
        "--simulate", type=simulated, metavar="NxSIZE", help="Simulated GPUs in place of real ones, like 2x24G."
    )
    cpu = click.option("--cpu", type=Whole(0, 1024), default=0, metavar="N", help="CPU slots besides.")
    slots = click.option(
        "--slots",
        type=Whole(2, 16),
        metavar="N",
        help="Part each GPU into 2 to 16 slots: jobs share it whose declared memory (--gpu-memory) fits together.",
    )
    enforce = click.option(
        "--enforce-memory",
        "enforce",
        type=click.Choice(["warn", "kill"]),
        help="What to do about a run that uses more GPU memory than it declared.  [default: nothing]",
    )
    return simulate(cpu(slots(enforce(command))))


def _opened(command: F) -> F:
    group = click.option("--group", metavar="NAME", help="Unix group whose members may use our own server.")
    bind = click.option("--bind", metavar="HOST:PORT", help="Where our own server listens besides, with a password.")
    return group(bind(command))


@click.command(short_help="Run a worker for each device, and our own server.")
@_devices
@_opened
@click.option(
    "--lease-ttl",
    "ttl_s",
    type=lease_ttl,
    metavar="TIME",
    help="Length of a lease, 300ms to 10m; only in an empty namespace. [default: 15s]",
)
@click.option("--detach", is_flag=True, help="Return when all is up, and go on in the background.")
@common
def up(
    simulate: str | None,
    cpu: int,
    slots: int | None,
    enforce: str | None,
    group: str | None,
    bind: str | None,
    ttl_s: float | None,
    detach: bool,
) -> int:
    """Run a worker for each device of this machine, and our own server unless one is configured.

    Ctrl-C, SIGTERM or foxqueue down ends it: jobs have 60 seconds to end, then they go back into the queue. A second
    Ctrl-C or SIGTERM sends them back at once.
    """
    _log()
    from workers import supervisor

    ttl_ms = None if ttl_s is None else round(ttl_s * 1000)
    return supervisor.up(
        config(),
        simulate=simulate,
        cpu=cpu,
        slots=slots or 0,
        enforce=enforce or "off",
        lease_ttl_ms=ttl_ms,
        group=group,
        bind=bind,
        detach=detach,
    )


@click.command(short_help="End what up started.")
@common
def down() -> int:
    """End the workers and the server of this home on this machine. Jobs and data are kept."""
    _log()
    from workers import supervisor

    return supervisor.down(config())


@click.command(short_help="Run our own server in the foreground.")
@_opened
@common
def server(group: str | None, bind: str | None) -> int:
    """Run our own server in the foreground, without workers."""
    _log()
    from workers import supervisor

    return supervisor.serve(config(), group=group, bind=bind)


@click.command(short_help="Run one worker in the foreground.")
@click.option("--gpu", required=True, metavar="REF", help="Its device: 0, gpu:0, sim:0, cpu:0, a UUID; gpu:0/1.")
@_devices
@common
def worker(gpu: str, simulate: str | None, cpu: int, slots: int | None, enforce: str | None) -> int:
    """Run one worker in the foreground, for one device."""
    _log()
    from workers import worker as program
    from workers.offered import OFF, Offered

    return program.main(config(), gpu, Offered(simulate, cpu, slots or 0, enforce or OFF))
