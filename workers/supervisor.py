"""`foxqueue up`, `down` and `server`: everything of one home on one machine, started and ended together."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from foxqueue.access import Access, instructions
from foxqueue.broker import Broker
from foxqueue.config import Config, own_password, server_record
from foxqueue.doctor import server_warnings
from foxqueue.errors import AlreadyRunning, FoxqueueError, InvalidInput, NoServer, ServerUnavailable
from foxqueue.gpu import Device
from foxqueue.listening import neighbour
from foxqueue.server import RunningServer, find_server, stop_server
from foxqueue.units import format_memory
from workers.delivery import end_abandoned
from workers.detach import Report, detached
from workers.keeper import Keeper, Seat, say, server_seat, up_seat
from workers.leftovers import (
    ask,
    await_end,
    end_runs,
    end_workers,
    left_workers,
    lone_runs,
    recorded_workers,
    served_otherwise,
    wait,
)
from workers.offered import OFF, Offered
from workers.signals import StopSignals
from workers.slots import WORKER_COMMAND, Slots
from workers.strays import Strays

UP_ENDS_S = 75.0  # how long `foxqueue server` waits for a live `up`
SERVER_AGAIN_S = 30.0  # that a server which died while `up` began may take to answer again
DOWN_WAITS_S = 130.0  # an `up` drains for 80 s at most, then ends runs without a worker and stops its server
_LOOK_S = 0.2  # ended children cut it short


def up(
    config: Config,
    *,
    simulate: str | None = None,
    cpu: int = 0,
    slots: int = 0,
    enforce: str = OFF,
    lease_ttl_ms: int | None = None,
    group: str | None = None,
    bind: str | None = None,
    detach: bool = False,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> int:
    """Run a worker per device, and our own server unless one is configured, until a signal ends it.

    SIGTERM, SIGINT or SIGHUP drains: workers stop claiming and wait up to 60 s for their jobs. A second one ends
    the jobs at once, a third kills the workers.

    Args:
        config: home, server and namespace.
        simulate: simulated GPUs in place of real ones, like ``2x24G``.
        cpu: number of CPU slots.
        slots: into how many slots each GPU is parted, 2 to 16; 0 for none.
        enforce: what is done about a run that uses more memory than it declared: off, warn or kill.
        lease_ttl_ms: the lease's length, for an empty namespace.
        group: a Unix group whose members may use our own server.
        bind: ``HOST:PORT`` that our own server listens on besides, with a password.
        detach: return as soon as all workers have registered, and go on in the background.
        worker_command: what is run as a worker; ``--gpu UUID`` and the device options are appended.

    Returns:
        Exit code: 0 after a signal (detached: once all is up), 1 when other workers serve all devices from the
        start, or when something could not be ended.

    Raises:
        AlreadyRunning: another `up` serves this home.
        NoDevice, InvalidInput: about the devices asked for, ``group`` or ``bind``.
        ServerError, SettingsDiffer: about the server and its namespace.
    """
    access = _access(config, group, bind)
    seat = up_seat(config)
    run = _Up(config, access, Offered(simulate, cpu, slots, enforce), lease_ttl_ms, worker_command, seat)
    if not detach:
        return run.run(lambda _fact: None)
    seat.take()  # a refusal is told before anything is forked
    seat.leave()
    status = detached(config.machine_dir / "up.log", run.run)
    if status == 0 and access:
        _instruct(config, access)  # the log's reader may be anybody, who reads this is at a terminal
    return status


def down(config: Config) -> int:
    """End what runs for this home on this machine: `up`, workers that an `up` left, runs without one, our own server.

    Returns:
        Exit code: 0 when nothing runs any more, 1 when something does not end.
    """
    seat = up_seat(config)
    was_up = seat.taken()
    workers = [] if was_up else recorded_workers(seat)
    ended = _end_seat(seat, DOWN_WAITS_S) if was_up else True
    workers += left_workers(config)
    ended = end_workers(workers) and ended
    runs = lone_runs(config) if ended else []
    ended = ended and end_runs(runs)
    notices = end_abandoned(str(config.home)) if ended else []
    serving = server_seat(config)
    was_serving = serving.taken()
    if was_serving:
        ended = ended and _end_seat(serving, DOWN_WAITS_S)
    stopped = ended and stop_server(config)
    if not (was_up or was_serving or workers or runs or notices or stopped):
        say("nothing was running")
    elif ended:
        say("all ended; jobs and data are kept")
    return 0 if ended else 1


def serve(config: Config, *, group: str | None = None, bind: str | None = None) -> int:
    """Run our own server in the foreground, and again whenever it dies, until a signal ends it.

    A server that runs already is watched. At the end it is stopped once a live `up` of this home has drained.

    Args:
        config: whose home.
        group: a Unix group whose members may use it.
        bind: ``HOST:PORT`` that it listens on besides, with a password.

    Returns:
        Exit code 0.

    Raises:
        InvalidInput: a server is configured, so ours is not wanted; or about ``group`` and ``bind``.
        AlreadyRunning: another `foxqueue server` serves this home.
        ServerError: it cannot be started.
    """
    if config.url:
        raise InvalidInput(
            f"a server is configured ({config.shown_url}, {config.sources.get('url', '--url')}): nothing is started"
        )
    access = _access(config, group, bind)
    seat = server_seat(config)
    seat.take()
    try:
        with StopSignals() as signals:
            keeper = _keeper(config, access, signals)
            if keeper is None:
                return 0
            try:
                say(f"our own server answers on {keeper.server.url}")
                while not signals.stopping():
                    signals.wait(1.0)
                _await_up(config, signals)
            finally:
                keeper.close()
                stop_server(config)
    finally:
        seat.leave()
    return 0


class _Up:
    """One `up`, from taking the seat to leaving it."""

    def __init__(
        self,
        config: Config,
        access: Access | None,
        offered: Offered,
        lease_ttl_ms: int | None,
        command: Sequence[str],
        seat: Seat,
    ) -> None:
        self._config = config
        self._access = access
        self._offered = offered
        self._lease_ttl_ms = lease_ttl_ms
        self._command = command
        self._seat = seat
        self._noted: dict[str, Any] = {}

    def run(self, report: Report) -> int:
        """Until a signal ends it; see :func:`up`."""
        self._seat.take()
        try:
            with StopSignals() as signals:
                return self._with_server(Strays(self._config), signals, report)
        finally:
            self._seat.leave()

    def _with_server(self, strays: Strays, signals: StopSignals, report: Report) -> int:
        config = self._config
        devices, how = self._offered.devices(config), (self._offered.flags, self._command)
        other = served_otherwise(config, devices)
        if other is not None:
            what = "in slots" if other.slot is None else "as a whole"
            raise AlreadyRunning(
                f"workers of an earlier foxqueue up serve {other.of_slot.ref} {what}: run foxqueue down first"
            )
        if config.url:
            opened = self._open(config.url, config.password)
            return self._with_workers(opened, Slots(config, config.url, devices, strays, *how), signals, report)
        keeper = strays.keeper = _keeper(config, self._access, signals)
        if keeper is None:
            return 0
        try:
            url = keeper.server.url
            opened = self._open_again(url, signals)
            return self._with_workers(opened, Slots(config, url, devices, strays, *how), signals, report)
        finally:
            keeper.close()
            if not server_seat(config).taken():
                stop_server(config)

    def _open(self, url: str, password: str | None) -> tuple[Broker, int]:
        """A connection to a namespace that can be used, and the server's time before any worker of ours."""
        broker = Broker.connect(url, self._config.namespace, password, timeout_s=2.0)
        try:
            broker.configure(self._lease_ttl_ms)
            for warning in server_warnings(broker):
                say(f"warning: {warning}")
            return broker, broker.server_time_ms()
        except BaseException:
            broker.close()
            raise

    def _open_again(self, url: str, signals: StopSignals) -> tuple[Broker, int]:
        """The same for our own server, which may die just now, and is then started again."""
        deadline = time.monotonic() + SERVER_AGAIN_S
        while True:
            try:
                return self._open(url, own_password(self._config))
            except ServerUnavailable:
                if time.monotonic() > deadline or signals.stopping():
                    raise
                signals.wait(_LOOK_S)

    def _with_workers(self, opened: tuple[Broker, int], slots: Slots, signals: StopSignals, report: Report) -> int:
        broker, since_ms = opened
        try:
            for slot in slots.slots:
                say(f"{slot.device.ref}  {slot.device.name}  {_memory(slot.device)}{slot.device.uuid}")
            if self._offered.enforce != OFF and not any(slot.device.kind == "nvml" for slot in slots.slots):
                say("warning: --enforce-memory: there is no real GPU here, and so no memory to measure")
            try:
                code = self._watch(slots, lambda: _registered(broker, slots, since_ms), signals, report)
            finally:
                if any(slot.alive() for slot in slots.slots):
                    say("ending: running jobs have 60 s to finish (a second signal ends them now)")
                ended = slots.end(signals)
            return code if ended else 1
        finally:
            broker.close()

    def _watch(self, slots: Slots, registered: Callable[[], bool], signals: StopSignals, report: Report) -> int:
        ready = False
        slots.tend()
        report({"started": len(slots.slots)})
        while not signals.stopping():
            slots.tend()
            if slots.hopeless():
                say("every worker refused: nothing is left to run")
                return 1
            if not ready and slots.wanted() and registered():
                ready = True
                text = f"{len(slots.wanted())} of {len(slots.slots)} workers ready"
                say(text)
                report({"ready": text})
            self._note(slots, ready)
            signals.wait(_LOOK_S)
        return 0

    def _note(self, slots: Slots, ready: bool) -> None:
        """Keep up.json true: `down` reads who the workers are when this process was killed."""
        record: dict[str, Any] = {
            "namespace": self._config.namespace,
            "ready": ready,
            "devices": [slot.device.uuid for slot in slots.slots],
            "workers": [slot.process.to_dict() for slot in slots.slots if slot.process],
        }
        if record == self._noted:
            return
        self._noted = record
        try:
            self._seat.write(record)
        except FoxqueueError as error:
            say(f"{error}; going on without it")


