"""The command `lease`: a device for a command or for some time, and `lease ls`, `lease release`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from foxqueue.cli import output
from foxqueue.cli.options import Once, Whole, client, common, duration, given, json_option
from foxqueue.errors import FoxqueueError, LeaseBusy

if TYPE_CHECKING:
    from foxqueue.errors import LeaseError
    from foxqueue.fleet import Waiter
    from foxqueue.leases import GpuLeases, Lease
    from workers.leasing import News

TIMED_OUT: Final = 124
ANY: Final = "any"
LOST_GRACE_S: Final = 10.0  # at most, where somebody else is to have the device


class _Lease(Once, click.Group):
    """Runs a command under a lease, but for the words `ls` and `release`, where no ``--`` stands before them."""

    def parse_all(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, once for a command and once for a subcommand."""
        rest, _, _ = self._words(ctx, args)
        separated = len(args) > len(rest) and args[len(args) - len(rest) - 1] == "--"
        if ctx.resilient_parsing or (rest and not separated and rest[0] in self.commands):
            click.Group.parse_args(self, ctx, args)
            self._refuse_options(ctx)
            return ctx.args
        ctx.params["argv"] = tuple(click.Command.parse_args(self, ctx, args))
        ctx.args = []
        return []

    def _words(self, ctx: click.Context, args: list[str]) -> tuple[list[str], Any, Any]:
        """The words behind the options; none where the options cannot be read, which is told later."""
        try:
            options, rest, order = self.make_parser(ctx).parse_args(list(args))
        except click.UsageError:
            return [], None, None
        return rest, options, order

    def _refuse_options(self, ctx: click.Context) -> None:
        for option in self.params:
            name = str(option.name)
            if option.expose_value and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                word = ctx._protected_args[0] if ctx._protected_args else "it"
                raise click.UsageError(
                    f"{max(option.opts, key=len)} is for a command under a lease: leave it out before {word}, or write "
                    f"-- {word} to run the program {word}",
                    ctx,
                )


