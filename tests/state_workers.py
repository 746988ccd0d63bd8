"""The queue as it should be: what workers ask and say."""

from __future__ import annotations

import math
from typing import Any

from state_data import TIME
from state_ends import TAKEN_AWAY, Ends
from state_places import whole_of

SILENT_MS = 15_000


class Workers(Ends):
    """Scripts of workers."""

    def claim(self, a: dict[str, Any]) -> list[str]:
        """The best fitting job and the device, in one step."""
        worker, question = a["worker"], a["question"]
        last, _, n = self.claims.get(worker, "0:").partition(":")
        if int(question) < int(last):
            return ["stale"]
        if question == last:
            job = self.jobs.get(n, {})
            same = (job.get("state"), job.get("worker"), job.get("claim")) == ("running", worker, question)
            return self._granted(n) if same else ["stale"]
        self._promote(20)
        due = self._next_due()
        woken = [*a["woken"].split(","), *self.wake.pop(worker, [])]
        self._leave_idle(worker)
        n, words, stands = self._found(a, due)
        if n:
            self._run(n, a)
            words = self._granted(n)
        self.claims[worker] = f"{question}:{n}"
        self._pass_on(woken)
        if stands is not None and a["waits"] == "1":
            self._stand_idle(worker, stands)
        return words

    def _found(self, a: dict[str, Any], due: str) -> tuple[str, list[str], list[str] | None]:
        """The job; or the answer without one, and under what the worker stands then, None for nothing at all."""
        device, fitting = a["device"], a["fitting"]
        if a["version"] != (self.version or "0"):
            return "", ["shapes", self.version or "0", *sorted(self.shapes)], None
        if "*" in self.paused or device in self.paused:
            return "", ["empty", due], fitting if "*" in self.paused else []
        if not self.is_free(device):
            return "", ["taken"], [device]
        self.plainly = not (self.lines.get(device) or self.withheld or self.declared.get(device) or whole_of(device))
        waiter = None if self.plainly else self._first_waiter(device)
        room = self._room(a)
        n, yields = self._take_head(fitting, room, waiter[1] if waiter else math.inf)
        if yields and waiter:
            self._call_waiter(device, waiter[0])
            return "", ["yield"], [device]
        return n, ["empty", due], None if n else self._names(device, fitting, room)

    def _names(self, device: str, fitting: list[str], room: set[str]) -> list[str]:
        """Under what an idle worker stands: shapes that there is room for, and the end of what runs beside it."""
        names = [] if self.held_back else [shape for shape in fitting if shape in room]
        return names if len(names) == len(fitting) else [*names, whole_of(device)]

    def _room(self, a: dict[str, Any]) -> set[str]:
        """Of the fitting shapes those that may start now: they declare no more than the device's other slots leave."""
        if not a["declares"]:
            return {*a["fitting"]}
        left = int(a["room"]) - self._declared_mib(whole_of(a["device"]))
        declared = zip(a["fitting"], map(int, a["declares"].split(",")), strict=True)
        return {shape for shape, mib in declared if 0 < mib <= left}

    def _run(self, n: str, a: dict[str, Any]) -> None:
        job, device = self.jobs[n], a["device"]
        fence = str(self._tick(self.got[3] if len(self.got) > 3 else None))
        self._count_lost(device)
        self.leases[device], self.granted[device] = fence, f"{fence} job:{n}"
        if a["declares"]:
            self._declare(device, a["declares"].split(",")[a["fitting"].index(job["shape"])])
        if not self.plainly:
            self.turns.pop(device, None)
            self.turns.pop(f"jobs:{device}", None)
        job |= {
            "state": "running", "fence": fence, "claim": a["question"], "worker": a["worker"], "host": a["host"],
            "gpus": device, "started_at": TIME, "reason": "", "detail": "", "attempts": str(int(job["attempts"]) + 1),
            "boot": a["boot"],
        }  # fmt: skip
        job.pop("release_requested", None)
        job.pop("expires_at", None)
        self.sets["expiry"].pop(n, None)
        self._count(job["shape"], "running", 1)
        self.sets["running"][n] = self.now + self.setting("ttl_ms") + self.setting("margin_ms")
        self._event("claim", n, worker=a["worker"], device=device, fence=fence)

    def _granted(self, n: str) -> list[str]:
        job = self.jobs[n]
        fields = [job[name] for name in ("fence", "born", "attempts", "losses", "retry_delay_ms", "env")]
        return ["ok", n, *fields, self.kept["spec"][n], job["shape"]]

    def _pass_on(self, woken: list[str]) -> None:
        for shape in woken:
            if "*" not in self.paused and self.pending.get(shape) and self.may_start(shape):
                self._wake(shape, 1)

    def _take_head(self, fitting: list[str], room: set[str], before: float) -> tuple[str, bool]:
        """The best head; or that who waits for a lease, at this rank, comes before all."""
        found, ends, yields, self.held_back = "", False, False, False
        for _ in range(20):
            all_heads = {
                shape: min((rank, n) for n, rank in self.pending[shape].items())
                for shape in fitting
                if self.pending.get(shape) and self.may_start(shape)
            }
            heads = [head for shape, head in all_heads.items() if shape in room]
            kept = min((rank for shape, (rank, _) in all_heads.items() if shape not in room), default=math.inf)
            if min(heads, key=lambda head: head[0], default=(0.0, ""))[0] > kept + self.setting("aging_us"):
                heads, self.held_back = [], True  # the device is left to empty for one that needs more room
            yields = before < min((rank for rank, _ in heads), default=math.inf)
            if not heads or yields:
                break
            n = min(heads, key=lambda head: head[0])[1]
            if n not in self.kept["spec"]:
                self._take_out(n)
                self._put_aside(n)
            elif 0 < int(self.jobs[n].get("expires_at", 0)) <= self.now:
                self._expire_one(n)
            else:
                found = n
                self._take_out(n)
                break
            ends = True
        if ends:
            self._settle(20)
        return found, yields

    def _stand_idle(self, worker: str, names: list[str]) -> None:
        self.idle[worker] = self.now
        if names:
            self.idle_shapes[worker] = set(names)
        for name in names:
            self.idle_for[name][worker] = self.now

    def _next_due(self) -> str:
        """What an empty claim says about the next scheduled job: it depends on the moment, within the call."""
        due = min(self.sets["scheduled"].values(), default=None)
        if due is None:
            return ""
        said = int(self.got[2]) if self.got[0] == "empty" and self.got[2] else -1
        first, last = max(due - 2 * self.now + self.earlier, 0), max(due - self.earlier, 0)
        return str(said) if first <= said <= last else f"a time between {first:.0f} and {last:.0f}"

    def heartbeat(self, a: dict[str, Any]) -> list[str]:
        """The lease is renewed, unless the device is another's."""
        n, fence = a["number"], a["fence"]
        word = self._guard(n, fence)
        if word:
            return [word]
        job = self.jobs[n]
        device = job["gpus"]
        if self.granted[device] != f"{fence} job:{n}" or self.leases.get(device, fence) != fence:
            return ["taken"]
        self.leases[device] = fence
        self.sets["running"][n] = self.now + self.setting("ttl_ms") + self.setting("margin_ms")
        return ["ok", job.get("cancel_requested", ""), job.get("release_requested", "")]

    def log(self, a: dict[str, Any]) -> list[str]:
        """A piece of output, in order of runs and offsets."""
        n, fence = a["number"], a["fence"]
        word = self._guard(n, fence)
        if word:
            return [word]
        entry = (int(fence), int(a["offset"]))
        if entry > self.log_ends.get(n, (0, 0)):
            self.log_ends[n] = entry
            self.logs.setdefault(n, []).append((*entry, a["data"]))
        if a["keep_from"] != "0":
            self.logs[n] = [piece for piece in self.logs[n] if piece[:2] >= (int(fence), int(a["keep_from"]))]
        return ["ok"]

    def complete(self, a: dict[str, Any]) -> list[str]:
        """The run succeeded; a cancel that was accepted before wins."""
        n, word = a["number"], self._guard(a["number"], a["fence"])
        if word:
            return [word]
        job = self.jobs[n]
        word = "cancelled" if "cancel_requested" in job else "succeeded"
        self._ended(n, word)
        job["exit_code"] = "0"
        self.kept["result"][n] = a["outcome"]
        if word == "cancelled":
            self._over_cancelled(n)
        else:
            if a["returned"]:
                self.kept["value"][n] = a["returned"]
            self._over(n, "succeeded", "exit_code", "")
        self._event("complete", n, to=word, worker=job["worker"], fence=a["fence"])
        self._tell_all(n)
        return [word]

    def _ended_as(self, name: str, n: str, a: dict[str, Any]) -> None:
        job = self.jobs[n]
        more = {"worker": job["worker"], "fence": a["fence"], "reason": a["reason"]}
        self._event(name, n, from_="running", to=job["state"], **more)

    def _tell_all(self, n: str) -> None:
        if "dependents" in self.jobs[n]:
            self._settle(100)

    def _later(self, n: str, delay_ms: str) -> None:
        """The job is due when its delay is over."""
        self.jobs[n] |= {"state": "scheduled", "due_at": self._time(n, "due_at", int(delay_ms))}
        self._schedule(n, int(self.jobs[n]["due_at"]))

    def fail(self, a: dict[str, Any]) -> list[str]:
        """The run failed; another attempt may follow."""
        n, word = a["number"], self._guard(a["number"], a["fence"])
        if word:
            return [word]
        job = self.jobs[n]
        word = "cancelled" if "cancel_requested" in job else "failed"
        self._ended(n, word)
        self.kept["result"][n] = a["outcome"]
        job.pop("exit_code", None)
        if a["exit_code"]:
            job["exit_code"] = a["exit_code"]
        self._remember(n, "fail", job["attempts"], a["reason"], a["exit_code"], a["detail"])
        if word == "cancelled":
            self._over_cancelled(n)
        elif a["delay_ms"] and int(job["attempts"]) <= int(job["retries"]):
            job |= {"reason": a["reason"], "detail": a["detail"]}
            self._later(n, a["delay_ms"])
        else:
            self._over(n, "failed", a["reason"], a["detail"])
        self._ended_as("fail", n, a)
        self._tell_all(n)
        return [word]

    def release(self, a: dict[str, Any]) -> list[str]:
        """The job goes back to its place, at once or later, the attempt not counted."""
        n, word = a["number"], self._guard(a["number"], a["fence"])
        if word:
            return [word]
        job = self.jobs[n]
        released = self._taken_away(n)
        word = "cancelled" if "cancel_requested" in job else "failed" if released else "released"
        self._ended(n, word)
        self._remember(n, "release", job["attempts"], a["reason"], "", a["detail"])
        if word == "cancelled":
            self._over_cancelled(n)
        elif released:
            self._over(n, "failed", "lease_lost", TAKEN_AWAY)
        else:
            self._uncount(job)
            job |= {"reason": a["reason"], "detail": a["detail"]}
            if a["delay_ms"]:
                self._later(n, a["delay_ms"])
            else:
                self._back(n, a["reason"], a["detail"])
        self._ended_as("release", n, a)
        self._tell_all(n)
        return [word]

    def lose(self, a: dict[str, Any]) -> list[str]:
        """The run is gone and its end is unknown."""
        word = self._guard(a["number"], a["fence"])
        if not word:
            self._lost(a["number"], "lose", a["boot"])
            self._settle(100)
        return [word or "lost"]

    def register(self, a: dict[str, Any]) -> list[str]:
        """What a worker sees, unless it is a late copy."""
        worker, device = a["worker"], a["device"]
        of, count, _ = self.gpus.get(device, "- 0 -").split(" ", 2)
        if of == worker and int(a["sequence"]) <= int(count):
            return ["stale"]
        if (
            device in self.gpus
            and of != worker
            and worker in self.workers
            and self.workers.get(of, 0) > self.now - SILENT_MS
        ):
            return ["stale"]
        self._begin(a["candidate"])
        self.gpus[device] = f"{worker} {a['sequence']} {a['seen']}"
        self.workers[worker] = self.now
        if a["boot"]:
            self.boots[a["host"]] = a["boot"]
        for event, n, text in zip(a["noted"][::3], a["noted"][1::3], a["noted"][2::3], strict=True):
            self._event(event, n, device=device, worker=worker, reason=text)
        return ["ok"]