def _memory(device: Device) -> str:
    return f"{format_memory(device.memory_total_mib)}  " if device.kind == "nvml" else ""  # other names tell it


def _access(config: Config, group: str | None, bind: str | None) -> Access | None:
    """What our own server is to be opened to; None leaves one that runs as it is."""
    if group is None and bind is None:
        return None
    if config.url:
        raise InvalidInput(
            f"--group and --bind are for our own server, and another one is configured ({config.shown_url}, "
            f"{config.sources.get('url', '--url')})"
        )
    return Access.of(group, bind)


def _instruct(config: Config, access: Access) -> None:
    for sentence in instructions(config, access, whole=sys.stderr.isatty()):
        say(sentence)


def _keeper(config: Config, access: Access | None, signals: StopSignals) -> Keeper | None:
    """Our own server, started or found; None when a signal came meanwhile."""
    recorded = Access.recorded(server_record(config))
    if recorded != (access or Access()) and left_workers(config) and not find_server(config):
        raise AlreadyRunning(
            f"workers of an earlier foxqueue up know the server as it was ({recorded}): run foxqueue down first"
        )
    try:
        keeper = Keeper(config, access, signals.stopping)
        _tell_access(config, keeper.server)
        return keeper
    except NoServer as error:
        hint = neighbour()
        raise (NoServer(f"{error}. {hint}") if hint else error) from error
    except ServerUnavailable:
        if signals.stopping():
            return None
        raise


