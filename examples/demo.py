"""The demo: real training runs through a real server onto two simulated devices, with things killed on the way.

Nine runs of train_digits.py are submitted. One loses its worker to a SIGKILL halfway, one is cancelled while it
runs, one fails; the others are a sweep with three priorities. At the end the queue's own records are checked
against what was promised. Exits with 0, or with 1 and a line for each promise that was not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from promises import Fate, Run, check
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from stage import DemoError, Stage

from foxqueue import Client, FoxqueueError, Job
from foxqueue.cli import output
from foxqueue.cli.output import last_lines

TRAIN = Path(__file__).resolve().with_name("train_digits.py")
LIMIT_S = 300.0
LOOK_S = 0.1
_EPOCH = re.compile(rb"epoch (\d+)/")
_RESUMED = re.compile(rb"going on from epoch (\d+)")
STYLES = {"running": "cyan", "succeeded": "green", "failed": "red", "cancelled": "magenta"}


@dataclass(frozen=True)
class Plan:
    """A run to submit, and what is to become of it."""

    name: str
    priority: str
    arguments: tuple[str, ...]
    fate: Fate = "succeeds"


@dataclass
class Following:
    """A submitted run and what was last seen of it."""

    plan: Plan
    job: Job
    line: str = ""
    told: tuple[str, str | None, int] = ("", None, 0)
    done: bool = False  # what is to happen to it has been done
    over: bool = False  # its end has been looked at

    @property
    def acts(self) -> bool:
        return self.plan.fate in ("loses its worker", "is cancelled")


def plans(epochs: int) -> list[Plan]:
    """The first two keep both devices busy until all are submitted, so that priorities have something to order."""
    sweep = [
        Plan(f"{priority}-{rate}-{hidden}", priority, ("--epochs", str(epochs), "--lr", rate, "--hidden", hidden))
        for priority, rate in (("low", "0.05"), ("medium", "0.1"), ("high", "0.3"))
        for hidden in ("64", "128,64")
    ]
    return [
        Plan("loses-its-worker", "high", ("--epochs", str(epochs * 4), "--lr", "0.2"), "loses its worker"),
        Plan("to-be-cancelled", "high", ("--epochs", "100000"), "is cancelled"),
        *sweep[:3],
        Plan("to-fail", "medium", ("--epochs", str(epochs), "--fail-at", "3"), "fails"),
        *sweep[3:],
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Training runs on simulated devices, with things killed on the way.")
    parser.add_argument("--epochs", type=int, default=20, help="of each run of the sweep (20)")
    parser.add_argument("--spare-the-worker", action="store_true", help=argparse.SUPPRESS)  # breaks a promise
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    try:
        with Stage() as stage:
            promises = perform(stage, options.epochs, options.spare_the_worker)
            promises["nothing is left behind"] = stage.end()
    except KeyboardInterrupt:
        print("interrupted; all that ran was ended and removed", file=sys.stderr)
        return 130
    except (DemoError, FoxqueueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return judge(promises, time.monotonic() - began)


def judge(promises: Mapping[str, Sequence[str]], took_s: float) -> int:
    """Tell which promises were kept. Returns the exit code."""
    for promise, faults in promises.items():
        print(f"{'NOT KEPT' if faults else 'kept':<8}  {promise}")
        for fault in faults:
            print(f"          {fault}")
    broken = sum(1 for faults in promises.values() if faults)
    print(f"{broken or 'no'} promise{'' if broken == 1 else 's'} broken, {took_s:.0f} s")
    return 1 if broken else 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def perform(stage: Stage, epochs: int, spare: bool) -> dict[str, list[str]]:
    """Submit, meddle, follow, print the table. Returns each promise with what was wrong."""
    print("starting a private server and two simulated devices", flush=True)
    with stage.client() as fox:
        names = {device["uuid"]: f"sim:{device['index']}" for device in fox.gpus()}
        for device in fox.gpus():
            print(f"  {names[device['uuid']]}  {device['name']}  ({device['kind']}: no GPU is used)")
        runs = [Following(plan, submit(fox, plan)) for plan in plans(epochs)]
        print(f"submitted {len(runs)} training runs of {TRAIN.name}", flush=True)
        with progress(names) as screen:
            deadline = time.monotonic() + LIMIT_S
            while not all(run.job.ended for run in runs) and time.monotonic() < deadline:
                stage.check()
                look(fox, runs)
                meddle(fox, runs, screen, spare)
                screen.show(runs)
                time.sleep(LOOK_S)
        found = [collect(run) for run in runs]
        print_table(found, names)
        return check(found, audit_trail(fox), fox.gpus())


def submit(fox: Client, plan: Plan) -> Job:
    return fox.submit(
        [sys.executable, TRAIN, *plan.arguments],
        name=plan.name,
        priority=plan.priority,
        tags={"demo": plan.fate},
    )


def look(fox: Client, runs: Sequence[Following]) -> None:
    """Read all jobs in one go, and the last line of those that run."""
    jobs = {job.number: job for job in fox.jobs(limit=100)}
    for run in runs:
        run.job = jobs.get(run.job.number, run.job)
        if run.job.running:
            run.line = (last_lines(run.job.logs(), 1) or [""])[-1]
        elif run.job.ended and not run.over:
            run.over = True
            found = accuracy_of(run.job)
            run.line = str(run.job.reason) if found is None else f"accuracy {found:.4f}"


def meddle(fox: Client, runs: Sequence[Following], screen: Screen, spare: bool) -> None:
    """Kill a worker when its run is halfway, cancel a run that is under way."""
    for run in runs:
        if run.done or not run.acts or not run.job.running:
            continue
        epoch = last_number(_EPOCH, run.job.logs())
        if run.plan.fate == "is cancelled" and epoch >= 3:
            run.done = True
            screen.say(f"cancelling job {run.job.number} in its epoch {epoch + 1}")
            run.job.cancel()
        elif run.plan.fate == "loses its worker" and epoch >= int(run.plan.arguments[1]) // 2 and not spare:
            pid = next((worker["pid"] for worker in fox.workers() if worker["job"] == run.job.number), None)
            if pid is None:
                continue  # it has just ended
            run.done = True
            screen.say(f"SIGKILL to worker {pid}, whose job {run.job.number} has done {epoch} epochs")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def last_number(pattern: re.Pattern[bytes], text: bytes) -> int:
    found = pattern.findall(text)
    return int(found[-1]) if found else 0


def collect(run: Following) -> Run:
    """What the queue says of a run, and what the run itself printed."""
    job = run.job.refresh()
    text = job.logs()
    resumed_from = last_number(_RESUMED, text)
    output_text = text.decode("utf-8", "replace")
    return Run(run.plan.fate, job.to_dict(), job.rank or 0, accuracy_of(job), resumed_from, output_text)


def accuracy_of(job: Job) -> float | None:
    """From the JSON object that a run prints last."""
    with suppress(ValueError, IndexError, KeyError, TypeError):
        return float(json.loads(job.logs().splitlines()[-1])["accuracy"])
    return None


def audit_trail(fox: Client) -> list[dict[str, str]]:
    """The queue's events, oldest first."""
    entries: Any = fox.redis.xrange(fox.broker.keys.events)
    return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]


