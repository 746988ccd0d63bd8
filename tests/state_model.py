"""The queue as it should be: every script in plain Python, with what only the server knows (times, ticks) learned.

A call is given to the model after the server has answered it, with the answer and an image of all data. The model
says what the answer should have been, and ``wrong`` compares its data with the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from state_data import DEFAULTS, TIME
from state_image import Image, named
from state_moves import TAKEN_AWAY, Moves

from foxqueue.scripts import Call

SILENT_MS, DAY_MS, TOLD_MS = 15_000, 86_400_000, 10_000


class Model(Moves):
    """What each script does. Methods have the names of the scripts and return the answer that is right."""

    def apply(self, call: Call, got: Sequence[str], image: Image, earlier: int) -> list[str]:
        """Do what a call does.

        Args:
            call: which was sent and answered.
            got: the answer: word, instance, rest.
            image: of all data afterwards, from which ticks are learned.
            earlier: a time before it was sent, ms.

        Returns:
            The answer that is right.
        """
        self.got, self.image, self.now, self.earlier = list(got), image, image.now, earlier
        self.before = self.clock
        word, *rest = getattr(self, call.script.name)(named(call))
        return [word, self.life, *rest]

    # --- users' scripts ----------------------------------------------------------------------------------

    def enqueue(self, a: dict[str, Any]) -> list[str]:
        """New jobs, all or none."""
        if a["token"] in self.requests:
            return ["ok", *self.requests[a["token"]].split(":")]
        digest = a["env_digest"]
        if not a["env"] and digest not in self.envs:
            return ["missing"]
        self._begin(a["candidate"])
        self.envs.add(digest)
        words, first, born = a["jobs"], self.next + 1, 0
        count = len(words) // 6
        self.next += count
        for at in range(count):
            n = str(first + at)
            name, shape, priority, retries, delay, spec = words[6 * at : 6 * at + 6]
            tick = self._tick(self.image.keys.get(f"job:{n}", {}).get("born"))
            assert not at or tick == born + at, f"the ticks of {words} are not in a row"
            born = tick if not at else born
            rank = tick - int(priority) * self.setting("aging_us")
            self.kept["spec"][n] = spec
            self.jobs[n] = {
                "state": "pending", "name": name, "shape": shape, "priority": priority, "born": str(tick),
                "tick": str(tick), "rank": str(rank), "attempts": "0", "losses": "0", "retries": retries,
                "retry_delay_ms": delay, "env": digest,
            }  # fmt: skip
        self._ready_all([str(first + at) for at in range(count)])
        self._event("enqueue", str(first), **({"count": str(count)} if count > 1 else {}))
        return ["ok", *self._answer(a["token"], f"{first}:{born}").split(":")]

    def _meant(self, a: dict[str, Any]) -> str:
        """The answer of a request about a job that was answered before, or means no job that is there; else empty."""
        job = self.jobs.get(a["number"])
        if a["token"] in self.requests:
            return self.requests[a["token"]]
        if job is None:
            return self._answer(a["token"], "missing")
        return self._answer(a["token"], "stale") if a["born"] not in ("", job["born"]) else ""

    def cancel(self, a: dict[str, Any]) -> list[str]:
        """A waiting job ends, a running one is flagged and its worker woken."""
        n, word = a["number"], self._meant(a)
        if word:
            return [word]
        job = self.jobs[n]
        if job["state"] == "running":
            if "cancel_requested" not in job:
                job["cancel_requested"] = a["by"]
                self._event("cancel", n, by=a["by"])
            self._token(job["worker"], f"cancel:{n}")
            return [self._answer(a["token"], "ok")]
        if job["state"] in ("pending", "scheduled"):
            self.sets["scheduled"].pop(n, None)
            self.pending[job["shape"]].pop(n, None)
            self._over(n, "cancelled", "cancelled_by_user", f"cancelled by {a['by']}")
            self._event("cancel", n, by=a["by"])
        return [self._answer(a["token"], job["state"])]

    def requeue(self, a: dict[str, Any]) -> list[str]:
        """A failed or cancelled job begins anew."""
        n, word = a["number"], self._meant(a)
        if word:
            return [word]
        job = self.jobs[n]
        if job["state"] not in ("failed", "cancelled"):
            return [self._answer(a["token"], "no")]
        if n not in self.kept["spec"]:
            return [self._answer(a["token"], "unreadable")]
        if job["env"] not in self.envs:
            return [self._answer(a["token"], "gone")]
        tick = self._tick(self.image.keys[f"job:{n}"]["tick"])
        rank = tick - int(job["priority"]) * self.setting("aging_us")
        for name in ("finished", "failed"):
            self.sets[name].pop(n, None)
        for name in ("cancel_requested", "exit_code", "due_at", "started_at", "finished_at", "worker", "host", "gpus"):
            job.pop(name, None)
        job |= {"tick": str(tick), "rank": str(rank), "attempts": "0", "losses": "0"}
        for kind in ("result", "value"):
            self.kept[kind].pop(n, None)
        self._back(n, "", "")
        self._event("requeue", n, by=a["by"])
        return [self._answer(a["token"], "ok")]

    def force_release(self, a: dict[str, Any]) -> list[str]:
        """The device is taken from its run, which is still to end."""
        if a["token"] in self.requests:
            return self.requests[a["token"]].split(":")
        fence, _, holder = self.granted.get(a["device"], "").partition(" ")
        n = holder.partition(":")[2]
        job = self.jobs.get(n, {})
        if (job.get("state"), job.get("fence")) != ("running", fence):
            return self._answer(a["token"], "no:").split(":")
        self.granted[a["device"]] = f"{fence} released:{n}"
        self._token(job["worker"], f"cancel:{n}")
        self._event("force_release", n, device=a["device"], fence=fence, by=a["by"])
        return self._answer(a["token"], f"ok:{n}").split(":")

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

    # --- workers' scripts --------------------------------------------------------------------------------

    def claim(self, a: dict[str, Any]) -> list[str]:
        """The best fitting job and the device, in one step."""
        worker, device, question = a["worker"], a["device"], a["question"]
        last, _, n = self.claims.get(worker, "0:").partition(":")
        if int(question) < int(last):
            return ["stale"]
        if question == last:
            job = self.jobs.get(n, {})
            same = (job.get("state"), job.get("worker"), job.get("claim")) == ("running", worker, question)
            return self._granted(n) if same else ["stale"]
        self.claims[worker] = f"{question}:"
        self._promote(20)
        woken = [*a["woken"].split(","), *self.wake.pop(worker, [])]
        self._leave_idle(worker)
        if a["version"] != (self.version or "0"):
            self._pass_on(woken)
            return ["shapes", self.version or "0", *sorted(self.shapes)]
        if not self.is_free(device):
            self._pass_on(woken)
            return ["taken"]
        found = self._take_head(a["fitting"])
        if found is None:
            self._pass_on(woken)
            if a["waits"] == "1":
                self._stand_idle(worker, a["fitting"])
            return ["empty", self._next_due()]
        self._run(found, a)
        self._pass_on(woken)
        return self._granted(found)

    def _run(self, n: str, a: dict[str, Any]) -> None:
        job, device = self.jobs[n], a["device"]
        fence = str(self._tick(self.got[3] if len(self.got) > 3 else None))
        self.claims[a["worker"]] = f"{a['question']}:{n}"
        self.leases[device], self.granted[device] = fence, f"{fence} job:{n}"
        job |= {
            "state": "running", "fence": fence, "claim": a["question"], "worker": a["worker"], "host": a["host"],
            "gpus": device, "started_at": TIME, "reason": "", "detail": "", "attempts": str(int(job["attempts"]) + 1),
        }  # fmt: skip
        self.sets["running"][n] = self.now + self.setting("ttl_ms") + self.setting("margin_ms")
        self._event("claim", n, worker=a["worker"], device=device, fence=fence)

    def _granted(self, n: str) -> list[str]:
        job = self.jobs[n]
        fields = [job[name] for name in ("fence", "born", "attempts", "losses", "retry_delay_ms", "env")]
        return ["ok", n, *fields, self.kept["spec"][n]]

    def _pass_on(self, woken: list[str]) -> None:
        for shape in woken:
            if self.pending.get(shape):
                self._wake_one(shape)

    def is_free(self, device: str) -> bool:
        fence, _, holder = self.granted.get(device, "").partition(" ")
        job = self.jobs.get(holder.partition(":")[2], {})
        return device not in self.leases and (job.get("state"), job.get("fence")) != ("running", fence)

    def _take_head(self, fitting: list[str]) -> str | None:
        for _ in range(20):
            heads = [
                min((rank, n) for n, rank in self.pending[shape].items())
                for shape in fitting
                if self.pending.get(shape)
            ]
            if not heads:
                return None
            n = min(heads, key=lambda head: head[0])[1]
            del self.pending[self.jobs[n]["shape"]][n]
            if n in self.kept["spec"]:
                return n
            self._over(n, "failed", "bad_payload", "its record in Redis cannot be read")
            self._event("fail", n, reason="bad_payload")
        return None

    def _stand_idle(self, worker: str, fitting: list[str]) -> None:
        self.idle[worker] = self.now
        self.idle_shapes[worker] = set(fitting)
        for shape in fitting:
            self.idle_for[shape][worker] = self.now

    def _next_due(self) -> str:
        """What an empty claim says about the next scheduled job: it depends on the moment, within the call."""
        due = min(self.sets["scheduled"].values(), default=None)
        if due is None:
            return ""
        said = int(self.got[2]) if len(self.got) > 2 and self.got[2] else -1
        first, last = max(due - 2 * self.now + self.earlier, 0), max(due - self.earlier, 0)
        return str(said) if first <= said <= last else f"a time between {first:.0f} and {last:.0f}"

    def heartbeat(self, a: dict[str, Any]) -> list[str]:
        """The lease is renewed, unless the device is another's."""
        n, fence = a["number"], a["fence"]
        word = self._guard(n, fence)
        if word:
            return [word]
        device = self.jobs[n]["gpus"]
        if self.granted[device] != f"{fence} job:{n}" or self.leases.get(device, fence) != fence:
            return ["taken"]
        self.leases[device] = fence
        self.sets["running"][n] = self.now + self.setting("ttl_ms") + self.setting("margin_ms")
        return ["ok", self.jobs[n].get("cancel_requested", "")]

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
        self._event("complete", n, fence=a["fence"], state=word)
        return [word]

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
        if word == "cancelled":
            self._over_cancelled(n)
        elif a["delay_ms"] and int(job["attempts"]) <= int(job["retries"]):
            job |= {"state": "scheduled", "reason": a["reason"], "detail": a["detail"], "due_at": TIME}
            self.sets["scheduled"][n] = self.now + int(a["delay_ms"])
        else:
            self._over(n, "failed", a["reason"], a["detail"])
        self._event("fail", n, fence=a["fence"], reason=a["reason"])
        return [word]

    def release(self, a: dict[str, Any]) -> list[str]:
        """The job goes back to its place, the attempt not counted."""
        n, word = a["number"], self._guard(a["number"], a["fence"])
        if word:
            return [word]
        job = self.jobs[n]
        released = self._taken_away(n)
        word = "cancelled" if "cancel_requested" in job else "failed" if released else "released"
        self._ended(n, word)
        if word == "cancelled":
            self._over_cancelled(n)
        elif released:
            self._over(n, "failed", "lease_lost", TAKEN_AWAY)
        else:
            self._uncount(job)
            self._back(n, "shutdown", a["detail"])
        self._event("release", n, fence=a["fence"])
        return [word]

    def lose(self, a: dict[str, Any]) -> list[str]:
        """The run is gone and its end is unknown."""
        word = self._guard(a["number"], a["fence"])
        if not word:
            self._lost(a["number"], "lose")
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
        return ["ok"]

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
            return ["no"]
        promoted = self._promote(limit)
        running = self.sets["running"]
        for _, n in sorted((score, n) for n, score in running.items() if score > self.now + 2 * lease)[:limit]:
            running[n] = self.now + lease
        overdue = sorted((score, n) for n, score in running.items() if score < self.now)[:limit]
        overdue = overdue if self.now >= self.grace else []
        for _, n in overdue:
            self._lost(n, "reap")
        self.idle = {worker: since for worker, since in self.idle.items() if since > self.now - 60_000}
        for _, worker in sorted((at, worker) for worker, at in self.workers.items() if at <= self.now - DAY_MS)[:limit]:
            del self.workers[worker]
            self.claims.pop(worker, None)
        purged = self._purge("finished", limit) + self._purge("failed", limit)
        self.swept = self.now if purged < limit else self.now - pause
        return ["ok", str(promoted), str(len(overdue)), str(purged)]

    def _purge(self, name: str, limit: int) -> int:
        members = self.sets[name]
        keep_ms, keep = (self.setting(f"retain_{name}_{what}") for what in ("ms", "count"))
        oldest = sorted((score, n) for n, score in members.items())[:limit]
        too_many = len(members) - keep
        gone = []
        for at, (score, n) in enumerate(oldest):
            age = self.now - score
            if age <= keep_ms and (at >= too_many or age < TOLD_MS):
                break
            gone.append(n)
        for n in gone:
            del members[n], self.jobs[n]
            for texts in self.kept.values():
                texts.pop(n, None)
            self.logs.pop(n, None)
            self.log_ends.pop(n, None)
        return len(gone)
