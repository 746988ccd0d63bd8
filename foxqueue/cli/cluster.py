"""Commands about what serves the queue: gpus, workers, stats, doctor, version."""

from __future__ import annotations

import click

from foxqueue.cli import output
from foxqueue.cli.options import client, common, config, json_option
from foxqueue.units import format_duration, format_memory


@click.command(short_help="List devices.")
@json_option
@common
def gpus(as_json: bool) -> int:
    """List devices, those whose worker is gone too."""
    fox = client()
    fox.look()
    if as_json:
        output.write_json(fox.gpus())
        return 0
    devices = fox.inspector.devices()
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
    return 0


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