@click.group(
    cls=_Lease,
    invoke_without_command=True,
    subcommand_metavar="[-- CMD [ARG]...]",
    short_help="Run a command on a GPU of its own, without the queue.",
)
@click.option("--gpu", metavar="REF|any", default=ANY, show_default=True, help="gpu:0, sim:1, 0, a UUID, or any.")
@click.option("--gpus", "count", type=Whole(1, 64), default=1, show_default=True, help="How many: all or none.")
@click.option("--memory", metavar="SIZE", help="Free memory that each must have, like 8G.")
@click.option("--for", "for_s", type=duration, metavar="TIME", help="End the lease, and CMD, after this time, like 2h.")
@click.option(
    "--timeout", type=duration, metavar="TIME", help="Wait no longer than this; 0 tries once. [default: wait]"
)
@click.option("-p", "--priority", default="5", show_default=True, metavar="PRIO", help="Rank in line: 0-9, low, high.")
@click.option("--name", metavar="LABEL", help="What it is for: others see it. [default: the program's name]")
@click.option("--no-gpu-ok", is_flag=True, help="Run it without a GPU where this machine has none.")
@click.option(
    "--grace",
    "grace_s",
    type=duration,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Between TERM and KILL, when CMD is ended.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing while all goes well.")
@common
@click.pass_context
def lease(
    context: click.Context,
    /,
    gpu: str,
    count: int,
    for_s: float | None,
    timeout: float | None,
    name: str | None,
    grace_s: float,
    quiet: bool,
    argv: Sequence[str] = (),
    **wanted: Any,
) -> int:
    """Run CMD on a GPU that nobody else has, until it ends: a notebook, a script, a service.

    It sees this GPU only, and has the directory, the environment and the terminal of here: Ctrl-C and Ctrl-Z are
    its own. Whoever has waited longest is served first, jobs of the queue included. The GPU is free again when the last
    process that CMD started is gone; what CMD leaves behind has two seconds to end.

    Without CMD, --for TIME keeps a GPU until then, or until Ctrl-C or foxqueue lease release.

    Exits with CMD's code, 128 and the number of the signal that ended it, 127 or 126 when it cannot be started, 75
    when --timeout 0 finds all in use, 124 when --timeout is over. A program named ls or release stands behind --.

    \b
    foxqueue lease --gpu any --memory 8G -- jupyter lab
    foxqueue lease --gpu gpu:1 --for 2h
    """
    if context.invoked_subcommand is not None:
        return 0
    if not argv and for_s is None:
        raise click.UsageError("what is it for? Give a command behind --, or --for TIME to keep a device", context)
    if for_s is not None and for_s <= 0:
        raise click.UsageError("--for 0 is no time: give one like 2h", context)
    if gpu != ANY and count > 1:
        raise click.UsageError(f"--gpus {count} with --gpu {gpu}, which is one: leave one of them out", context)
    wishes = {
        "holder": _label(argv) if name is None else name,
        "timeout": timeout,
        "lasting": for_s,
        **wanted,
    }
    return _lease(gpu, count, wishes, argv, grace_s, quiet)


def _label(argv: Sequence[str]) -> str:
    """What a command is called: its program's name, and the script's; other words could be secret."""
    if not argv:
        return "foxqueue lease"
    words = [os.path.basename(argv[0])]  # noqa: PTH119 - whatever the word is
    if len(argv) > 1 and not argv[1].startswith("-") and Path(argv[1]).is_file():
        words.append(os.path.basename(argv[1]))  # noqa: PTH119
    return " ".join(words)[:60]


def _lease(gpu: str, count: int, wishes: Mapping[str, Any], argv: Sequence[str], grace_s: float, quiet: bool) -> int:
    from foxqueue.leases import GpuLeases
    from foxqueue.processes import fill_standard_fds
    from workers.leasing import News

    fill_standard_fds()  # the command gets them as they are
    news = News()
    url, namespace, home = given()
    with GpuLeases(url, namespace, home=home) as leases:
        try:
            with _ending(news):
                got = _acquire(leases, gpu, count, {**wishes, "lost": lambda error: news.lose(str(error))}, quiet)
        except LeaseBusy as error:
            output.say(str(error))
            return TIMED_OUT if wishes["timeout"] else error.exit_code
        except _Ended as ended:
            return 128 + ended.signum
        with news.caught():
            try:
                return _use(got, argv, grace_s, news, quiet)
            finally:
                with contextlib.suppress(FoxqueueError):  # lost, or told by the helper when the server is back
                    got.release()


def _acquire(leases: GpuLeases, gpu: str, count: int, wishes: Mapping[str, Any], quiet: bool) -> Lease:
    said: dict[str, Any] = {} if quiet else {"on_wait": _say_whom_for}
    if gpu != ANY:
        return leases.acquire(gpu, **wishes, **said)
    if count > 1:
        return leases.acquire_many(count, **wishes, **said)
    return leases.acquire_any(**wishes, **said)


def _say_whom_for(error: LeaseError) -> None:
    """Who has what is waited for, and who stands before us."""
    output.say(f"waiting: {error}")
    with contextlib.suppress(FoxqueueError):
        fleet = client().inspector.fleet
        waiters = fleet.waiters(fleet.seen())
        ours = [one for one in waiters if (one.holder.host, one.holder.pid) == (socket.gethostname(), os.getpid())]
        before = [one for one in waiters if ours and _stands_before(one, ours[0])]
        if before:
            more = f" and {len(before) - 1} more" if len(before) > 1 else ""
            output.say(f"place {len(before) + 1} in line, behind {before[0].holder.shown}{more}")


def _stands_before(one: Waiter, other: Waiter) -> bool:
    places = [(place, other.places[uuid]) for uuid, place in one.places.items() if uuid in other.places]
    return any(place < after for place, after in places)


def _use(lease: Lease, argv: Sequence[str], grace_s: float, news: News, quiet: bool) -> int:
    """Have the command carried out, or keep the device."""
    from foxqueue.holders import clock
    from workers.leasing import Command, Holder, hold

    until = lease.until_ms
    if not quiet:
        verb = "is" if len(lease.gpu_uuids) == 1 else "are"
        what = f"{lease.names} {verb} yours" if lease.gpu_uuids else "there is no GPU here: going on without one"
        ends = f" until {clock(until)}" if until is not None else ""
        how = "" if argv else "; Ctrl-C or foxqueue lease release gives it back"
        output.say(f"{what}{ends}{how}")
    if not argv:
        lease.note(stoppable=True)
        return _kept(news, hold(news, None if until is None else until / 1000))
    mark = f"lease/{lease.token}/{lease.fence}"
    command = Command(
        argv=argv,
        env=_environment(lease, mark),
        mark=mark,
        fence=lease.fence,
        lock_fds=lease.lock_fds,
        grace_s=grace_s,
        lost_grace_s=min(grace_s, LOST_GRACE_S),
        until_s=None if until is None else until / 1000,
    )
    return Holder(command, news, lambda facts: lease.note(stoppable=True, **facts), output.say).run()


def _kept(news: News, signum: int | None) -> int:
    if news.lost:
        output.say(f"the lease is lost ({news.lost})")
        return 1
    return 0 if signum is None else 128 + signum


def _environment(lease: Lease, mark: str) -> dict[str, str]:
    """This process's environment and what a job's has; without the password of the queue."""
    from foxqueue.capture import first_environment, locale_is_pythons
    from foxqueue.rundirs import MARK
    from foxqueue.urls import hide_password

    environ = dict(os.environ)
    if locale_is_pythons(environ, first_environment()):
        del environ["LC_CTYPE"]
    environ.pop("FOXQUEUE_PASSWORD", None)
    url = environ.get("FOXQUEUE_URL")
    if url and hide_password(url) != url:
        del environ["FOXQUEUE_URL"]
    return {
        **environ,
        **lease.env(),
        "FOXQUEUE_GPUS": ",".join(lease.gpu_uuids),
        "FOXQUEUE_FENCE": str(lease.fence),
        MARK: mark,
    }


class _Ended(BaseException):
    """A signal asks for the end while the lease is waited for."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextlib.contextmanager
def _ending(news: News) -> Iterator[None]:
    """Let TERM and HUP end what goes on as Ctrl-C does: nobody is to be left standing in a line."""
    import signal

    def end(signum: int, frame: FrameType | None) -> None:
        raise _Ended(signum)

    numbers = [signum for signum in (signal.SIGTERM, signal.SIGHUP) if signum not in news.ignored]
    before = {signum: signal.signal(signum, end) for signum in numbers}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@lease.command("ls", cls=Once, short_help="Who has a device by a lease, and who waits for one.")
@json_option
@common
def list_leases(as_json: bool) -> int:
    """List leases and who waits for one, in line. Devices that jobs have stand in foxqueue gpus."""
    from foxqueue.holders import clock

    fleet = client().inspector.fleet
    seen = fleet.seen()
    waiters = fleet.waiters(seen)
    if as_json:
        output.write_json({"leases": fleet.leases(seen), "waiting": fleet.in_line(waiters)})
        return 0
    held = [(device, device.holder) for device in seen.leased if device.holder is not None]
    if held:
        headers = ["DEVICE", "NAME", "USER", "HOST", "PID", "SINCE", "UNTIL", "FENCE", "DETAIL"]
        rows = [
            [
                *(device.label, who.label, who.user, who.host, who.pid),
                *(None if ms is None else clock(ms) for ms in (who.since_ms, who.until_ms)),
                who.fence,
                f"taken away by {who.taken_by}" if who.taken_by else None,
            ]
            for device, who in held
        ]
        output.table(headers, rows, right=("PID", "FENCE"))
    else:
        output.say("nobody has a device by a lease: foxqueue lease -- CMD takes one")
    if waiters:
        labels = {device.uuid: device.label for device in (*seen.devices, *seen.unserved)}
        output.write("\n" if held else "")
        lines = [
            [
                *(who.holder.label, who.holder.user, who.holder.host, who.holder.pid, who.needs),
                ", ".join(f"{place} for {labels[uuid]}" for uuid, place in who.places.items()),
            ]
            for who in waiters
        ]
        output.table(["WAITING", "USER", "HOST", "PID", "NEEDS", "PLACE"], lines, right=("PID", "NEEDS"))
    return 0


@lease.command("release", cls=Once, short_help="End a lease.")
@click.argument("gpu", metavar="DEVICE")
@click.option("--force", is_flag=True, help="Take it from whoever has it; foxqueue events tells who did.")
@json_option
@common
def release(gpu: str, force: bool, as_json: bool) -> int:
    """End the lease of a device: its command, if it has one, gets TERM, and KILL after the grace.

    DEVICE is a label of foxqueue gpus, with @HOST where several machines have one, or a UUID. It has to be your own
    lease on this machine; with --force anybody's is taken, at the holder's next beat (5 seconds). The device is free
    when the last process is gone; a holder of which nothing is heard any more has it until its lease has run out.
    """
    from foxqueue.cli.releasing import release_lease

    return release_lease(client(), gpu, force=force, as_json=as_json)
