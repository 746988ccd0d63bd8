"""A home whose `up`, `down` and `server` run as real processes, with a stand-in that obeys the test as the worker."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from wait import until

from foxqueue.config import Config, group_directory, load_config, server_socket
from foxqueue.places import read_json
from foxqueue.server import find_server, stop_server
from workers.keeper import up_seat

WORKER = """
import os, signal, sys, threading, time
from pathlib import Path
from foxqueue.broker import Broker
from foxqueue.config import load_config
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId

place, device = Path(os.environ["STAND_IN"]), sys.argv[sys.argv.index("--gpu") + 1]
def note(what):
    with (place / "notes").open("a") as notes:
        notes.write(f"{what} {device} {os.getpid()}\\n")
terms = 0
def term(number, frame):
    global terms
    terms += 1
    note(f"signal-{signal.Signals(number).name}")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, term)
note("start")
if (place / "refuse").exists():
    sys.exit(3)
if (place / "crash").exists():
    sys.exit(1)
config = load_config()
lock = DeviceLock(device, "worker", [config.machine_dir / "locks"])
(config.machine_dir / "locks").mkdir(exist_ok=True)
if not lock.acquire():
    note("held")
    sys.exit(3)
lock.write({"process": ProcessId.of().to_dict(), "home": str(config.home), "namespace": config.namespace})
me = f"stand-in-{os.getpid()}"
while not terms or (place / "stubborn").exists() and terms < int((place / "stubborn").read_text()):
    if not (place / "mute").exists():
        try:
            broker = Broker.connect(config.url, config.namespace, config.password)
            broker.redis.hset(broker.keys.gpus, device, f"{me} 1 x")
            broker.redis.zadd(broker.keys.workers, {me: broker.server_time_ms()})
            broker.close()
        except Exception as error:
            print(error, file=sys.stderr)
    time.sleep(0.05)
note("end")
"""

DRIVER = """
import atexit, json, os, signal, subprocess, sys, time
from foxqueue.config import load_config
from foxqueue.errors import FoxqueueError
from workers import slots, supervisor
verb, options = sys.argv[1], json.loads(sys.argv[2])
if "stranger" in options:  # as in: sh -c 'daemon & exec foxqueue up'
    subprocess.Popen(options.pop("stranger"))
if options.pop("server_dies", False):  # between two of the first questions
    warnings = supervisor.server_warnings
    def dies(broker):
        supervisor.server_warnings = warnings
        os.kill(broker.redis.info("server")["process_id"], signal.SIGKILL)
        return warnings(broker)
    supervisor.server_warnings = dies
if "lingers_s" in options:  # a slow end of the interpreter
    atexit.register(time.sleep, options.pop("lingers_s"))
slots.AGAIN_S = options.pop("again_s", 10.0)
try:
    sys.exit(getattr(supervisor, verb)(load_config(), **options))
except FoxqueueError as error:
    print(f"foxqueue: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


class Home:
    """One home: runs verbs in processes of their own, and ends all of them afterwards."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.directory = directory
        (directory / "worker.py").write_text(WORKER)
        (directory / "driver.py").write_text(DRIVER)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("FOXQUEUE_")}
        self.environ |= {"FOXQUEUE_HOME": str(directory / "home"), "STAND_IN": str(directory)}
        if url:
            self.environ["FOXQUEUE_URL"] = url
        self.config: Config = load_config(environ=self.environ, cwd=directory)
        self.started: list[subprocess.Popen[bytes]] = []
        self.err = directory / "err"

    def start(self, verb: str, **options: Any) -> subprocess.Popen[bytes]:
        if verb == "up":
            options = {
                "simulate": "2x24G",
                "worker_command": [sys.executable, str(self.directory / "worker.py")],
            } | options
        with self.err.open("ab") as err:
            process = subprocess.Popen(
                [sys.executable, self.directory / "driver.py", verb, json.dumps(options)],
                env=self.environ,
                cwd=self.directory,
                stderr=err,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def run(self, verb: str, **options: Any) -> int:
        return self.start(verb, **options).wait(60)

    def up(self, **options: Any) -> subprocess.Popen[bytes]:
        process = self.start("up", **options)
        until(lambda: up_seat(self.config).read().get("ready"), what="readiness", seconds=30)
        return process

    @property
    def said(self) -> str:
        return self.err.read_text() if self.err.exists() else ""

    def notes(self, what: str = "") -> list[tuple[str, str, int]]:
        file = self.directory / "notes"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(word, device, int(pid)) for word, device, pid in lines if word.startswith(what)]

    def workers(self) -> list[int]:
        return [pid for _, _, pid in self.notes("start") if running(pid)]

    def server_pid(self) -> int:
        return int(read_json(self.config.machine_dir / "server" / "server.json")["process"]["pid"])

    def kill_server(self) -> None:
        """SIGKILL, and wait until another one answers."""
        pid = self.server_pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.server_pid() != pid and find_server(self.config), what="the server again")

    def order(self, name: str, text: str = "") -> None:
        (self.directory / name).write_text(text)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        holder = up_seat(self.config).holder()  # a detached one
        if holder:
            holder.send(signal.SIGKILL)
        until(lambda: not up_seat(self.config).taken(), what="the end of up")
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)
        stop_server(self.config, kill_after_s=2)
        place = server_socket(self.config).parent
        if not place.is_relative_to(self.directory):
            shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(group_directory(self.config), ignore_errors=True)


def running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
