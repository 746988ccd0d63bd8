"""The queue as it should be: devices, groups, pauses, notices, and what time brings."""

from __future__ import annotations

import math
from typing import Any

from state_ends import Ends
from state_moves import group_of, has_ended, is_waiting

DAY_MS, TOLD_MS, ABANDONED_MS, AGAIN_MS = 86_400_000, 10_000, 600_000, 60_000
UNSEEN_MS, TRIES = 10_000, 5


class Keepers(Ends):
    """Scripts about more than one job."""

    def open(self, a: dict[str, Any]) -> list[str]:
        """A group that was filled in pieces may start, or is given up."""
        if a["token"] in self.requests:
            return [self.requests[a["token"]]]
        name = a["group"]
        group = self.groups.get(name, {})
        if group.get("filling") != a["sweep"] or (a["total"] and group["filled"] != a["total"]):
            return [self._answer(a["token"], "no")]
        if not a["total"]:
            self.sets["filling"][name] = 0
            return [self._answer(a["token"], "ok")]
        awaited = self.awaited.get(name, set())
        if not awaited <= {*self.jobs}:
            return [self._answer(a["token"], "no")]  # one was purged
        self.unsettled |= dict.fromkeys((n for n in awaited if has_ended(self.jobs[n])), 0)
        self.awaited.pop(name, None)
        del group["filling"], group["filled"], self.sets["filling"][name]
        group |= {limit: a[limit] for limit in ("max_concurrent", "max_fails") if a[limit]}
        self._event("open", "", scope=f"@{name}", by=a["by"], count=a["total"])
        self._wake_group(name)
        return [self._answer(a["token"], "ok")]

    def pause(self, a: dict[str, Any]) -> list[str]:
        """Nothing of a scope starts; what runs may be asked to come back."""
        if a["token"] in self.requests:
            return self.requests[a["token"]].split(":")
        scope, name = a["scope"], a["scope"].removeprefix("@")
        if (name not in self.groups) if scope[0] == "@" else (scope != "*" and scope not in self.gpus):
            return self._answer(a["token"], "missing:").split(":")
        pauses, field = (self.groups[name], "paused") if scope[0] == "@" else (self.paused, scope)
        before, pauses[field] = pauses.get(field), a["text"]
        asked = [n for n in self._running() if a["requeue"] == "1" and self._is_in(n, scope)]
        for n in asked:
            self.jobs[n]["release_requested"] = f"paused by {a['text']}"
            self._token(self.jobs[n]["worker"], f"cancel:{n}")
        word = "no" if before == a["text"] else "ok"
        if word == "ok" or asked:
            self._event("pause", "", scope=scope, by=a["by"], reason=a["why"], count=str(len(asked)))
        return self._answer(a["token"], f"{word}:{len(asked)}").split(":")

    def _running(self) -> list[str]:
        return [n for _, n in sorted((score, n) for n, score in self.sets["running"].items())]

    def _is_in(self, n: str, scope: str) -> bool:
        return scope in ("*", f"@{group_of(self.jobs[n]['shape'])}", self.jobs[n]["gpus"])

    def resume(self, a: dict[str, Any]) -> list[str]:
        """What was paused may start again."""
        if a["token"] in self.requests:
            return [self.requests[a["token"]]]
        scope, name = a["scope"], a["scope"].removeprefix("@")
        group = self.groups.get(name) if scope[0] == "@" else None
        if scope[0] == "@" and group is None:
            return [self._answer(a["token"], "missing")]
        if (group if group is not None else self.paused).pop("paused" if group is not None else scope, None) is None:
            known = group is not None or scope == "*" or scope in self.gpus
            return [self._answer(a["token"], "no" if known else "missing")]
        if group is not None:
            group.pop("streak", None)
            group.pop("streak_reason", None)
            self._wake_group(name)
        elif scope == "*":
            self._wake_all()
        else:
            if scope in self.gpus:
                worker = self.gpus[scope].split(" ")[0]
                self._leave_idle(worker)
                self._token(worker, "*")
            self._freed(scope)
        self._event("resume", "", scope=scope, by=a["by"])
        return [self._answer(a["token"], "ok")]

    def notice(self, a: dict[str, Any]) -> list[str]:
        """Ended jobs whose end is to be told."""
        notices, found = self.sets["notices"], ["ok"]
        due = sorted((score, n) for n, score in notices.items() if score <= self.now)[: int(a["limit"])]
        for _, n in due:
            job = self.jobs.get(n, {})
            if int(job.get("notify", TRIES)) >= TRIES:
                del notices[n]
                self._event("told", n, reason="given up")
            else:
                job["notify"] = str(int(job["notify"]) + 1)
                notices[n] = self.now + AGAIN_MS
                found += [n, job["born"]]
        return found

    def told(self, a: dict[str, Any]) -> list[str]:
        """It is not told again: that end, of which only the server knows the time."""
        n = a["number"]
        meant = self.image.keys.get(f"job:{n}", {}).get("finished_at") == a["ended"]
        if not meant or self.jobs.get(n, {}).get("born") != a["born"] or self.sets["notices"].pop(n, None) is None:
            return ["stale"]
        self._event("told", n, worker=a["worker"])
        return ["ok"]

    # --- what time brings --------------------------------------------------------------------------------

    def sweep(self, a: dict[str, Any]) -> list[str]:
        """What time brings."""
        limit, lease = int(a["limit"]), self.setting("ttl_ms") + self.setting("margin_ms")
        gap = self.now - self.looked
        if gap > self.setting("ttl_ms") / 2 or gap < 0 or self.grace > self.now + lease:
            self.grace = self.now + lease
        self.looked = self.now
        pause = math.floor(min(1000, self.setting("ttl_ms") / 4))
        if self.swept <= self.now and (
            self.now - self.swept < pause or (self.earlier - self.swept < pause and self.got[0] == "no")
        ):
            return ["no", self._due_notices()]
        expired = self._expire(limit)
        promoted = self._promote(limit)
        running = self.sets["running"]
        for _, n in sorted((score, n) for n, score in running.items() if score > self.now + 2 * lease)[:limit]:
            running[n] = self.now + lease
        overdue = sorted((score, n) for n, score in running.items() if score < self.now)[:limit]
        overdue = overdue if self.now >= self.grace else []
        for _, n in overdue:
            self._lost(n, "reap", "")
        self.idle = {worker: since for worker, since in self.idle.items() if since > self.now - 60_000}
        for _, worker in sorted((at, worker) for worker, at in self.workers.items() if at <= self.now - DAY_MS)[:limit]:
            del self.workers[worker]
            self.claims.pop(worker, None)
        settled = max(self._settle(limit), self._dissolve(limit))
        purged = sum(self._purge(name, limit) for name in ("finished", "dropped", "failed"))
        most = max(expired, promoted, len(overdue), settled, purged)
        self.swept = self.now if most < limit else self.now - pause
        return ["ok", *map(str, (promoted, len(overdue), purged, expired, settled)), self._due_notices()]

    def _due_notices(self) -> str:
        return str(sum(score <= self.now for score in self.sets["notices"].values()))

    def _expire(self, limit: int) -> int:
        due = sorted((score, n) for n, score in self.sets["expiry"].items() if score <= self.now)[:limit]
        for _, n in due:
            del self.sets["expiry"][n]
            if n in self.jobs and self._is_filling(self.jobs[n]["shape"]):
                self.sets["expiry"][n] = self.now + UNSEEN_MS
            elif is_waiting(self.jobs.get(n)):
                self._expire_one(n)
        return len(due)

    def _dissolve(self, limit: int) -> int:
        """A group that nobody completes goes, and its jobs; one that others know stays, without a group."""
        old = sorted((at, name) for name, at in self.sets["filling"].items() if at <= self.now - ABANDONED_MS)
        if not old:
            return 0
        name = old[0][1]
        group = self.groups.get(name, {})
        members = sorted((score, n) for n, score in self.members[name].items())[:limit]
        if members:
            group["filling"] = ""
        for _, n in members:
            del self.members[name][n]
            self._leave_group(n, name)
        if len(members) < limit or int(self.groups.get(name, {}).get("total", 0)) <= 0:
            del self.sets["filling"][name]
            self.groups.pop(name, None)
            self.awaited.pop(name, None)
            self.sets["groups"].pop(name, None)
            self._event("dissolve", "", scope=f"@{name}")
        return len(members)

    def _leave_group(self, n: str, name: str) -> None:
        job = self.jobs[n]
        state = job["state"]
        if is_waiting(job):
            self._take_out(n)
        if "dependents" not in job:
            for of in ("expiry", "notices", "dropped", "failed"):
                self.sets[of].pop(n, None)
            if not has_ended(job):
                self._leave_user(job)
            self._erase(n)
            return
        if has_ended(job):
            self._count(job["shape"], state, -1)
        self._count(job["shape"], "total", -1)
        job["shape"] = job["shape"].partition("@")[0]
        if not has_ended(job):
            self._over(n, "cancelled", "cancelled_by_user", "its sweep was never completed")
            self._event("dissolve", n, from_=state, to="cancelled")

    def _purge(self, name: str, limit: int) -> int:
        members = self.sets[name]
        of = name.replace("dropped", "finished")
        keep_ms, keep = (self.setting(f"retain_{of}_{what}") for what in ("ms", "count"))
        oldest = sorted((score, n) for n, score in members.items())[:limit]
        too_many = len(members) - keep
        purged = 0
        for score, n in oldest:
            age = self.now - score
            if age <= keep_ms and (purged >= too_many or age < TOLD_MS):
                break
            if not self._is_spared(n):
                purged += 1
                del members[n]
                self._erase(n)
        return purged

    def _is_spared(self, n: str) -> bool:
        """Whether somebody is still to hear of its end, or it knows of a run of its unique key that still goes."""
        job = self.jobs[n]
        waits = int(job.get("parents", 0)) > 0 and self.unique.get(job.get("unique", "")) == n
        return n in self.unsettled or n in self.sets["notices"] or (waits and bool(self._runs_before(n)))

    def _erase(self, n: str) -> None:
        """All that is kept of a job; a group goes with its last."""
        job = self.jobs.pop(n)
        if self.unique.get(job.get("unique", "")) == n:
            del self.unique[job["unique"]]
        name = group_of(job["shape"])
        if name:
            self.members[name].pop(n, None)
            if has_ended(job):
                self._count(job["shape"], job["state"], -1)
            self._count(job["shape"], "total", -1)
            if int(self.groups[name]["total"]) <= 0:
                del self.groups[name]
                self.sets["groups"].pop(name, None)
        for texts in (*self.kept.values(), self.logs, self.log_ends, self.history, self.blocked_by, self.dependents):
            texts.pop(n, None)  # type: ignore[attr-defined]
