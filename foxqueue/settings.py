"""The settings of a namespace as people name, write and read them. Pure.

Their defaults stand in the Lua files that use them, and here where no script does; here is what each means and may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foxqueue.errors import InvalidInput
from foxqueue.units import parse_duration, parse_priority

PRIORITY = "priority."
PRIORITY_FIELD = "priority:"  # in the hash, before the model type
OFF = 10**15  # ms, or jobs: longer than anything lasts, and exact in Lua
AGING_OFF_US = 365 * 86400 * 1_000_000  # a level of priority is worth a year
MAX_MODEL = 64  # characters of a model type
MAX_NAMES = 1000  # characters of ignore_processes
# What draws a desktop or measures a GPU; command names as /proc/PID/comm has them.
IGNORED = (
    "Xorg,Xwayland,gnome-shell,gnome-remote-de,mutter,kwin_x11,kwin_wayland,plasmashell,sddm-greeter,gdm-x-session,"
    "nvidia-smi,nvtop,nvitop,nv-hostengine,dcgm-exporter,nvidia-persiste"
)
# Of what no script looks at: what workers and leases do about a device.
DEFAULTS: dict[str, int | str] = {
    "occupied_over_mib": 256,  # a desktop or a monitoring agent holds less, a training run more
    "ignore_processes": IGNORED,
    "admission_samples": 3,
    "fast_failures": 3,
    "memory_return_ms": 10_000,
}
MODEL_PRIORITIES = {"dqn": 8, "ppo": 8, "mamba-2": 5, "tft": 5, "tlob": 2, "liquid": 2}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: for people.
        field: in the hash ``settings``.
        allowed: for messages.
        about: what it does, one sentence.
        parse: text as written -> what is meant, a number but for texts.
        show: that -> text that parse understands.
    """

    name: str
    field: str
    allowed: str
    about: str
    parse: Callable[[str], int | str]
    show: Callable[[Any], str]

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


def _mib(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,7})([MG])", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(text)
    return _whole(1, 1024**2)(str(int(match[1]) * (1024 if match[2] in "gG" else 1)))


def _return(text: str) -> int:
    seconds = parse_duration(text)
    if not 0.1 <= seconds <= 600:
        raise ValueError(text)
    return round(seconds * 1000)


def _names(text: str) -> str:
    if text.lower() == "none":
        return ""
    names = [name.strip() for name in text.split(",")]
    if not all(name and name.isprintable() for name in names) or len(text) > MAX_NAMES:
        raise ValueError(text)
    return ",".join(dict.fromkeys(names))


def ignored(names: str) -> tuple[str, ...]:
    """The command names of the setting ignore_processes."""
    return tuple(name for name in names.split(",") if name)


def _shown_age(ms: int) -> str:
    return "off" if ms >= OFF else _exactly(ms / 1000)


def _shown_size(size: int) -> str:
    return f"{size // 1024**2}M" if size % 1024**2 == 0 else f"{size // 1024}K"


def _shown_mib(mib: int) -> str:
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _shown_limit(count: int) -> str:
    return "off" if count >= OFF else str(count)


def _exactly(seconds: float) -> str:
    """A time that reads back as the same one."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{round(seconds * 1000)}ms"


_OF_DEVICES = (
    Setting(
        "occupied_over",
        "occupied_over_mib",
        "a size from 1M to 1024G",
        "GPU memory of processes that are not ours from which on a GPU counts as occupied.",
        _mib,
        _shown_mib,
    ),
    Setting(
        "ignore_processes",
        "ignore_processes",
        f"names of commands with commas between them, {MAX_NAMES} characters at most, or none",
        "Processes that may be on a GPU all the same: those that draw the desktop, say.",
        _names,
        lambda names: names or "none",
    ),
    Setting(
        "admission_samples",
        "admission_samples",
        "1 to 30",
        "How many looks in a row, two seconds apart, must show the free memory that a job is given.",
        _whole(1, 30),
        str,
    ),
    Setting(
        "memory_return",
        "memory_return_ms",
        "a time from 100ms to 10m",
        "How long a run's memory may take to come back before its GPU counts as dirty.",
        _return,
        lambda ms: _exactly(ms / 1000),
    ),
    Setting(
        "fast_failures",
        "fast_failures",
        "1 to 1000, or off",
        "Runs in a row that fail within a minute with an error of CUDA's driver after which a GPU is quarantined.",
        lambda text: OFF if text.lower() == "off" else _whole(1, 1000)(text),
        _shown_limit,
    ),
)

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
            _shown_limit,
        ),
        Setting(
            "max_unfinished_user",
            "max_unfinished_user",
            "a number of jobs above 0, or off",
            "How many jobs of one user may wait or run.",
            _limit,
            _shown_limit,
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
            _shown_limit,
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
            _shown_limit,
        ),
        *_OF_DEVICES,
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
