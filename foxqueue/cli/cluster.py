"""Commands about what serves the queue: gpus, workers, stats, health, doctor, version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from foxqueue.cli import output
from foxqueue.cli.options import Once, client, common, config, duration, json_option
from foxqueue.cli.pause import tell_paused
from foxqueue.units import format_duration, format_memory

if TYPE_CHECKING:
    from foxqueue.client import Client


@click.command(cls=Once, short_help="List devices; release, clear or forget one.")
@click.option("--release", metavar="DEVICE", help="End the job or the lease that has this device, whoever's it is.")
@click.option("--clear", metavar="DEVICE", help="Put a dirty or quarantined device back into use.")
@click.option("--forget", metavar="DEVICE", help="Strike a device off that will not come back.")
@json_option
@common
def gpus(release: str | None, clear: str | None, forget: str | None, as_json: bool) -> int:
    """List devices, those whose worker is gone too: what is on them, and who has them.

    --release takes a device from the job or the lease that has it, whoever's it is: a job ends as failed (lease_lost),
    a command under a lease is ended, an application that holds one is told that it is lost. The next one may have the
    device when all processes of the first are gone. Where its worker or holder is dead, that is when the lease has run
    out.

    --clear puts a device back into use that was withheld: dirty, because memory of a run did not come back, or
    quarantined, because it is sick. Cure it first: the list says what was found.

    --forget strikes a device off the list that was taken out of its machine, with what was found on it; it is refused
    while somebody serves or has it.

    DEVICE is a label of this list like gpu:0 or sim:1, with @HOST where several machines have one, a UUID, or 8
    characters of its beginning.
    """
    given = {"--release": release, "--clear": clear, "--forget": forget}
    wanted = [(flag, ref) for flag, ref in given.items() if ref is not None]
    if len(wanted) > 1:
        raise click.UsageError(f"{wanted[0][0]} and {wanted[1][0]} were given: give one at a time")
    fox = client()
    fox.look()
    if wanted:
        return {"--release": _release, "--clear": _clear, "--forget": _forget}[wanted[0][0]](fox, wanted[0][1], as_json)
    seen = fox.inspector.seen()
    if as_json:
        output.write_json(fox.inspector.fleet.gpus(seen))
        return 0
    tell_paused(seen.paused, as_json)
    devices = [*seen.devices, *seen.unserved]
    if not devices:
        output.say("no device is registered: foxqueue up starts workers")
        return 0
    rows = [
        [
            device.label,
            device.name,
            None if device.kind == "cpu" else _memory(device.memory_free_mib, device.memory_total_mib),
            None if device.utilization is None else f"{device.utilization}%",
            device.state,
            device.job,
            device.uuid,
            device.detail,
        ]
        for device in devices
    ]
    headers = ["DEVICE", "NAME", "FREE/TOTAL", "UTIL", "STATE", "JOB", "UUID", "DETAIL"]
    output.table(headers, rows, right=("FREE/TOTAL", "UTIL", "JOB"))
    return 0


def _release(fox: Client, ref: str, as_json: bool) -> int:
    from foxqueue.cli.releasing import device_named, tell_lease
    from foxqueue.submission import user

    device = device_named(fox, ref)
    word, job = fox.broker.force_release(device.uuid, user())
    if word == "ok" and job is None and device.holder is not None:
        return tell_lease(device, device.holder, as_json=as_json)
    if as_json:
        output.write_json({"device": device.uuid, "released": job is not None, "job": job, "holder": None})
    elif job is not None and device.live:
        output.write(f"job {job} is being ended (lease_lost); {device.label} is free when its processes are gone\n")
    elif job is not None:
        output.write(
            f"the worker of {device.label} is gone: job {job} ends (lease_lost), and the device is free, when its "
            "lease has run out\n"
        )
    if job is None:
        output.say(f"nobody has {device.label} ({device.uuid}): there is nothing to release")
    return 0 if job is not None else 1


def _clear(fox: Client, ref: str, as_json: bool) -> int:
    from foxqueue.cli.releasing import device_named
    from foxqueue.submission import user

    device = device_named(fox, ref)
    # A slot is withheld with all of its GPU.
    names = dict.fromkeys((device.uuid, device.whole))
    cleared = "ok" in [fox.broker.clear(name, user()) for name in names]
    if as_json:
        output.write_json({"device": device.uuid, "cleared": cleared})
    elif cleared:
        why = f"; it was {device.withheld.word}: {device.withheld.text}" if device.withheld else ""
        output.write(f"{device.label} is in use again{why}\n")
    if not cleared:
        output.say(f"{device.label} ({device.uuid}) is neither dirty nor quarantined: there is nothing to clear")
    return 0 if cleared else 1


def _forget(fox: Client, ref: str, as_json: bool) -> int:
    from foxqueue.cli.releasing import device_named
    from foxqueue.submission import user

    device = device_named(fox, ref)
    word, why = fox.broker.forget(device.uuid, user())
    if as_json:
        output.write_json({"device": device.uuid, "forgotten": word == "ok", "why": why or None})
    elif word == "ok":
        output.write(f"{device.label} ({device.uuid}) is forgotten; a worker that serves it registers it again\n")
    if word != "ok":
        whys = {"live": "its worker is running: foxqueue down ends it", "granted": "somebody has it"}
        output.say(f"{device.label} ({device.uuid}) is not forgotten: {whys.get(why, 'it is not registered')}")
    return 0 if word == "ok" else 1


def _memory(free: int | None, total: int | None) -> str:
    return f"{format_memory(free)}/{format_memory(total)}"


@click.command(short_help="List live workers.")
@json_option
@common
def workers(as_json: bool) -> int:
    """List live workers, one a device."""
    found = client().workers()
    if as_json:
        output.write_json(found)
    elif found:
        headers = ["WORKER", "HOST", "PID", "STATE", "JOB", "DEVICE", "SINCE"]
        keys = ("id", "host", "pid", "state", "job", "device", "since")
        output.table(headers, [[worker[key] for key in keys] for worker in found], right=("PID", "JOB"))
    else:
        output.say("no worker is running: foxqueue up starts one for each device")
    return 0


@click.command(short_help="Figures of the queue.")
@json_option
@common
def stats(as_json: bool) -> int:
    """Figures of the queue."""
    fox = client()
    fox.look()
    found = fox.stats()
    if as_json:
        output.write_json(found)
        return 0
    ages = ("oldest_pending_s", "last_claim_s")
    shown = {
        name: value if name not in ages else "-" if value is None else format_duration(value) + " ago"
        for name, value in found.items()
    }
    output.facts({name.removesuffix("_s").replace("_", " "): value for name, value in shown.items()})
    tell_paused({} if found["paused"] is None else {"*": found["paused"]}, as_json)
    return 0


@click.command(short_help="Exit with 0 when jobs are really served, else with 1.")
@click.option(
    "--max-age",
    "max_age_s",
    type=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long a job may wait beside an idle device that it fits.",
)
@json_option
@common
def health(max_age_s: float, as_json: bool) -> int:
    """Exit with 0 when jobs are really served, else with 1, within 6 seconds: for probes of containers and services.

    It is red (1) when

    \b
    * no server is configured or running, or it does not answer in 5 seconds;
    * it takes no new jobs: a read-only replica, its memory full, no write to
      its append-only file, no permission;
    * no live worker of the namespace takes jobs: none there, or all ending;
    * a job has waited longer than --max-age while a device that it fits stands
      idle, now and two seconds later (under 10s that is a false alarm now and
      then: an idle worker asks every 5 seconds);
    * a job has waited longer than --max-age and no live device that it fits
      can be used: all are unavailable, dirty or quarantined, or there is no
      live GPU, or no CPU slot, at all.

    It stays green (0) while all devices are busy, occupied by others or paused, however long the queue is, while the
    queue or the job's group is paused or the group runs as many as it may, and while a job asks for more memory than
    any live device has.
    """
    from foxqueue.health import look

    found = look(config, max_age_s)
    if as_json:
        output.write_json(found.to_dict())
        return 0 if found.healthy else 1
    rows = [[finding.name, "ok" if finding.ok else "FAILED", finding.detail] for finding in found.findings]
    output.table(["CHECK", "RESULT", "DETAIL"], rows)
    if found.devices:
        output.write("\n")
        cells = [[device.label, device.state, device.job, device.uuid, device.detail] for device in found.devices]
        output.table(["DEVICE", "STATE", "JOB", "UUID", "DETAIL"], cells, right=("JOB",))
    return 0 if found.healthy else 1


@click.command(short_help="Check server, devices and settings.")
@json_option
@common
def doctor(as_json: bool) -> int:
    """Check server, devices and settings, and say what to do. Exits with 1 when a required check fails."""
    from foxqueue.doctor import examine

    report = examine(config())
    if as_json:
        output.write_json(report.to_dict())
        return 0 if report.healthy else 1
    output.facts({"server": report.server or "none", "url": report.url, "version": report.version})
    output.write("\n")
    rows = [
        [check.name, "ok" if check.ok else "FAILED" if check.required else "warning", _advice(check.detail, check.cure)]
        for check in report.checks
    ]
    output.table(["CHECK", "RESULT", "DETAIL"], rows)
    return 0 if report.healthy else 1


def _advice(detail: str, cure: str | None) -> str:
    return f"{detail}; {cure}" if cure else detail


@click.command(short_help="Versions.")
@json_option
@common
def version(as_json: bool) -> int:
    """The version of foxqueue."""
    from foxqueue import __version__

    if as_json:
        output.write_json({"version": __version__})
    else:
        output.write(f"foxqueue {__version__}\n")
    return 0
