"""Commands about what serves the queue: gpus, workers, stats, health, doctor, version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from foxqueue.cli import output
from foxqueue.cli.options import client, common, config, duration, json_option
from foxqueue.cli.pause import tell_paused
from foxqueue.units import format_duration, format_memory

if TYPE_CHECKING:
    from foxqueue.client import Client


@click.command(short_help="List devices, or take one from its job.")
@click.option("--release", metavar="DEVICE", help="End the job that has this device: gpu:0, sim:1@HOST or a UUID.")
@json_option
@common
def gpus(release: str | None, as_json: bool) -> int:
    """List devices, those whose worker is gone too.

    --release takes a device from the job that runs on it, whoever's it is: the job ends as failed (lease_lost), and
    the next one may have the device when all processes of the first are gone. Where its worker is dead, that is when
    the lease has run out. DEVICE is a label of this list, with @HOST where several machines
    have one, a UUID, or 8 characters of its beginning.
    """
    fox = client()
    fox.look()
    if release is not None:
        return _release(fox, release, as_json)
    if as_json:
        output.write_json(fox.gpus())
        return 0
    seen = fox.inspector.seen()
    tell_paused(seen.paused, as_json)
    if not seen.devices:
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
        for device in seen.devices
    ]
    headers = ["DEVICE", "NAME", "FREE/TOTAL", "UTIL", "STATE", "JOB", "UUID", "DETAIL"]
    output.table(headers, rows, right=("FREE/TOTAL", "UTIL", "JOB"))
    return 0


def _release(fox: Client, ref: str, as_json: bool) -> int:
    from foxqueue.devices import named
    from foxqueue.submission import user

    device = named(fox.inspector.devices(), ref)
    _, job = fox.broker.force_release(device.uuid, user())
    if as_json:
        output.write_json({"device": device.uuid, "released": job is not None, "job": job})
    elif job is not None and device.live:
        output.write(f"job {job} is being ended (lease_lost); {device.label} is free when its processes are gone\n")
    elif job is not None:
        output.write(
            f"the worker of {device.label} is gone: job {job} ends (lease_lost), and the device is free, when its "
            "lease has run out\n"
        )
    if job is None:
        output.say(f"no job has {device.label} ({device.uuid}): there is nothing to release")
    return 0 if job is not None else 1


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