def _tell_access(config: Config, server: RunningServer) -> None:
    if server.started_here and server.before not in (Access(), server.access):
        say(f"our own server is {server.access} now, it was {server.before}")
    elif not server.started_here and server.access != Access():
        say(f"our own server runs already, and stays as it was started until foxqueue down: {server.access}")
    _instruct(config, server.access)


def _registered(broker: Broker, slots: Slots, since_ms: int) -> bool:
    """Whether each device's worker has registered since we started."""
    devices = [slot.device.uuid for slot in slots.wanted()]
    client: Any = broker.redis  # its types allow for text replies, which ours never gives
    try:
        with broker.connection.errors("gpus"):
            rows = client.hmget(broker.keys.gpus, devices)
            workers = [row.split(b" ", 1)[0] for row in rows if row]
            if len(workers) < len(devices):
                return False
            scores = client.zmscore(broker.keys.workers, workers)
    except ServerUnavailable:
        return False
    return all(score is not None and float(score) >= since_ms for score in scores)


def _await_up(config: Config, signals: StopSignals) -> None:
    seat = up_seat(config)
    if not seat.taken():
        return
    say(f"foxqueue up still runs: waiting up to {UP_ENDS_S:g} s until it has ended (again: stop now)")
    deadline = time.monotonic() + UP_ENDS_S
    while seat.taken() and time.monotonic() < deadline and signals.count < 2:
        signals.wait(_LOOK_S)


def _end_seat(seat: Seat, seconds: float) -> bool:
    """SIGTERM to the holder, and wait until it is gone; false when it is not."""
    wait(lambda: seat.holder() is not None or not seat.taken(), 2.0, "")
    process = seat.holder()
    if process is None or not ask(process):
        if not seat.taken():
            return True
        say(f"{seat.title} runs where it cannot be signalled from here (another container?): end it there")
        return False
    # Not until its seat is free: it leaves that some moments before its process is gone.
    if await_end([process], seconds, f"waiting for {seat.title} (pid {process.pid}) to end"):
        return True
    say(f"{seat.title} (pid {process.pid}) did not end within {seconds:g} s")
    return False
