"""The settings of a namespace as people name, write and read them. Pure.

Their defaults stand in the Lua files that use them; here is what each means and may be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foxqueue.errors import InvalidInput
from foxqueue.units import parse_duration, parse_priority

PRIORITY = "priority."
PRIORITY_FIELD = "priority:"  # in the hash, before the model type
OFF = 10**15  # ms, or jobs: longer than anything lasts, and exact in Lua
AGING_OFF_US = 365 * 86400 * 1_000_000  # a level of priority is worth a year
MAX_MODEL = 64  # characters of a model type
MODEL_PRIORITIES = {"dqn": 8, "ppo": 8, "mamba-2": 5, "tft": 5, "tlob": 2, "liquid": 2}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: for people.
        field: in the hash ``settings``.
        allowed: for messages.
        about: what it does, one sentence.
        parse: text as written -> number.
        show: number -> text that parse understands.
    """

    name: str
    field: str
    allowed: str
    about: str
    parse: Callable[[str], int]
    show: Callable[[int], str]

    def read(self, text: str) -> str:
        """The field's text for what somebody wrote.

        Raises:
            InvalidInput: it is not allowed.
        """
        try:
            return str(self.parse(text.strip()))
        except (InvalidInput, ValueError) as error:
            raise InvalidInput(f"{self.name} {text!r} is not possible: give {self.allowed}, or default") from error


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 15 and least <= int(text) <= most):
            raise ValueError(text)
        return int(text)

    return parse


def _count(text: str) -> int:
    return OFF if text.lower() == "off" else _whole(0, 10**9)(text)


def _limit(text: str) -> int:
    return OFF if text.lower() == "off" else _whole(1, 10**9)(text)


def _age(text: str) -> int:
    if text.lower() == "off":
        return OFF
    seconds = parse_duration(text)
    if seconds < 1:
        raise ValueError(text)
    return round(seconds * 1000)


def _aging(text: str) -> int:
    if text.lower() == "off":
        return AGING_OFF_US
    seconds = parse_duration(text)
    if not 1 <= seconds <= 30 * 86400:
        raise ValueError(text)
    return round(seconds * 1_000_000)


def _size(text: str) -> int:
    units = {"K": 1024, "M": 1024**2}
    number, unit = text[:-1], text[-1:].upper()
    if unit not in units:
        raise ValueError(text)
    return _whole(1, 64 * 1024**2)(str(_whole(1, 65536)(number) * units[unit]))


def _shown_age(ms: int) -> str:
    return "off" if ms >= OFF else _exactly(ms / 1000)


def _shown_size(size: int) -> str:
    return f"{size // 1024**2}M" if size % 1024**2 == 0 else f"{size // 1024}K"


def _exactly(seconds: float) -> str:
    """A time that reads back as the same one."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{round(seconds * 1000)}ms"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "aging",
            "aging_us",
            "a time from 1s to 30d, or off",
            "How long a wait is worth one level of priority; counts for jobs queued from then on.",
            _aging,
            lambda us: "off" if us >= AGING_OFF_US else _exactly(us / 1_000_000),
        ),
        Setting(
            "max_unfinished",
            "max_unfinished",
            "a number of jobs above 0, or off",
            "How many jobs may wait or run; more are refused.",
            _limit,
            lambda count: "off" if count >= OFF else str(count),
        ),
        Setting(
            "max_unfinished_user",
            "max_unfinished_user",
            "a number of jobs above 0, or off",
            "How many jobs of one user may wait or run.",
            _limit,
            lambda count: "off" if count >= OFF else str(count),
        ),
        Setting(
            "expires",
            "expires_ms",
            "a time from 1s to 365d, or off",
            "Jobs that have not started after so long are cancelled, where --expires says nothing else.",
            _age,
            _shown_age,
        ),
        Setting(
            "max_losses",
            "max_losses",
            "1 to 1000",
            "Lost runs after which a job ends failed (poison).",
            _whole(1, 1000),
            str,
        ),
        Setting(
            "max_result",
            "max_result_bytes",
            "a size from 1K to 64M",
            "The most that a Python call may return, packed.",
            _size,
            _shown_size,
        ),
        Setting(
            "retain_finished",
            "retain_finished_ms",
            "a time from 1s to 365d, or off",
            "How long succeeded and cancelled jobs are kept, with output and result.",
            _age,
            _shown_age,
        ),
        Setting(
            "retain_finished_count",
            "retain_finished_count",
            "a number of jobs, or off",
            "How many succeeded and cancelled jobs are kept, the newest; those that never started count apart.",
            _count,
            lambda count: "off" if count >= OFF else str(count),
        ),
        Setting(
            "retain_failed",
            "retain_failed_ms",
            "a time from 1s to 365d, or off",
            "How long failed jobs are kept, with output and result.",
            _age,
            _shown_age,
        ),
        Setting(
            "retain_failed_count",
            "retain_failed_count",
            "a number of jobs, or off",
            "How many failed jobs are kept, the newest.",
            _count,
            lambda count: "off" if count >= OFF else str(count),
        ),
    )
}


def change(name: str, text: str) -> tuple[str, str | None]:
    """What a change of one setting is in the hash: field and text, None for the default.

    Args:
        name: of a setting, or ``priority.<model type>``.
        text: its value as people write it, or ``default``.

    Raises:
        InvalidInput: there is no such setting, or the value is not allowed.
    """
    if name.startswith(PRIORITY):
        model = name.removeprefix(PRIORITY).strip().lower()
        if not model or len(model) > MAX_MODEL or not model.isprintable():
            raise InvalidInput(f"{name!r} names no model type: write priority.MODEL, like priority.dqn")
        return f"{PRIORITY_FIELD}{model}", None if text == "default" else str(parse_priority(text))
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidInput(
            f"there is no setting {name!r}: give {', '.join(SETTINGS)} or priority.MODEL"
            + (" (the lease is set by foxqueue up --lease-ttl in an empty namespace)" if name == "lease" else "")
        )
    return setting.field, None if text == "default" else setting.read(text)
