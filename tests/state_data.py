"""What lies in a namespace, as it should be: plain Python, compared with an image of the real one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from state_image import Image

TIME = "a time"  # stands where the server writes its own time
TIMES = ("started_at", "finished_at", "created_at")
OFF = 10**15  # a limit that is none
DEFAULTS = {
    "schema": "2",
    "ttl_ms": "15000",
    "beat_ms": "5000",
    "margin_ms": "15000",
    "aging_us": "14400000000",
    "max_losses": "3",
    "max_result_bytes": "1048576",
    "retain_finished_ms": "2592000000",
    "retain_finished_count": "10000",
    "retain_failed_ms": "7776000000",
    "retain_failed_count": "10000",
    "max_unfinished": str(OFF),
    "max_unfinished_user": str(OFF),
    "expires_ms": str(OFF),
}
# Sorted sets whose scores are times.
JOB_SETS = ("scheduled", "blocked", "running", "finished", "dropped", "failed")
TIMED = (*JOB_SETS, "expiry", "notices", "groups", "filling")
Fields = dict[str, str]
Scores = dict[str, float]


class Data:
    """Jobs, sets, devices and workers. Numbers of jobs are text, as in Redis."""

    def __init__(self) -> None:
        self.life, self.next, self.clock, self.version = "", 0, 0, ""
        self.looked = self.swept = self.grace = 0
        self.settings: Fields = {}
        self.jobs: dict[str, Fields] = {}
        self.kept: dict[str, dict[str, str]] = {"spec": {}, "result": {}, "value": {}}
        self.logs: dict[str, list[tuple[int, int, str]]] = {}
        self.log_ends: dict[str, tuple[int, int]] = {}
        self.envs: set[str] = set()
        self.pending: dict[str, Scores] = defaultdict(dict)
        self.sets: dict[str, Scores] = {name: {} for name in TIMED}
        self.unsettled: Scores = {}
        self.blocked_by: dict[str, Fields] = {}
        self.dependents: dict[str, Scores] = defaultdict(dict)
        self.history: dict[str, list[str]] = {}
        self.groups: dict[str, Fields] = {}
        self.awaited: dict[str, set[str]] = defaultdict(set)
        self.members: dict[str, Scores] = defaultdict(dict)
        self.unfinished: Fields = {}
        self.unique: Fields = {}
        self.paused: Fields = {}
        self.boots: Fields = {}
        self.granted: Fields = {}
        self.leases: Fields = {}
        self.claims: Fields = {}
        self.gpus: Fields = {}
        self.workers: Scores = {}
        self.idle: Scores = {}
        self.idle_for: dict[str, Scores] = defaultdict(dict)
        self.idle_shapes: dict[str, set[str]] = {}
        self.wake: dict[str, list[str]] = {}
        self.shapes: set[str] = set()
        self.requests: Fields = {}
        self.events: list[Fields] = []
        self.holders: Fields = {}
        self.withheld: Fields = {}
        self.lines: dict[str, Scores] = defaultdict(dict)  # device -> token -> rank
        self.waiters: dict[str, Fields] = {}
        self.turns: Fields = {}
        self.declared: dict[str, Fields] = defaultdict(dict)
        self.lease_stats: Fields = {}

    def setting(self, name: str) -> int:
        """A setting, or its default."""
        return int(self.settings.get(name, DEFAULTS[name]))

    def picture(self) -> dict[str, Any]:
        """What should lie in Redis, key by key; times are left out."""
        found: dict[str, Any] = {
            "instance": self.life,
            "next": str(self.next) if self.next else "",
            "shapes_version": self.version,
            "settings": self.settings,
            "shapes": self.shapes,
            "granted": self.granted,
            "claims": self.claims,
            "gpus": self.gpus,
            "workers": set(self.workers),
            "idle": set(self.idle),
            "requests": self.requests,
            "unsettled": self.unsettled,
            "unfinished": self.unfinished,
            "unique": self.unique,
            "paused": self.paused,
            "boots": self.boots,
            "holders": self.holders,
            "withheld": self.withheld,
            "lease_stats": self.lease_stats,
        }
        found |= {f"lease_waiting:{device}": ranks for device, ranks in self.lines.items()}
        found |= {f"waiter:{token}": fields for token, fields in self.waiters.items()}
        found |= {f"turn:{device}": text for device, text in self.turns.items()}
        found |= {f"declared:{device}": slots for device, slots in self.declared.items()}
        for kind in ("blocked_by", "dependents", "history", "members", "awaited"):
            found |= {f"{kind}:{name}": content for name, content in getattr(self, kind).items()}
        found |= {f"group:{name}": fields for name, fields in self.groups.items()}
        found |= {name: set(members) for name, members in self.sets.items()}
        found |= {f"pending:{shape}": ranks for shape, ranks in self.pending.items()}
        found |= {f"job:{n}": job for n, job in self.jobs.items()}
        for kind, texts in self.kept.items():
            found |= {f"{kind}:{n}": text for n, text in texts.items()}
        found |= {f"log:{n}": entries for n, entries in self.logs.items() if n in self.log_ends}
        found |= {f"lease:{device}": fence for device, fence in self.leases.items()}
        found |= {f"idle:{shape}": set(members) for shape, members in self.idle_for.items()}
        found |= {f"idle_shapes:{worker}": shapes for worker, shapes in self.idle_shapes.items()}
        found |= {f"wake:{worker}": tokens for worker, tokens in self.wake.items()}
        found |= dict.fromkeys((f"env:{digest}" for digest in self.envs), True)
        return {key: value for key, value in found.items() if value or key.startswith("log:")}

    def wrong(self, image: Image, earlier: int) -> list[str]:
        """What differs from an image; where nothing does, the server's times are learned from it.

        Args:
            image: of the namespace.
            earlier: a time before the last call was sent, ms.
        """
        right, found = self.picture(), _without_times(image)
        wrong = [
            f"{key} is {found.get(key)}, should be {right.get(key)}"
            for key in sorted({*right, *found})
            if right.get(key) != found.get(key)
        ]
        if image.events != self.events:
            wrong.append(f"events are {image.events}, should be {self.events}")
        self.events = []
        return wrong or self._learn(image, image.now - earlier)

    def _learn(self, image: Image, slack: int) -> list[str]:
        """Take times over from an image; each must lie in the time that the call took."""
        times = {**self.sets, "workers": self.workers, "idle": self.idle}
        times |= {f"idle:{shape}": members for shape, members in self.idle_for.items()}
        wrong = []
        for key, members in times.items():
            for member, score in members.items():
                real = image.keys[key][member]
                if not score - slack <= real <= score:
                    wrong.append(f"{member} stands in {key} at {real:.0f}, should be {score:.0f} or {slack} less")
                members[member] = real
        for name in ("looked", "swept", "grace"):
            real, right = image.number("grace_until" if name == "grace" else name), getattr(self, name)
            if not right - slack <= real <= right:
                wrong.append(f"{name} is {real}, should be {right} or {slack} less")
            setattr(self, name, real)
        if image.number("clock") != self.clock:
            wrong.append(f"the clock is {image.number('clock')}, should be {self.clock}")
        return wrong


def is_time(text: str) -> bool:
    """Whether a text is a time of now, in ms: accidents set others."""
    return text.isdigit() and len(text) == 13


def _without_times(image: Image) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in image.keys.items():
        kind = key.partition(":")[0]
        if key in ("clock", "looked", "swept", "grace_until") or (not value and kind != "log"):
            continue
        if kind in (*TIMED, "workers", "idle", "shapes"):
            found[key] = set(value)
        elif kind in ("job", "group"):
            found[key] = {name: TIME if name in TIMES and is_time(text) else text for name, text in value.items()}
        elif kind == "history":
            found[key] = ["\n".join(TIME if is_time(line) else line for line in run.split("\n")) for run in value]
        elif kind == "log":
            found[key] = [(*map(int, entry.split("-")), fields["data"]) for entry, fields in value]
        else:
            found[key] = True if kind == "env" else value
    return found
