"""What one GpuLeases knows: the devices, the settings of the namespace, the shapes of its jobs, and what it holds."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foxqueue.broker import Broker, NamespaceSettings, Reply
from foxqueue.config import Config
from foxqueue.errors import InvalidInput
from foxqueue.inspector import Inspector
from foxqueue.leases.places import Place, Places
from foxqueue.leases.spot import Spot
from foxqueue.locks import lock_places
from foxqueue.requirement import fits, parse_shape
from foxqueue.seat import ClaimHold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foxqueue.leases.lease import LeaseBase

READ_KEPT_S: Final = 30.0  # what workers publish and the settings are read again after so long
SURVEY_KEPT_S: Final = 300.0  # NVML's inventory, which takes longer


class Core:
    """The part of GpuLeases and AsyncGpuLeases that does not wait for anybody.

    Args:
        config: whose home and namespace it is.
        broker: of the queue.
        places: its devices.

    Attributes:
        settings: of the namespace, when they have been read.
        contended: how often an acquisition was refused, or had to wait, since the last grant; told with the next.
        held: leases of this process that are not released, by their tokens.
    """

    def __init__(self, config: Config, broker: Broker, places: Places) -> None:
        self.config = config
        self.broker = broker
        self.places = places
        self.contended = 0
        self.held: dict[str, LeaseBase] = {}
        self.owner: object = None  # the GpuLeases, kept while this is
        self.lock = threading.RLock()
        self._refreshing = threading.Lock()
        self._inspector = Inspector(broker)
        self._settings: NamespaceSettings | None = None
        self._version = "?"
        self._shapes: list[str] = []
        self._read_at = self._surveyed_at = -1e9
        self._locks: dict[str, Sequence[Path]] = {}
        self._spots: dict[str, list[Spot]] = {}

    @property
    def settings(self) -> NamespaceSettings:
        """Of the namespace; after :meth:`refresh`."""
        assert self._settings is not None
        return self._settings

    def is_fresh(self) -> bool:
        """Whether what is known of the devices is new enough."""
        return time.monotonic() - self._read_at < READ_KEPT_S

    def refresh(self) -> None:
        """Read settings and devices again. Takes a while, and asks the server.

        Raises:
            ServerUnavailable, ServerRefused: the server cannot be asked.
            InvalidInput, GpuNotFound: as of :class:`foxqueue.leases.places.Places`; or the namespace's lease is shorter
            than two beats.
        """
        asked = time.monotonic()
        with self._refreshing:
            if self._read_at >= asked:  # by another thread, while this one waited for it
                return
            began = time.monotonic()
            if began - self._surveyed_at >= SURVEY_KEPT_S:
                self.places.survey()
                self._surveyed_at = began
            self._settings = _checked(self.broker.settings())
            self.places.learn(self._inspector.devices())
            self._read_at = began

    def look_again(self) -> None:
        """Something that should be there was not found: read all anew."""
        self._surveyed_at = -1e9
        self.refresh()

    # --- devices to try --------------------------------------------------------------------------------

    def take_spot(self, place: Place) -> Spot:
        """Something to try a device with; :meth:`put_spot` gives it back.

        Raises:
            NoDevice, InvalidInput: there is no place for lock files.
        """
        with self.lock:
            kept = self._spots.get(place.uuid)
            if kept:
                spot = kept.pop()
                spot.place = place
                return spot
            return Spot(place, self._hold(place) if place.here else None)

    def put_spot(self, spot: Spot) -> None:
        """Keep it for the next acquisition; its lock is dropped."""
        spot.unlock()
        with self.lock:
            self._spots.setdefault(spot.place.uuid, []).append(spot)

    def _hold(self, place: Place) -> ClaimHold:
        kind = place.device.kind
        if kind not in self._locks:
            self._locks[kind] = lock_places(kind, self.config.machine_dir, os.environ)
        return ClaimHold(self.config, place.device, place.host, self.broker, self._locks[kind])

    # --- jobs that may rank before ---------------------------------------------------------------------

    @property
    def version(self) -> str:
        """Of the shapes that are known."""
        return self._version

    def learn_shapes(self, reply: Reply) -> None:
        """Take the shapes that an answer ``shapes`` brought."""
        self._version = reply.rest[0].decode()
        self._shapes = [shape.decode() for shape in reply.rest[1:]]

    def fitting(self, spots: Sequence[Spot]) -> list[str]:
        """The shapes of jobs that all of these devices could take now."""
        return [shape for shape in self._shapes if all(_takes(spot, shape) for spot in spots)]

    # --- leases ----------------------------------------------------------------------------------------

    def leases(self) -> list[LeaseBase]:
        """Those of this process that are not released."""
        with self.lock:
            return [lease for lease in self.held.values() if lease.pid == os.getpid()]

    def forked(self) -> None:
        """In a forked process: the parent goes on with its locks, its leases and the threads of its probes."""
        self.lock, self.held, self._spots = threading.RLock(), {}, {}
        self._refreshing = threading.Lock()

    def close(self) -> None:
        """Close connections and what looked at devices."""
        with self.lock:
            spots, self._spots = self._spots, {}
        for kept in spots.values():
            for spot in kept:
                spot.close()
        self.broker.close()


def _takes(spot: Spot, shape: str) -> bool:
    need, kind, seen = parse_shape(shape), spot.place.device.kind, spot.seen
    return need is not None and fits(need, kind, seen.memory_total_mib) and fits(need, kind, seen.memory_free_mib)


def _checked(settings: NamespaceSettings) -> NamespaceSettings:
    if settings.ttl_ms < 2 * settings.beat_ms:
        raise InvalidInput(
            f"leases of this namespace last {settings.ttl_ms} ms and are renewed every {settings.beat_ms} ms (ttl_ms, "
            "beat_ms of its settings): one late beat would lose them; a lease must last two beats at least"
        )
    return settings
