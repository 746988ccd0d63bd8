"""Devices and runs without workers: what a worker would write, written by hand."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from queue_driver import Queue

from foxqueue.broker import Claimed
from foxqueue.codec import pack


def register(queue: Queue, uuid: str = "SIM-1", worker: str = "w1", sequence: int = 1, **look: Any) -> None:
    """Register a device as its worker would: a free simulated one of 24 GiB, unless told otherwise."""
    seen = {
        "uuid": uuid,
        "index": 0,
        "name": "simulated GPU 24G",
        "kind": "simulated",
        "memory_total_mib": 24576,
        "memory_free_mib": 24576,
        "utilization": None,
        "state": "free",
        "detail": "",
        "job": None,
        "worker_state": "idle",
        "host": socket.gethostname(),
        "pid": 4711,
        "since_ms": 1796056706600,
        **look,
    }
    assert queue.send(queue.broker.register_call(worker, uuid, sequence, pack(seen))) == "ok"


def silence(queue: Queue, worker: str) -> None:
    """Let a worker be unheard of for an hour."""
    queue.broker.redis.zadd(queue.broker.keys.workers, {worker: queue.broker.server_time_ms() - 3_600_000})


def output(queue: Queue, run: Claimed, offset: int, data: bytes, keep_from: int = 0) -> None:
    """A piece of a run's output."""
    assert queue.send(queue.broker.log_call(run.number, run.fence, offset, keep_from, data)) == "ok"


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Puts the loggers back as they were: the command line sets them up for its own process."""
    loggers = [logging.getLogger(name) for name in ("foxqueue", "workers")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    try:
        yield
    finally:
        for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)


@contextlib.contextmanager
def serving(serve_one: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of a port that is no Redis server's.

    Args:
        serve_one: called with each connection, in a thread of its own.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve_one, args=(link,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
