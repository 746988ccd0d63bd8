"""The environment that a job's processes find. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from foxqueue.gpu import Device, cuda_visible
from foxqueue.messages import Claimed
from foxqueue.rundirs import MARK


def job_environment(
    captured: Mapping[str, str],
    given: Mapping[str, str],
    claimed: Claimed,
    device: Device,
    *,
    cwd: str,
    visible: str,
    mark: str,
    files: Path,
) -> dict[str, str]:
    """Put a job's environment together: the submitter's, what was given by hand, then ours, which wins.

    Args:
        captured: the submitter's environment.
        given: of ``-e``.
        claimed: the run.
        device: what the job has.
        cwd: where it runs.
        visible: ``index`` or ``uuid``, what CUDA_VISIBLE_DEVICES carries.
        mark: names the run's processes.
        files: directory for scratch and checkpoints.
    """
    return {
        **captured,
        **given,
        "FOXQUEUE_JOB_ID": str(claimed.number),
        "FOXQUEUE_ATTEMPT": str(claimed.attempt),
        "FOXQUEUE_FENCE": claimed.fence,
        "FOXQUEUE_GPUS": "" if device.kind == "cpu" else device.uuid,
        "FOXQUEUE_DIR": str(files),
        MARK: mark,
        "PWD": cwd,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": cuda_visible(device, visible),
    }