def print_table(runs: Sequence[Run], names: Mapping[str, str]) -> None:
    headers = ["JOB", "RUN", "PRIO", "STATE", "REASON", "ACCURACY", "DEVICE", "ATTEMPTS", "LOSSES", "RESUMED"]
    rows = [
        [
            run.job["number"],
            run.job["name"],
            run.job["priority"],
            run.job["state"],
            run.job["reason"],
            None if run.accuracy is None else f"{run.accuracy:.4f}",
            ", ".join(f"{names.get(uuid, uuid)} (simulated)" for uuid in run.job["gpu_uuids"]),
            run.job["attempts"],
            run.job["losses"],
            f"epoch {run.resumed_from}" if run.resumed_from else None,
        ]
        for run in runs
    ]
    print()
    output.table(headers, rows, right=("JOB", "PRIO", "ACCURACY", "ATTEMPTS", "LOSSES"))
    print(flush=True)


class Screen:
    """Progress as plain lines: one when a run starts, runs again or ends."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.began = time.monotonic()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.1f} s  {text}", flush=True)

    def show(self, runs: Sequence[Following]) -> None:
        for run in runs:
            job = run.job
            now = (job.state, job.fence, job.losses)
            if now == run.told or (job.waiting and not job.losses):
                continue
            run.told = now
            lost = f", after {job.losses} lost worker" if job.losses else ""
            device = f" on {self.device(job)}" if not job.waiting else ""
            end = f" ({run.line})" if job.ended else ""
            self.say(f"job {job.number} {run.plan.name}, priority {job.priority}: {job.state}{device}{lost}{end}")

    def device(self, job: Job) -> str:
        return ", ".join(self.names.get(uuid, uuid) for uuid in job.gpu_uuids)


class Terminal(Screen):
    """Progress as a table that is drawn again and again."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._live = Live(console=Console(), auto_refresh=False, transient=True)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(f"{time.monotonic() - self.began:5.1f} s  {text}", highlight=False)

    def show(self, runs: Sequence[Following]) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("JOB", "RUN", "PRIO", "STATE", "DEVICE", "LOSSES", "LAST LINE"):
            table.add_column(header, no_wrap=True)
        for run in runs:
            job = run.job
            style = STYLES.get(job.state, "")
            device = "" if job.waiting else self.device(job)
            line = run.line[: max(self._live.console.width - 70, 10)]
            cells = (str(job.number), run.plan.name, str(job.priority), job.state, device, str(job.losses), line)
            table.add_row(*(Text(cell, style=style if cell == job.state else "") for cell in cells))
        self._live.update(table, refresh=True)


def progress(names: Mapping[str, str]) -> Screen:
    return Terminal(names) if output.on_terminal() else Screen(names)


if __name__ == "__main__":
    sys.exit(main())
