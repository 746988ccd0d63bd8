"""What goes to the scripts and what comes back, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NamespaceSettings:
    """What belongs to the namespace: lease, beat and margin in ms, ageing in us a priority level."""

    instance: str
    schema: int
    ttl_ms: int
    beat_ms: int
    margin_ms: int
    aging_us: int
    max_losses: int


@dataclass(frozen=True)
class NewJob:
    """A job to enqueue. ``spec`` is packed; ``env`` is stored once per content."""

    name: str
    shape: str
    priority: int
    retries: int
    retry_delay_ms: int
    spec: bytes
    env: dict[str, str]


@dataclass(frozen=True)
class Reply:
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

    @classmethod
    def of(cls, reply: Reply) -> Claimed:
        """Read the answer ``ok`` of a claim."""
        number, fence, born, attempt, losses, delay, digest, spec = reply.rest
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
        )
