"""The queue as it should be: how runs and jobs end, and who hears of it."""

from __future__ import annotations

import re

from state_data import TIME, Fields
from state_moves import Edge, group_of, has_ended, is_waiting
from state_places import Places

TAKEN_AWAY = "its device was taken from it by an operator"
UNREADABLE = "its record in Redis cannot be read"


class Ends(Places):
    """Ways out of running, ends of jobs, and what waits for them."""

    def _ended(self, n: str, word: str) -> None:
        """A run ends: its device and its place in a group are free."""
        job = self.jobs[n]
        device, fence, group = job["gpus"], job["fence"], group_of(job["shape"])
        del self.sets["running"][n]
        job |= {"settled": fence, "settled_as": word}
        if self.granted.get(device) in (f"{fence} job:{n}", f"{fence} released:{n}"):
            self.granted[device] = f"{fence} -"
        if self.leases.get(device) == fence:
            del self.leases[device]
        self._undeclare(device)
        self._freed(device)
        if group:
            self._count(job["shape"], "running", -1)
            if "max_concurrent" in self.groups[group] and self.may_start(job["shape"]):
                for shape in self._shapes_of(group):
                    if self.pending.get(shape):
                        self._wake(shape, 1)

    def _over(self, n: str, state: str, reason: str, detail: str) -> None:
        """A job ends."""
        job = self.jobs[n]
        job |= {"state": state, "reason": reason, "detail": detail, "finished_at": TIME}
        self.sets["failed" if state == "failed" else "finished" if "started_at" in job else "dropped"][n] = self.now
        self._leave_user(job)
        if group_of(job["shape"]):
            self._count(job["shape"], state, 1)
            self._note_streak(group_of(job["shape"]), state, reason)
        if "dependents" in job:
            self.unsettled[n] = 0
        if "notify" in job:
            self.sets["notices"][n] = self.now
        if "expires_at" in job:
            self.sets["expiry"].pop(n, None)

    def _leave_user(self, job: Fields) -> None:
        user = job["user"]
        if user:
            self.unfinished[user] = str(int(self.unfinished.get(user, 0)) - 1)
            if int(self.unfinished[user]) <= 0:
                del self.unfinished[user]

    def _note_streak(self, name: str, state: str, reason: str) -> None:
        group = self.groups[name]
        if "max_fails" not in group:
            return
        if state == "succeeded":
            group.pop("streak", None)
            group.pop("streak_reason", None)
        elif state == "failed":
            streak = int(group["streak"]) + 1 if group.get("streak_reason") == reason else 1
            group |= {"streak": str(streak), "streak_reason": reason}
            if streak >= int(group["max_fails"]) and "paused" not in group:
                why = f"{streak} failures in a row ({reason})"
                group["paused"] = f"foxqueue: {why}"
                self._event("pause", "", scope=f"@{name}", by="foxqueue", reason=why)

    def _over_cancelled(self, n: str, more: str = "") -> None:
        self._over(n, "cancelled", "cancelled_by_user", f"cancelled by {self.jobs[n]['cancel_requested']}{more}")

    def _cancel_one(self, n: str, who: str) -> str:
        """A user ends a job that waits, or asks a running one to stop."""
        job = self.jobs[n]
        state = job["state"]
        if state == "running":
            if "cancel_requested" not in job:
                job["cancel_requested"] = who
                self._event("cancel", n, from_=state, to=state, by=who)
            self._token(job["worker"], f"cancel:{n}")
            return "ok"
        if is_waiting(job):
            self._take_out(n)
            self._over(n, "cancelled", "cancelled_by_user", f"cancelled by {who}")
            self._event("cancel", n, from_=state, to="cancelled", by=who)
        return job["state"]

    def _put_aside(self, n: str) -> None:
        self._over(n, "failed", "bad_payload", UNREADABLE)
        self._event("fail", n, to="failed", reason="bad_payload")

    def _expire_one(self, n: str) -> None:
        state = self.jobs[n]["state"]
        self._take_out(n)
        self._over(n, "cancelled", "expired", "it had not started when its time was over")
        self._event("expire", n, from_=state, to="cancelled", reason="expired")

    # --- runs that did not succeed -----------------------------------------------------------------------

    def _back(self, n: str, reason: str, detail: str) -> None:
        self.jobs[n] |= {"state": "pending", "reason": reason, "detail": detail}
        self._ready(n)

    def _uncount(self, job: Fields) -> None:
        job["attempts"] = str(max(int(job["attempts"]) - 1, 0))

    def _taken_away(self, n: str) -> bool:
        """Whether an operator has taken the device of a run."""
        job = self.jobs[n]
        return bool(self.granted.get(job["gpus"]) == f"{job['fence']} released:{n}")

    def _remember(self, n: str, how: str, attempt: str, reason: str, code: str, detail: str) -> None:
        job = self.jobs[n]
        words = (attempt, job["fence"], job["started_at"], TIME, job["host"], job["gpus"], how, reason, code, detail)
        self.history[n] = [*self.history.get(n, ()), "\n".join(words)][-20:]

    def _lost(self, n: str, how: str, boot: str) -> None:
        job = self.jobs[n]
        released, attempt = self._taken_away(n), job["attempts"]
        self._ended(n, "lost")
        job.pop("exit_code", None)
        job["losses"] = str(int(job["losses"]) + 1)
        self._uncount(job)
        detail = f"worker {job['worker']} was lost"
        self._remember(n, how, attempt, "worker_lost", "", detail)
        blamed = self._blamed(job, boot)
        to, reason = "failed", "worker_lost"
        if "cancel_requested" in job:
            to, reason = "cancelled", "cancelled_by_user"
            self._over_cancelled(n, "; its worker was lost")
        elif released:
            reason = "lease_lost"
            self._over(n, to, reason, TAKEN_AWAY)
        elif blamed >= self.setting("max_losses"):
            reason = "poison"
            self._over(n, to, reason, f"lost its worker {blamed} times")
        else:
            to = "pending"
            self._back(n, reason, detail)
        more = {"worker": job["worker"], "device": job["gpus"], "fence": job["fence"], "reason": reason}
        self._event(how, n, from_="running", to=to, **more)

    def _blamed(self, job: Fields, boot: str) -> int:
        """How many losses are the job's own fault: soon after its start, on machines not rebooted since."""
        own = job["boot"] or "-"
        young = job["started_at"] == TIME  # an accident lets it be old
        if young and (not boot or own == "-" or boot == own):
            job["poison"] = f"{job.get('poison', '')} {own}"
        current = {"-", *self.boots.values()}
        return sum(suspect in current for suspect in job.get("poison", "").split())

    # --- who waits for an end ----------------------------------------------------------------------------

    def _tie(self, n: str, edges: list[Edge]) -> None:
        """Edges: parent, condition, its born, what it means now. A parent that is gone is told of nothing."""
        for parent, condition, born, meaning in edges:
            met = "met:" if meaning == "met" else ""
            self.blocked_by.setdefault(n, {})[parent] = f"{met}{condition}:{born}"
            if self.jobs.get(parent, {}).get("born") == born:
                self.dependents[parent][n] = float(n)
                self.jobs[parent]["dependents"] = "1"

    def _due(self, job: Fields) -> int:
        """When a job may start, if that is still to come."""
        due = int(job.get("due_at", 0))
        return due if due > self.now else 0

    def _take_place(self, n: str) -> None:
        """It stands behind what was there before."""
        job = self.jobs[n]
        job["tick"] = str(self._due(job) * 1000 or self._tick(self.image.keys[f"job:{n}"]["tick"]))
        job["rank"] = self._rank(int(job["tick"]), job["priority"])

    def _unblock(self, n: str, anew: bool) -> str:
        job = self.jobs[n]
        self.sets["blocked"].pop(n, None)
        if anew:  # else it keeps its place
            self._take_place(n)
        due = self._due(job)
        job["state"] = "scheduled" if due else "pending"
        if due:
            self._schedule(n, due)
        else:
            self._ready(n)
        return job["state"]

    def _tell(self, child: str, n: str) -> None:
        parent, job = self.jobs[n], self.jobs.get(child)
        edge = self.blocked_by.get(child, {}).get(n, "met:")
        if job is None or job["state"] != "blocked" or edge.startswith("met:") or self._is_filling(job["shape"]):
            return
        condition, _, born = edge.partition(":")
        if born == parent["born"] and meets(condition, parent["state"]):
            self.blocked_by[child][n] = f"met:{edge}"
            job["parents"] = str(int(job["parents"]) - 1)
            if int(job["parents"]) <= 0 and "held" in job:
                self._take_place(child)
            elif int(job["parents"]) <= 0:
                to = self._unblock(child, True)
                self._event("settle", child, from_="blocked", to=to, parent=n)
            return
        self._take_out(child)
        self._over(child, "cancelled", "dependency_failed", why_never(n, parent))
        self._event("settle", child, from_="blocked", to="cancelled", reason="dependency_failed", parent=n)

    def _settle(self, limit: int) -> int:
        told = 0
        while told < limit and self.unsettled:
            last, n = min((score, n) for n, score in self.unsettled.items())
            children: list[str] = []
            if has_ended(self.jobs.get(n)):
                waiting = sorted((score, child) for child, score in self.dependents[n].items() if score > last)
                children = [child for _, child in waiting[: limit - told]]
            if len(children) < limit - told:
                del self.unsettled[n]
            else:
                self.unsettled[n] = float(children[-1])
            for child in children:
                self._tell(child, n)
            told += max(len(children), 1)
        return told


def meets(condition: str, state: str) -> bool:
    """Whether the end of a parent is what a child waited for."""
    return condition in (state, "ended") or (condition == "any" and state != "cancelled")


def why_never(n: str, parent: Fields | None) -> str:
    """Why a job's dependency can no longer be met."""
    if parent is None:
        return f"job {n} is gone"
    reason = parent["reason"] if parent["state"] != "succeeded" else ""
    if reason == "dependency_failed":
        chain = parent["detail"]
        if len(chain.encode()) > 150:
            cause = re.search(r"job \d+ [a-z]+ \([^()]*\)", chain)
            chain = "… " + (cause[0] if cause else chain[-100:])
        reason += ": " + chain
    return f"job {n} {parent['state']}" + (f" ({reason})" if reason else "")
