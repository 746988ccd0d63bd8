"""The queue as it should be: what users do to jobs."""

from __future__ import annotations

from typing import Any, NamedTuple

from state_data import DEFAULTS, OFF, Fields
from state_ends import Ends, meets, why_never
from state_moves import Edge, group_of, has_ended, is_waiting

DAY_MS = 86_400_000


class Refused(Exception):
    """A request is not taken; its words are the answer."""


class Wish(NamedTuple):
    """What one new job asks for."""

    fields: Fields
    state: str
    due: int
    edges: list[Edge]
    never: str
    replaces: str
    ends: bool
    own: bool


class Users(Ends):
    """Scripts of users, about jobs."""

    def enqueue(self, a: dict[str, Any]) -> list[str]:
        """New jobs, all or none."""
        if a["token"] in self.requests:
            return ["ok", *self.requests[a["token"]].split(":")]
        if not a["env"] and a["env_digest"] not in self.envs:
            return ["missing"]
        words = a["jobs"]
        rows = [words[at : at + 7] for at in range(0, len(words), 7)]
        first = self.next + 1
        try:
            wishes = self._wishes(rows, first, a)
            own = sum(wish.own for wish in wishes)
            self._fits(a["user"], len(rows) - sum(wish.ends for wish in wishes), len(rows) - own)
        except Refused as refused:
            return list(refused.args)
        self._begin(a["candidate"])
        self.envs.add(a["env_digest"])
        self.next += len(rows)
        born = 0
        for at, (row, wish) in enumerate(zip(rows, wishes, strict=True)):
            tick = self._tick(self.image.keys.get(f"job:{first + at}", {}).get("born"))
            assert not at or tick == born + at, f"the ticks of {words} are not in a row"
            born = tick - at
            self._put(str(first + at), row, wish, tick, a)
        numbers = [str(first + at) for at in range(len(rows))]
        if a["user"]:
            self.unfinished[a["user"]] = str(int(self.unfinished.get(a["user"], 0)) + len(rows))
        self._join(numbers, a)
        self._ready_all([n for n in numbers if self.jobs[n]["state"] == "pending"])
        self._after_enqueue(numbers, wishes, a)
        return ["ok", *self._answer(a["token"], f"{first}:{born}").split(":")]

    def _after_enqueue(self, numbers: list[str], wishes: list[Wish], a: dict[str, Any]) -> None:
        states = [wish.state for wish in wishes]
        if states == ["pending"]:
            self._event("enqueue", numbers[0], by=a["user"])
        elif len({*states}) == 1:
            self._event("enqueue", numbers[0], by=a["user"], to=states[0], count=str(len(numbers)))
        else:
            for n, state in zip(numbers, states, strict=True):
                self._event("enqueue", n, by=a["user"], to=state)
        for n, wish in zip(numbers, wishes, strict=True):
            if wish.never:
                self._take_out(n)
                self._over(n, "cancelled", "dependency_failed", wish.never)
                self._event("settle", n, from_="blocked", to="cancelled", reason="dependency_failed")
        for wish in wishes:
            if wish.replaces:
                self._cancel_one(wish.replaces, a["user"] or "a newer job")
        if any(wish.never or wish.replaces for wish in wishes):
            self._settle(100)

    def _put(self, n: str, row: list[str], wish: Wish, tick: int, a: dict[str, Any]) -> None:
        name, shape, priority, retries, delay, spec, _ = row
        place = wish.due * 1000 or tick
        self.kept["spec"][n] = spec
        self.jobs[n] = {
            "state": wish.state, "name": name, "shape": shape, "priority": priority, "born": str(tick),
            "tick": str(place), "rank": self._rank(place, priority), "attempts": "0", "losses": "0",
            "retries": retries, "retry_delay_ms": delay, "env": a["env_digest"], "user": a["user"], **wish.fields,
        }  # fmt: skip
        self._tie(n, wish.edges)
        if a["sweep"] and wish.edges:
            self.awaited[group_of(shape)] |= {edge[0] for edge in wish.edges}
        if wish.state == "blocked":
            self.sets["blocked"][n] = self.now
        elif wish.state == "scheduled":
            self._schedule(n, wish.due)
        if "expires_at" in wish.fields:
            self.sets["expiry"][n] = float(wish.fields["expires_at"])
        if "unique" in wish.fields:
            self.unique[wish.fields["unique"]] = n

    def _join(self, numbers: list[str], a: dict[str, Any]) -> None:
        """New jobs come into their groups."""
        for n in numbers:
            name = group_of(self.jobs[n]["shape"])
            if name:
                self.members[name][n] = float(n)
                self.sets["groups"].setdefault(name, self.now)
                group = self.groups.setdefault(name, {"created_at": "a time", "by": a["user"]})
                group["total"] = str(int(group.get("total", 0)) + 1)
                if a["sweep"]:
                    group |= {"filling": a["sweep"], "filled": str(int(group.get("filled", 0)) + 1)}
                    self.sets["filling"][name] = self.now

    def _wishes(self, rows: list[list[str]], first: int, a: dict[str, Any]) -> list[Wish]:
        """What the jobs ask for, in the order in which the script finds faults."""
        found = []
        for at, (_, shape, *_, more) in enumerate(rows):
            group = self.groups.get(group_of(shape))
            if group is not None and group.get("filling", "") != a["sweep"]:
                raise Refused("taken", group_of(shape))
            found.append(self._wish(str(first + at), more, a))
        return found

    def _wish(self, n: str, more: str, a: dict[str, Any]) -> Wish:
        lines = [line.split("=", 1) for line in more.splitlines()]
        wish, after = dict(lines), [value for name, value in lines if name == "after"]
        wish.pop("after", None)
        edges: dict[str, Edge] = {}
        replaces = ends = ""
        holder = self.unique.get(wish.get("unique", ""), "")
        if holder and not has_ended(self.jobs[holder]):
            if wish["exists"] != "replace":
                raise Refused("exists", holder, self.jobs[holder]["born"])
            replaces, ends = holder, holder if is_waiting(self.jobs[holder]) else ""
            if not ends:
                edges[holder] = (holder, "ended", self.jobs[holder]["born"], "open")
        edges |= {edge[0]: edge for edge in self._runs_before(holder)}
        never = ""
        for line in after:
            parent, born, condition = line.split(":")
            if parent not in self.jobs:
                raise Refused("unknown", parent)
            job = self.jobs[parent]
            if born not in ("", job["born"]):
                raise Refused("stale", parent)
            if parent == ends:
                job = job | {"state": "cancelled", "reason": "cancelled_by_user"}
            meaning = judged(job, condition)
            if meaning == "never" and a["sweep"]:
                meaning = "open"  # it is told when the group is shown
            never = never or (why_never(parent, job) if meaning == "never" else "")
            edges[parent] = (parent, condition, job["born"], meaning)
        return self._decided(n, wish, list(edges.values()), never, replaces, bool(ends))._replace(
            own=bool(ends) and self.jobs[ends]["user"] == a["user"]
        )

    def _decided(self, n: str, wish: Fields, edges: list[Edge], never: str, replaces: str, ends: bool) -> Wish:
        """Where it stands, and its fields; its times are what the server wrote, if they may be."""
        fields = {name: wish[name] for name in ("held", "unique") if name in wish}
        there = f"job:{n}" in self.image.keys  # else it is refused, as the caller finds out
        due = 0
        if "delay_ms" in wish and there:
            fields["due_at"] = self._time(n, "due_at", int(wish["delay_ms"]))
            due = int(fields["due_at"])
        default = self.setting("expires_ms")
        if "expires_ms" in wish and there:
            fields["expires_at"] = self._time(n, "expires_at", int(wish["expires_ms"]))
        elif "expires_ms" not in wish and default < OFF and there:
            fields["expires_at"] = self._time(n, "expires_at", int(wish.get("delay_ms", 0)) + default)
        if "notify" in wish:
            fields["notify"] = "0"
        count = sum(edge[3] == "open" for edge in edges)
        if edges:
            fields["parents"] = str(count)
        state = "blocked" if count or "held" in wish or never else "scheduled" if due else "pending"
        return Wish(fields, state, due, edges, never, replaces, ends, False)

    def _fits(self, user: str, in_all: int, of_own: int) -> None:
        """Whether the limits allow so many more jobs."""
        total, own = sum(map(int, self.unfinished.values())), int(self.unfinished.get(user, 0))
        for name, current, how_many, whose in (
            ("max_unfinished", total, in_all, "queue"),
            ("max_unfinished_user", own, of_own, "user"),
        ):
            limit = self.setting(name)
            if limit < OFF and current + how_many > limit and (whose == "queue" or user):
                raise Refused("full", whose, str(limit), str(current))

    def cancel(self, a: dict[str, Any]) -> list[str]:
        """A waiting job ends, a running one is flagged and its worker woken."""
        n, word = a["number"], self._meant(a)
        if word:
            return [word]
        word = self._cancel_one(n, a["by"])
        if "dependents" in self.jobs[n]:
            self._settle(100)
        return [self._answer(a["token"], word)]

    def requeue(self, a: dict[str, Any]) -> list[str]:
        """A failed or cancelled job begins anew."""
        n = a["number"]
        word, _, more = self._meant(a).partition(":")
        if word:
            return [word, *([more] if more else [])]
        job = self.jobs[n]
        word = self._cannot_begin(n, job)
        if word:
            word, _, more = self._answer(a["token"], word).partition(":")
            return [word, *([more] if more else [])]
        edges = self._edges(n)
        for parent, _, born, meaning in edges:
            if meaning == "never":
                gone = self.jobs.get(parent, {}).get("born") != born
                why = why_never(parent, None if gone else self.jobs[parent])
                self._answer(a["token"], f"never:{why}")
                return ["never", why]
        try:
            self._fits(job["user"], 1, 1)
        except Refused as refused:
            return list(refused.args)
        self._begin_anew(n, edges, a["by"])
        return [self._answer(a["token"], "ok")]

    def _cannot_begin(self, n: str, job: Fields) -> str:
        if job["state"] not in ("failed", "cancelled"):
            return "no"
        if n not in self.kept["spec"]:
            return "unreadable"
        if job["env"] not in self.envs:
            return "gone"
        holder = self.unique.get(job.get("unique", ""), n)
        other = self.jobs.get(holder, {})
        if holder != n and not has_ended(other) and other.get("unique") == job["unique"]:
            return f"exists:{holder}"
        return ""

    def _edges(self, n: str) -> list[Edge]:
        """What a job waited for, judged anew."""
        found = []
        for parent, text in self.blocked_by.get(n, {}).items():
            met, (condition, born) = text.startswith("met:"), text.removeprefix("met:").split(":")
            job = self.jobs.get(parent)
            meaning = "met" if met or condition == "ended" else "never"
            if job is not None and job["born"] == born:
                meaning = judged(job, condition)
            found.append((parent, condition, born, meaning))
        holder = self.unique.get(self.jobs[n].get("unique", ""), n)
        known = {n, *self.blocked_by.get(n, {})}
        return found + [edge for edge in self._runs_before(holder) if holder != n and edge[0] not in known]

    def _begin_anew(self, n: str, edges: list[Edge], by: str) -> None:
        job = self.jobs[n]
        before, tick = job["state"], self._tick(self.image.keys[f"job:{n}"]["tick"])
        for name in ("finished", "dropped", "failed", "notices", "expiry"):
            self.sets[name].pop(n, None)
        self.unsettled.pop(n, None)
        for name in (
            "cancel_requested", "exit_code", "due_at", "started_at", "finished_at", "worker", "host", "gpus", "held",
            "expires_at", "poison", "boot", "release_requested",
        ):  # fmt: skip
            job.pop(name, None)
        job |= {"tick": str(tick), "rank": self._rank(tick, job["priority"]), "attempts": "0", "losses": "0"}
        for kind in ("result", "value"):
            self.kept[kind].pop(n, None)
        if job["user"]:
            self.unfinished[job["user"]] = str(int(self.unfinished.get(job["user"], 0)) + 1)
        if "unique" in job:
            self.unique[job["unique"]] = n
        if "notify" in job:
            job["notify"] = "0"
        self._count(job["shape"], before, -1)
        count = sum(edge[3] == "open" for edge in edges)
        if edges:
            self._tie(n, edges)
            job["parents"] = str(count)
        if count:
            job |= {"state": "blocked", "reason": "", "detail": ""}
            self.sets["blocked"][n] = self.now
        else:
            self._back(n, "", "")
        self._event("requeue", n, from_=before, to=job["state"], by=by)

    def hold(self, a: dict[str, Any]) -> list[str]:
        """A waiting job does not start until it is unheld."""
        n, word = a["number"], self._meant(a)
        if word:
            return [word]
        job = self.jobs[n]
        if not is_waiting(job):
            return [self._answer(a["token"], "no")]
        if "held" not in job:
            state = job["state"]
            self._take_out(n)
            self.sets["blocked"][n] = self.now
            job |= {"state": "blocked", "held": a["by"]}
            self._event("hold", n, from_=state, to="blocked", by=a["by"])
        return [self._answer(a["token"], "ok")]

    def unhold(self, a: dict[str, Any]) -> list[str]:
        """It takes its place again, or waits for its parents."""
        n, word = a["number"], self._meant(a)
        if word:
            return [word]
        job = self.jobs[n]
        if job["state"] != "blocked" or "held" not in job:
            return [self._answer(a["token"], "no")]
        del job["held"]
        to = "blocked" if int(job.get("parents", 0)) > 0 else self._unblock(n, False)
        self._event("unhold", n, from_="blocked", to=to, by=a["by"])
        return [self._answer(a["token"], "ok")]

    def reprioritize(self, a: dict[str, Any]) -> list[str]:
        """Another priority, or a place before all that is pending."""
        n, word = a["number"], self._meant(a)
        if word:
            return [word]
        job, front = self.jobs[n], a["front"] == "1"
        state = job["state"]
        if has_ended(job) or (front and state not in ("pending", "scheduled")):
            return [self._answer(a["token"], "no")]
        level = a["priority"] or job["priority"]
        rank = float(self._rank(int(job["tick"]), level))
        if front:
            heads = [min((rank, at) for at, rank in waiting.items()) for waiting in self.pending.values() if waiting]
            rank = min([rank, *(score - 1 for score, head in heads if head != n)])
        job |= {"priority": level, "rank": f"{rank:.0f}"}
        if state == "pending":
            self.pending[job["shape"]][n] = rank
        self._event("reprioritize", n, from_=state, to=state, by=a["by"], priority=level, front=a["front"])
        return [self._answer(a["token"], "ok")]

    def configure(self, a: dict[str, Any]) -> list[str]:
        """Settings are read or changed; the answer's pairs are compared as a table."""
        changes = a["changes"]
        self._begin(a["candidate"])
        if changes and a["token"] not in self.requests:
            for field, given in zip(changes[::2], changes[1::2], strict=True):
                self.settings.pop(field, None)
                if given:
                    self.settings[field] = given
            said = " ".join(f"{field}={given}" for field, given in zip(changes[::2], changes[1::2], strict=True))
            self._event("configure", "", by=a["by"], set=said)
            self._answer(a["token"], "ok")
        if changes:
            return ["ok"]
        return ["ok", *[word for pair in sorted({**DEFAULTS, **self.settings}.items()) for word in pair]]


def judged(parent: Fields, condition: str) -> str:
    """What a parent means for a child now."""
    if not has_ended(parent):
        return "open"
    return "met" if meets(condition, parent["state"]) else "never"
