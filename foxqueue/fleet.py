"""Questions about devices: what they are, who has them by a lease, and who waits in line for one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foxqueue.devices import SeenDevice, Told, device_dict, holder_dict, leased_device, seen_device, slot_of, whole_of
from foxqueue.errors import ServerError, ServerRefused, ServerUnavailable
from foxqueue.holders import Holder, lease_token, read_holder
from foxqueue.job import rfc3339
from foxqueue.paging import Reader
from foxqueue.replies import fields, pairs, text, whole

LATELY_MS = 15_000  # unless the settings say otherwise
LINE_SHOWN = 1000  # who stands in the line of one device, the first ones

_KINDS = ("nvml", "simulated", "cpu")


@dataclass(frozen=True)
class Seen:
    """The devices at one moment.

    Attributes:
        devices: every registered one, those whose worker is gone too, by host and index.
        paused: by whom and why the namespace (``*``) and devices are paused.
        now_ms: the server's clock.
        unserved: devices that somebody has by a lease and that no worker has registered.
    """

    devices: list[SeenDevice]
    paused: dict[str, str]
    now_ms: int
    unserved: Sequence[SeenDevice] = ()

    @property
    def leased(self) -> list[SeenDevice]:
        """Those that somebody has by a lease."""
        return [device for device in (*self.devices, *self.unserved) if device.holder is not None]


@dataclass(frozen=True)
class Waiter:
    """Who stands in line for a lease.

    Attributes:
        token: of the lease that is waited for.
        holder: who it is.
        needs: how many devices.
        places: UUID of each device that would do -> place in its line, 1 for the first.
    """

    token: str
    holder: Holder
    needs: int
    places: Mapping[str, int]


class Fleet:
    """Read-only questions to one namespace.

    Args:
        reader: of the namespace.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._keys = reader.keys

    def seen(self) -> Seen:
        """The devices, what is paused, and the server's clock."""
        keys = self._keys
        seen, grants, holders, withheld, pauses, alive, time = self._reader.ask(
            [
                ("HGETALL", keys.gpus),
                ("HGETALL", keys.granted),
                ("HGETALL", keys.holders),
                ("HGETALL", keys.withheld),
                ("HGETALL", keys.paused),
                ("ZRANGE", keys.workers, 0, -1, "WITHSCORES"),
                ("TIME",),
            ]
        )
        now = whole(time[0]) * 1000 + whole(time[1]) // 1000
        since = now - self._lately_ms()
        heard = {text(worker): int(ms) for worker, score in pairs(alive) if math.isfinite(ms := float(score))}
        records = {text(uuid): record for uuid, record in pairs(seen)}
        granted, paused = fields(grants), fields(pauses)
        heard_of, declared = self._second_look(granted, records)
        told = Told(granted, fields(holders), heard_of, fields(withheld), declared, paused)
        read = (seen_device(uuid, record, told, heard, since) for uuid, record in records.items())
        unserved = (leased_device(uuid, told) for uuid in granted if whole_of(uuid) not in {*map(whole_of, records)})
        return Seen(_sorted(read), paused, now, _sorted(unserved))

    def _second_look(self, granted: Mapping[str, str], records: Iterable[str]) -> tuple[frozenset[str], dict[str, int]]:
        """Of the devices that are granted by leases those whose lease is alive, and what slots have declared."""
        leased = [uuid for uuid, grant in granted.items() if lease_token(grant)]
        slotted = sorted({whole_of(uuid) for uuid in records if slot_of(uuid) is not None})
        commands = [("EXISTS", self._keys.lease(uuid)) for uuid in leased]
        answers = self._reader.ask([*commands, *(("HGETALL", self._keys.declared(uuid)) for uuid in slotted)])
        heard_of = frozenset(uuid for uuid, exists in zip(leased, answers, strict=False) if exists)
        declared: dict[str, int] = {}
        for uuid, found in zip(slotted, answers[len(leased) :], strict=True):
            declared |= {f"{uuid}/{slot}": whole(mib) for slot, mib in fields(found).items()}
        return heard_of, declared

    def _lately_ms(self) -> int:
        """How long ago a living worker was heard of at most."""
        try:
            settings = self._reader.broker.settings()
        except (ServerUnavailable, ServerRefused):
            raise
        except (ServerError, ValueError):  # damaged settings must not hide the devices
            return LATELY_MS
        return max(3 * settings.beat_ms, settings.ttl_ms)

    def waiters(self, seen: Seen) -> list[Waiter]:
        """Who stands in line for leases, the first in line first.

        Args:
            seen: the devices, of whose lines they are.
        """
        devices = [device.uuid for device in (*seen.devices, *seen.unserved)]
        lines = self._reader.ask([("ZRANGE", self._keys.lease_waiting(uuid), 0, LINE_SHOWN - 1) for uuid in devices])
        standing = {uuid: [text(token) for token in line or []] for uuid, line in zip(devices, lines, strict=True)}
        tokens = list(dict.fromkeys(token for line in standing.values() for token in line))
        told = self._reader.ask([("HMGET", self._keys.waiter(token), "holder", "needs") for token in tokens])
        # Whose hash has run out is gone: it is taken out of the line by who comes next.
        alive = {token: found for token, found in zip(tokens, told, strict=True) if found and found[0] is not None}
        places: dict[str, dict[str, int]] = {token: {} for token in alive}
        for uuid, line in standing.items():
            for place, token in enumerate((token for token in line if token in alive), 1):
                places[token][uuid] = place
        waiters = [
            Waiter(token, _waiting(text(holder)), max(whole(needs), 1), places[token])
            for token, (holder, needs) in alive.items()
        ]
        return sorted(waiters, key=lambda waiter: min(waiter.places.values()))

    def gpus(self, seen: Seen) -> list[dict[str, Any]]:
        """The JSON objects of all devices."""
        return [device_dict(device, rfc3339) for device in (*seen.devices, *seen.unserved)]

    def workers(self, seen: Seen) -> list[dict[str, Any]]:
        """The JSON objects of live workers, one a device."""
        return [
            {
                "id": device.worker,
                "host": device.host,
                "pid": device.pid,
                "device": device.uuid,
                "state": device.worker_state,
                "job": device.job,
                "since": rfc3339(device.since_ms),
            }
            for device in seen.devices
            if device.live
        ]

    def leases(self, seen: Seen) -> list[dict[str, Any]]:
        """The JSON objects of leases, one a device."""
        return [
            {"uuid": device.uuid, "ref": device.short, **holder_dict(device.holder, rfc3339)}
            for device in seen.leased
            if device.holder is not None
        ]

    def in_line(self, waiters: Iterable[Waiter]) -> list[dict[str, Any]]:
        """The JSON objects of who waits for leases."""
        names = ("user", "host", "pid", "label")
        found = []
        for waiter in waiters:
            who = holder_dict(waiter.holder, rfc3339)
            found.append({**{name: who[name] for name in names}, "needs": waiter.needs, "places": dict(waiter.places)})
        return found


def lease_dict(holder: Holder) -> dict[str, Any]:
    """The JSON object of who has a device by a lease."""
    return holder_dict(holder, rfc3339)


def _waiting(holder: str) -> Holder:
    """Who waits, by the text that a lease of theirs would have."""
    found = read_holder("0 lease:0", holder)
    assert found is not None
    return replace(found, since_ms=None, fence=None)


def _sorted(devices: Iterable[SeenDevice | None]) -> list[SeenDevice]:
    """By host, kind and number, slots and instances of one GPU behind each other."""
    order = {kind: at for at, kind in enumerate(_KINDS)}

    def place(device: SeenDevice) -> tuple[str, int, list[int], str]:
        numbers = [] if device.short == device.uuid else [int(part) for part in re.findall("[0-9]+", device.short)]
        return device.host, order.get(device.kind, 9), numbers, device.uuid

    return sorted((device for device in devices if device), key=place)
