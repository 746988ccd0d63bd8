"""The queue as it should be: leases without a job, those who wait for one, and devices that nobody is given."""

from __future__ import annotations

from typing import Any

from state_ends import Ends
from state_places import SLOTS, whole_of

SILENT_MS = 15_000


class Leases(Ends):
    """Scripts of leases and of withheld devices."""

    def lease_acquire(self, a: dict[str, Any]) -> list[str]:
        """Devices for a holder, all or none."""
        names, token = a["devices"].split(","), a["token"]
        own = [self._fence_of(name, token) for name in names]
        if own[0]:
            return self._acquired(names, own)
        if token in self.requests:
            return ["stale"]
        refused = self._refused(names, a)
        if refused:
            return refused
        waiter = self.waiters.get(token)
        rank = float(waiter["rank"]) if waiter else self._rank_now(a["priority"])
        in_line = any(self.lines.get(name) for name in names)
        for name in names:
            yields = self._yields(name, token, rank, in_line, a)
            if yields:
                return yields
        fence = self._grant(names, a, in_line)
        if waiter:
            del self.waiters[token]
            for name in filter(None, waiter["devices"].split(",")):
                self._leave_line(name, token)
        return ["ok", self._answer(token, fence), self._lease_ms()]

    def _fence_of(self, name: str, token: str) -> str:
        """Of the lease of a device, if it is this token's."""
        fence, _, owner = self.granted.get(name, "").partition(" ")
        return fence if owner == f"lease:{token}" else ""

    def _acquired(self, names: list[str], own: list[str]) -> list[str]:
        """The lease that was granted before, as long as it has all the devices."""
        for name, fence in zip(names, own, strict=True):
            if fence != own[0] or self.leases.get(name, fence) != fence:
                return self._taken(name)
        return ["ok", own[0], self._lease_ms()]

    def _lease_ms(self) -> str:
        return str(self.setting("ttl_ms") + self.setting("margin_ms"))

    def _rank_now(self, priority: str) -> float:
        return float(self._rank(max(self.now * 1000, self.clock + 1), priority))

    def _refused(self, names: list[str], a: dict[str, Any]) -> list[str]:
        """Why the devices cannot be had, whoever asks."""
        for name in names:
            if name in self.paused:
                return ["paused", name, self.paused[name]]
            if not self.is_free(name):
                withheld = self.withheld.get(name) or self.withheld.get(whole_of(name))
                return ["withheld", name, withheld] if withheld else self._taken(name)
        whole = whole_of(names[0])
        left = int(a["room"]) - self._declared_mib(whole) if whole else 0
        return ["full", names[0], str(max(left, 0))] if int(a["declares"]) > left and whole else []

    def _taken(self, name: str) -> list[str]:
        """By whom; the time that is left of a lease is the server's."""
        by = self._in_the_way(name) or name
        left = self.got[5] if by in self.leases and len(self.got) > 5 else "-2"
        assert left == "-2" or (left.isdigit() and 0 < int(left) <= 60_000), f"{left} ms are left of the lease of {by}"
        return ["taken", name, self.granted.get(by, ""), self.holders.get(by, ""), left]

    def _yields(self, name: str, token: str, rank: float, in_line: bool, a: dict[str, Any]) -> list[str]:
        """Who ranks before, and is called."""
        shape = None
        if self._is_served(name) and "*" not in self.paused:
            if a["version"] != (self.version or "0"):
                return ["shapes", self.version or "0", *sorted(self.shapes)]
            shape = next((shape for shape in a["fitting"] if self._head(shape) < rank), None)
        if not in_line and shape is None:
            return []
        first = self._first_waiter(name)
        if first and first[0] != token and first[1] < rank:
            self._call_waiter(name, first[0])
            return ["yield", name, "lease"]
        who, missed = self.turn_of(f"jobs:{name}")
        if shape is None or missed:
            return []
        if not who:
            self._give_turn(f"jobs:{name}", "jobs")
            self._wake(name, 1)
            self._wake(shape, 1)
        return ["yield", name, "job"]

    def _is_served(self, device: str) -> bool:
        """Whether a live worker is there to start jobs."""
        return self.workers.get(self.gpus.get(device, "- ").split(" ")[0], 0) >= self.now - SILENT_MS

    def _head(self, shape: str) -> float:
        waiting = self.pending.get(shape, {}).values() if self.may_start(shape) else ()
        return min(waiting, default=float("inf"))

    def _grant(self, names: list[str], a: dict[str, Any], in_line: bool) -> str:
        self._begin(a["candidate"])
        fence = str(self._tick(self.got[2] if self.got[0] == "ok" else None))
        for name in names:
            self._count_lost(name)
            self.leases[name], self.granted[name] = fence, f"{fence} lease:{a['token']}"
            self.holders[name] = a["holder"]
            self._declare(name, a["declares"])
            if in_line:
                self.turns.pop(name, None)
                self.turns.pop(f"jobs:{name}", None)
        self._stat("acquired", 1)
        for stat, by in (("wait_ms", a["waited_ms"]), ("contended", a["contended"])):
            if by != "0":
                self._stat(stat, int(by))
        user, host, *_ = a["holder"].split("\t")
        self._event("lease_acquire", "", device=a["devices"], fence=fence, by=f"{user} on {host}")
        return fence

    def _leave_line(self, name: str, token: str) -> None:
        """Whoever comes after it hears of a turn that it does not use."""
        self.lines.get(name, {}).pop(token, None)
        if self.turn_of(name)[0] == token:
            del self.turns[name]
            self._freed(name)

    def lease_wait(self, a: dict[str, Any]) -> list[str]:
        """It stands in these lines and no others."""
        token, names = a["token"], [name for name in a["devices"].split(",") if name]
        if token in self.requests:
            return ["stale"]
        known = self.waiters.get(token, {})
        for name in known.get("devices", "").split(","):
            if name and name not in names:
                self._leave_line(name, token)
        if a["needs"] == "0":
            if self.waiters.pop(token, None):
                self._answer(token, "-")
            return ["ok", known.get("rank", "")]
        self._begin(a["candidate"])
        rank = known.get("rank") or self._new_rank(a)
        for name in names:
            if token not in self.lines[name] and self.turn_of(name)[0] == token:
                del self.turns[name]
            self.lines[name][token] = float(rank)
        self.waiters[token] = {"rank": rank, "devices": a["devices"], "needs": a["needs"], "holder": a["holder"]}
        return ["ok", rank]

    def _new_rank(self, a: dict[str, Any]) -> str:
        given = self.image.keys.get(f"waiter:{a['token']}", {}).get("rank", "0")
        tick = self._tick(int(given) + int(a["priority"]) * self.setting("aging_us"))
        return self._rank(tick, a["priority"])

    def lease_renew(self, a: dict[str, Any]) -> list[str]:
        """The lease goes on, unless a device is another's by now."""
        token, fence, names = a["token"], a["fence"], a["devices"].split(",")
        for name in names:
            grant = self.granted.get(name)
            if grant == f"{fence} released_lease:{token}":
                return ["released", self.holders[name].split("\t")[5]]
            if grant != f"{fence} lease:{token}":
                return [
                    "lost",
                    "nobody knows of it" if grant is None else "it was released, or granted to somebody else",
                ]
            if self.leases.get(name, fence) != fence:
                return ["lost", "its key in Redis is another owner's"]
            if name not in self.leases and self._in_the_way(name):
                return ["lost", f"it was not heard of, and {self._in_the_way(name)} was granted to somebody else"]
            if name not in self.leases and whole_of(name) and a["room"] != "0":
                own = int(self.declared[whole_of(name)].get(name.rpartition("/")[2], 0))
                if own + self._declared_mib(whole_of(name)) > int(a["room"]):
                    return ["lost", "it was not heard of, and others have declared its memory"]
        self.leases |= dict.fromkeys(names, fence)
        return ["ok"]

    def lease_release(self, a: dict[str, Any]) -> list[str]:
        """The holder has ended."""
        token, fence, names = a["token"], a["fence"], a["devices"].split(",")
        word, ended = "ok", False
        for name in names:
            grant = self.granted.get(name)
            if grant in (f"{fence} lease:{token}", f"{fence} released_lease:{token}"):
                self._give_back(name, fence)
                ended = True
            elif grant != f"{fence} -":
                word = "lost"
        if ended:
            self._stat("released", 1)
            self._stat("hold_ms", self._held_ms(fence))
            self._event("lease_release", "", device=a["devices"], fence=fence)
        return [word]

    def _give_back(self, name: str, fence: str) -> None:
        self.granted[name] = f"{fence} -"
        self.holders.pop(name, None)
        if self.leases.get(name) == fence:
            del self.leases[name]
        self._undeclare(name)
        self._freed(name)
        if not whole_of(name):
            for slot in range(SLOTS):
                self._freed(f"{name}/{slot}")

    def _held_ms(self, fence: str) -> int:
        """How long a lease lasted: the server's time, within that of the call."""
        real = int(self.image.keys["lease_stats"].get("hold_ms", 0)) - int(self.lease_stats.get("hold_ms", 0))
        first, last = (max(at - int(fence) // 1000, 0) for at in (self.earlier, self.now))
        assert first <= real <= last, f"a lease lasted {real} ms, not {first} to {last}"
        return real

    # --- operators ---------------------------------------------------------------------------------------

    def force_release(self, a: dict[str, Any]) -> list[str]:
        """The device is taken from its run or its holder, which are still to end."""
        if a["token"] in self.requests:
            return self.requests[a["token"]].split(":")
        device = a["device"]
        fence, _, owner = self.granted.get(device, "").partition(" ")
        role, _, n = owner.partition(":")
        if role in ("lease", "released_lease"):
            self._take_lease(device, fence, n, a["by"], anew=role == "lease")
            return self._answer(a["token"], "ok:").split(":")
        job = self.jobs.get(n, {}) if role in ("job", "released") else {}
        if (job.get("state"), job.get("fence")) != ("running", fence):
            return self._answer(a["token"], "no:").split(":")
        self.granted[device] = f"{fence} released:{n}"
        self._token(job["worker"], f"cancel:{n}")
        self._event("force_release", n, device=device, fence=fence, by=a["by"])
        return self._answer(a["token"], f"ok:{n}").split(":")

    def _take_lease(self, device: str, fence: str, token: str, by: str, anew: bool) -> None:
        """The device stays the holder's until that says so, or is not heard of any more."""
        if anew:
            self._stat("lost", 1)
            self._event("force_release", "", device=device, fence=fence, by=by)
        if self.leases.get(device) != fence:
            self._give_back(device, fence)
        elif anew:
            self.granted[device] = f"{fence} released_lease:{token}"
            self.holders[device] += f"\t{by}"

    def withhold(self, a: dict[str, Any]) -> list[str]:
        """Nobody gets the device."""
        if a["token"] in self.requests:
            return [self.requests[a["token"]]]
        word, _, _, kind, _ = self.withheld.get(a["device"], "\t\t\t\t").split("\t")
        if word == "quarantined" or (word, kind) == (a["word"], a["kind"]):
            return [self._answer(a["token"], "no")]
        since = self.image.keys.get("withheld", {}).get(a["device"], "\t0").split("\t")[1]
        assert self.earlier <= int(since) <= self.now, f"{a['device']} is withheld since {since}"
        self.withheld[a["device"]] = "\t".join((a["word"], since, a["boot"], a["kind"], a["text"]))
        event = {"device": a["device"], "worker": a["worker"], "reason": f"{a['word']}: {a['text']}"}
        self._event("withhold", a["number"], **event)
        return [self._answer(a["token"], "ok")]

    def clear(self, a: dict[str, Any]) -> list[str]:
        """The device may be given out again: whoever waits for it looks."""
        if a["token"] in self.requests:
            return [self.requests[a["token"]]]
        device = a["device"]
        word, _, _, kind, _ = self.withheld.get(device, "\t\t\t\t").split("\t")
        if not word or a["kind"] not in ("", kind):
            return [self._answer(a["token"], "no")]
        del self.withheld[device]
        self._event("clear", "", device=device, reason=word, by=a["by"])
        if not self._look_again(device):
            self._freed(device)
            for slot in range(SLOTS):
                self._look_again(f"{device}/{slot}")
        return [self._answer(a["token"], "ok")]

    def _look_again(self, device: str) -> bool:
        if device not in self.gpus:
            return False
        worker = self.gpus[device].split(" ")[0]
        self._leave_idle(worker)
        self._token(worker, "*")
        self._freed(device)
        return True

    def forget(self, a: dict[str, Any]) -> list[str]:
        """A device that is gone is shown no more."""
        if a["token"] in self.requests:
            return self.requests[a["token"]].split(":")
        device = a["device"]
        if device not in self.gpus and device not in self.granted and device not in self.withheld:
            return self._answer(a["token"], "missing:").split(":")
        if self.workers.get(self.gpus.get(device, "- ").split(" ")[0], 0) > self.now - SILENT_MS:
            return self._answer(a["token"], "no:live").split(":")
        if self._in_the_way(device):
            return self._answer(a["token"], "no:granted").split(":")
        for of in (
            self.gpus,
            self.granted,
            self.holders,
            self.withheld,
            self.paused,
            self.lines,
            self.turns,
            self.declared,
        ):
            of.pop(device, None)
        self._undeclare(device)
        self._event("forget", "", device=device, by=a["by"])
        return self._answer(a["token"], "ok:").split(":")
