"""Looks at what foxqueue stands on and says what to do about what is wrong. It changes nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from foxqueue.broker import Broker, server_url
from foxqueue.config import Config, server_password
from foxqueue.connection import Connection
from foxqueue.devices import SeenDevice
from foxqueue.doctor import gpus, machine, server
from foxqueue.doctor.check import Check, Look, failed, make
from foxqueue.errors import FoxqueueError, InvalidInput, NoServer, ServerError, ServerUnavailable
from foxqueue.listening import neighbour
from foxqueue.urls import hide_password

__all__ = ["Check", "Report", "examine", "server_warnings"]


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        url: of the server, the password hidden; None when there is none.
        server: ``redis`` or ``valkey``; None when it does not answer.
    """

    url: str | None
    server: str | None
    version: str | None
    checks: list[Check]

    @property
    def healthy(self) -> bool:
        """Whether every required check is ok."""
        return all(check.ok for check in self.checks if check.required)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        checks = [{key: value for key, value in asdict(check).items() if key != "required"} for check in self.checks]
        return {"url": self.url, "server": self.server, "version": self.version, "checks": checks}


def examine(config: Config) -> Report:
    """Look at the server, the namespace, this machine and its devices. A driver that hangs costs 40 s, a server 10 s.

    Args:
        config: whose server, namespace and home.
    """
    url = hide_password(config.url) if config.url else None
    try:
        url = hide_password(server_url(config))
        broker, answers = _opened(config)
    except ServerError as error:
        return Report(url, None, None, [_no_server(config, error), *_machine(config, [])])
    try:
        product, version, checks, devices = _server(broker, answers)
    finally:
        broker.close()
    return Report(url, product, version, [*checks, *_machine(config, devices)])


def server_warnings(broker: Broker) -> list[str]:
    """Sentences about a server that may lose jobs: without persistence, or one that evicts keys."""
    return [f"{check.detail}: {check.cure}" for check in server.risks(broker)]


def _opened(config: Config) -> tuple[Broker, Check]:
    """A connection on which nothing was asked but what answers there: a damaged namespace is a finding, too."""
    password = server_password(config)
    connection = Connection(server_url(config), password)
    answers = Check("server", True, "answers", required=True)
    try:
        connection.test(1.0)
    except ServerUnavailable as error:
        if not error.definite or error.passing:
            connection.close()
            raise
        answers = failed("server", error, required=True)  # it refuses even PING, and says why: so it can be asked
    except BaseException:
        connection.close()
        raise
    return Broker(connection, config.namespace), answers


def _no_server(config: Config, error: ServerError) -> Check:
    if config.url or error.cure:
        where = config.sources.get("url", "--url")
        return Check("server", False, str(error), error.cure or f"start that server, or change {where}", required=True)
    if not isinstance(error, NoServer | ServerUnavailable):
        return Check("server", False, str(error), "set another FOXQUEUE_HOME, or FOXQUEUE_URL", required=True)
    cure = "run foxqueue up, or set FOXQUEUE_URL"
    other = neighbour()
    return Check("server", False, str(error), f"{cure} ({other})" if other else cure, required=True)


def _server(broker: Broker, answers: Check) -> tuple[str | None, str | None, list[Check], list[SeenDevice]]:
    """Product, version, checks and registered devices, as far as the server answers."""
    product, version = None, None
    checks: list[Check] = []
    devices: list[SeenDevice] = []
    try:
        with suppress(FoxqueueError):  # an access list that hides INFO: the check of the version tells
            product, version = server.identity(broker)
        for name, look in server.LOOKS.items():
            checks += make(name, partial(look, broker), name in server.REQUIRED)
        with suppress(FoxqueueError):  # the check of the workers has told it
            devices = server.devices(broker)
    except ServerUnavailable as error:  # it would let each further question wait in vain
        answers = failed("server", error, required=True)
    return product, version, [answers, *checks], devices


def _machine(config: Config, registered: list[SeenDevice]) -> list[Check]:
    """What concerns this machine and no server, except that devices served here need no NVIDIA driver."""
    served = gpus.served_here(registered)
    looks: dict[str, Look] = {
        "binding": gpus.binding,
        "nvml": partial(gpus.driver, served),
        "devices": lambda: _devices(served),
        "state": partial(machine.state, config),
        "filesystem": partial(machine.state_file_system, config, os.environ),
        "disk": partial(machine.disk, config),
        "files": machine.files,
    }
    return [check for name, look in looks.items() for check in make(name, look)]


def _devices(served: str) -> list[Check]:
    try:
        return list(gpus.devices(served, os.environ))
    except InvalidInput as error:
        return [Check("devices", False, str(error), "correct CUDA_VISIBLE_DEVICES")]
