"""What goes to the scripts and what comes back, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, NamedTuple

from foxqueue.codec import pack
from foxqueue.settings import DEFAULTS, MODEL_PRIORITIES, PRIORITY_FIELD, ignored

_TEXTS = ("ignore_processes",)


@dataclass(frozen=True)
class NamespaceSettings:
    """What belongs to the namespace: lease, beat and margin in ms, ageing in us a priority level, retention.

    Attributes:
        max_losses: lost runs after which a job ends failed (poison).
        max_result_bytes: of what a Python call may return, packed.
        retain_finished_ms, retain_finished_count: how long, and how many, succeeded and cancelled jobs are kept.
        retain_failed_ms, retain_failed_count: the same for failed ones.
        max_unfinished, max_unfinished_user: how many jobs may wait or run, in all and of one user.
        expires_ms: after which a job that has not started is cancelled, where it says nothing itself.
        occupied_over_mib: memory of strangers' processes above which a GPU is occupied.
        ignore_processes: command names with commas between them that are no strangers.
        admission_samples: how many looks must show the free memory that a job is given.
        memory_return_ms: how long a run's memory may take to come back before its GPU is dirty.
        fast_failures: runs in a row that fail at once with an error of CUDA's driver before a GPU is quarantined.
        priorities: model type in lower case -> 0-9.
    """

    instance: str
    schema: int
    ttl_ms: int
    beat_ms: int
    margin_ms: int
    aging_us: int
    max_losses: int
    max_result_bytes: int
    retain_finished_ms: int
    retain_finished_count: int
    retain_failed_ms: int
    retain_failed_count: int
    max_unfinished: int
    max_unfinished_user: int
    expires_ms: int
    occupied_over_mib: int
    ignore_processes: str
    admission_samples: int
    memory_return_ms: int
    fast_failures: int
    priorities: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, reply: Reply) -> NamespaceSettings:
        """Read the answer of configure.

        Raises:
            ValueError: a setting is no number.
        """
        found = dict(zip(map(bytes.decode, reply.rest[::2]), map(bytes.decode, reply.rest[1::2]), strict=True))
        known = {**DEFAULTS, **{one.name: found[one.name] for one in fields(cls) if one.name in found}}
        read: dict[str, Any] = {name: str(known.pop(name)) for name in _TEXTS}
        read |= {name: int(value) for name, value in known.items()}
        priorities = {
            name.removeprefix(PRIORITY_FIELD): int(value)
            for name, value in found.items()
            if name.startswith(PRIORITY_FIELD)
        }
        return cls(reply.instance, **read, priorities={**MODEL_PRIORITIES, **priorities})

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of ignore_processes."""
        return ignored(self.ignore_processes)


class NewJob(NamedTuple):
    """A job to enqueue.

    Attributes:
        shape: what it asks for, with its group.
        spec: packed.
        more: what few jobs have, lines ``name=value``: see ``enqueue.lua``.
    """

    name: str
    shape: str
    priority: int
    retries: int
    retry_delay_ms: int
    spec: bytes
    more: str = ""


@dataclass(frozen=True)
class Environment:
    """A captured environment, kept once per content: packed, and its sha256."""

    digest: str
    packed: bytes

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Environment:
        """Pack one. The same variables have the same digest, whatever their order."""
        packed = pack(dict(sorted(variables.items())))
        return cls(sha256(packed).hexdigest(), packed)


class Reply(NamedTuple):
    """A script's answer: the word, the instance it was given in, and what else belongs to the word."""

    word: str
    instance: str
    rest: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, answer: Any) -> Reply:
        """Read what a script returned."""
        word, instance, *rest = answer
        return cls(word.decode(), instance.decode("utf-8", "replace"), tuple(rest))


@dataclass(frozen=True)
class Claimed:
    """A job that a claim returned: it runs, and this process owns it under ``fence``."""

    instance: str
    number: int
    fence: str
    born: str
    attempt: int
    losses: int
    retry_delay_ms: int
    env_digest: str
    spec: bytes
    shape: str = ""

    @classmethod
    def of(cls, reply: Reply) -> Claimed:
        """Read the answer ``ok`` of a claim."""
        number, fence, born, attempt, losses, delay, digest, spec, shape = reply.rest
        return cls(
            reply.instance,
            int(number),
            fence.decode(),
            born.decode(),
            int(attempt),
            int(losses),
            int(delay),
            digest.decode(),
            spec,
            shape.decode(),
        )
