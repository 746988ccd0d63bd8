"""D4: a cancel meets a claim. No job succeeds after an accepted cancel, and the word says what became of it."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from queue_driver import Queue
from servers import RealServer
from stack import Stack
from wait import until

from foxqueue.broker import CHUNK_JOBS, Claimed, Environment, NewJob
from foxqueue.codec import pack

JOBS, WORKERS, USERS = 1000, 8, 4
WITHIN_S = 0.005


@dataclass
class Race:
    """Workers claim jobs in their order; users cancel each job within five milliseconds of its claim.

    Attributes:
        words: job -> what the user was told.
        told: when, by this process's clock.
        claimed: job -> when its claim was answered.
        ends: job -> what its worker was told at the end.
    """

    server: RealServer
    words: dict[int, str] = field(default_factory=dict)
    told: dict[int, float] = field(default_factory=dict)
    claimed: dict[int, float] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    next_claim: int = 0  # the first job that nobody has claimed or cancelled, by what was heard

    def work(self, index: int) -> None:
        """One worker: claims, runs for a moment, looks whether it should stop, ends."""
        chance, queue = random.Random(index), Queue(self.server.url, "test")
        worker = queue.worker(f"w{index}", f"GPU-{index}")
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < 1.0:
            reply = worker.ask()
            if reply.word != "ok":
                time.sleep(0.001)
                continue
            run = Claimed.of(reply)
            self.claimed[run.number] = idle_since = time.monotonic()
            self.next_claim = max(self.next_claim, run.number + 1)
            time.sleep(chance.uniform(0, 2 * WITHIN_S))
            beat = queue.broker.send(queue.broker.heartbeat_call(run.number, run.fence))[0]
            assert beat.word == "ok"
            stops = beat.rest[0] != b""
            time.sleep(chance.uniform(0, WITHIN_S) * (not stops))  # it may be asked after the last beat
            self.ends[run.number] = queue.fail(run, "signal") if stops else queue.complete(run)
        queue.broker.close()

    def cancel(self, numbers: list[int]) -> None:
        """One user: cancels each job when its claim is near."""
        chance, queue = random.Random(numbers[0]), Queue(self.server.url, "test")
        for number in numbers:
            ahead = chance.randint(-4, 12)
            deadline = time.monotonic() + 10
            while self.next_claim + ahead < number and time.monotonic() < deadline:
                time.sleep(0.0005)
            time.sleep(chance.uniform(0, WITHIN_S))
            self.words[number] = queue.broker.cancel(number, "", "me")
            self.told[number] = time.monotonic()
            self.next_claim = max(self.next_claim, number + (self.words[number] == "cancelled"))
        queue.broker.close()


def run(server: RealServer, queue: Queue) -> Race:
    """Enqueue, let them race, wait for the end."""
    env, jobs = Environment.of({}), [NewJob("job", "g1", 5, 0, 1000, pack({"v": 1})) for _ in range(JOBS)]
    for first in range(0, JOBS, CHUNK_JOBS):
        queue.broker.enqueue_many(jobs[first : first + CHUNK_JOBS], env)
    race = Race(server)
    threads = [threading.Thread(target=race.work, args=(index,)) for index in range(WORKERS)]
    threads += [
        threading.Thread(target=race.cancel, args=([*range(1 + user, JOBS + 1, USERS)],)) for user in range(USERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return race


def test_a_cancel_within_five_milliseconds_of_the_claim_means_what_its_word_says(
    server: RealServer, queue: Queue
) -> None:
    race = run(server, queue)
    assert len(race.words) == JOBS
    keys, redis = queue.broker.keys, queue.broker.redis
    events: dict[int, list[str]] = {number: [] for number in race.words}
    for _, fields in redis.xrange(keys.events):
        if fields[b"event"] != b"enqueue":
            events[int(fields[b"job"])].append(fields[b"event"].decode())
    for number, word in race.words.items():
        job, told = queue.job(number), f"job {number} was answered {word}: {events[number]}"
        match word:
            case "cancelled":  # without running, or it had been stopped already
                assert events[number] == ["cancel"] and number not in race.claimed, told
                assert job["state"] == "cancelled", told
            case "ok":  # running: its end was refused as a success, whatever the worker said
                assert events[number][:2] == ["claim", "cancel"] and len(events[number]) == 3, told
                assert (job["state"], race.ends[number]) == ("cancelled", "cancelled"), told
            case _:
                assert word == "succeeded" and events[number] == ["claim", "complete"], told
                assert (job["state"], race.ends[number]) == ("succeeded", "succeeded"), told
    words = Counter(race.words.values())
    assert min(words["cancelled"], words["ok"], words["succeeded"]) > JOBS // 50, f"no race: {words}"
    near = [number for number, at in race.claimed.items() if abs(race.told[number] - at) < WITHIN_S]
    assert len(near) > JOBS // 10, f"only {len(near)} cancels came near a claim"


def test_no_job_of_real_workers_goes_on_after_an_accepted_cancel(stack: Stack) -> None:
    stack.up("--simulate", "4x24G", workers=4)
    marks, chance = stack.root / "marks", random.Random(4)
    script = 'echo begin $FOXQUEUE_JOB_ID >> "$0"; sleep 0.5; echo end $FOXQUEUE_JOB_ID >> "$0"'
    jobs = [stack.api.submit(["sh", "-c", script, str(marks)], cwd=stack.work) for _ in range(60)]
    words: dict[int, str] = {}
    for start in range(0, len(jobs), 10):  # of ten in a row four run, or are about to: cancelled in any order
        window = jobs[start : start + 10]
        for job in chance.sample(window, len(window)):
            first = min(other.number for other in window if other.number not in words)
            until(lambda first=first: stack.api.job(first).state != "pending", every=0.001)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 2 * WITHIN_S))
            words[job.number] = stack.api.broker.cancel(job.number, job.born, "me")
    stack.api.wait(jobs, timeout=60)
    lines = marks.read_text().splitlines()
    for job in jobs:
        begun, ended = f"begin {job.number}" in lines, f"end {job.number}" in lines
        what = f"job {job.number} was answered {words[job.number]}, is {job.state}, began {begun}, ended {ended}"
        claims = len(stack.events(job.number, "claim"))
        if words[job.number] == "succeeded":
            assert (job.state, claims, ended) == ("succeeded", 1, True), what
        else:
            assert (job.state, job.reason) == ("cancelled", "cancelled_by_user"), what
            assert (claims, begun) == (0, False) if words[job.number] == "cancelled" else claims == 1, what
        assert not stack.processes_of(job.number) if claims else True, what
    assert {"cancelled", "ok"} <= set(words.values()), Counter(words.values())
