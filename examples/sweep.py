"""Submit a sweep from Python and print the best run: needs a queue, so run `foxqueue up` first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from foxqueue import Client, FoxqueueError, Job

TRAIN = Path(__file__).resolve().with_name("train_digits.py")
RATES = ("0.03", "0.1", "0.3")
NETWORKS = ("64", "128,64")


def main() -> int:
    with Client() as fox:
        jobs = [
            fox.submit(
                [sys.executable, TRAIN, "--lr", rate, "--hidden", hidden],
                name=f"digits-{rate}-{hidden}",
                tags={"sweep": "digits", "lr": rate, "hidden": hidden},
                retries=1,
            )
            for rate in RATES
            for hidden in NETWORKS
        ]
        print(f"submitted jobs {jobs[0].number} to {jobs[-1].number}; foxqueue ls shows them", flush=True)
        fox.wait(jobs, on_end=lambda job: print(f"job {job.number} {job.name}: {job.state}", flush=True))
        scored = [(accuracy(job), job) for job in jobs if job.succeeded]
    if not scored:
        print("no run succeeded")
        return 1
    best, job = max(scored, key=lambda pair: pair[0])
    print(f"best: job {job.number} with accuracy {best:.4f}, {dict(job.tags)}")
    return 0


def accuracy(job: Job) -> float:
    """From the JSON object that the run printed last."""
    return float(json.loads(job.logs().splitlines()[-1])["accuracy"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FoxqueueError as error:
        sys.exit(f"sweep: {error}")
