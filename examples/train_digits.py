"""Train a small network on scikit-learn's digits: a real run of a few seconds, with no download and no GPU.

    python examples/train_digits.py --lr 0.2 --hidden 128,64 --epochs 30

It prints a line an epoch and a JSON object at the end. In a job of foxqueue it leaves a checkpoint in FOXQUEUE_DIR
after every epoch; the next run of the same job goes on from there and comes to the same network as one that was
never interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded: for matrices so small, more threads are slower

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
CLASSES = np.arange(10)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits.")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate (0.1)")
    parser.add_argument("--hidden", type=layers, default=(128, 64), metavar="N,N", help="hidden layers (128,64)")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the training data (30)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the data (0)")
    parser.add_argument("--fail-at", type=int, metavar="EPOCH", help="spoil the data of this epoch, so that it fails")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        default=os.environ.get("FOXQUEUE_DIR"),
        help="where checkpoints go (FOXQUEUE_DIR; without it there are none)",
    )
    return parser.parse_args(arguments)


def layers(text: str) -> tuple[int, ...]:
    """``128,64`` as sizes of hidden layers."""
    return tuple(int(size) for size in text.split(","))


def load_data() -> tuple[Array, Labels, Array, Labels]:
    """Training data, every digit moved by up to a pixel in each direction too, and test data as it is."""
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels
    )
    padded = np.pad(train.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    moved = [padded[:, row : row + 8, column : column + 8] for row in range(3) for column in range(3)]
    return np.concatenate(moved).reshape(-1, 64), np.tile(train_labels, 9), test, test_labels


def make_model(options: argparse.Namespace, data: Array, labels: Labels) -> MLPClassifier:
    """A network with its first weights."""
    model = MLPClassifier(
        hidden_layer_sizes=options.hidden,
        solver="sgd",
        momentum=0.0,  # so that weights are all there is to save
        learning_rate_init=options.lr,
        batch_size=64,
        shuffle=False,  # an epoch's order comes from seed and epoch alone
        random_state=options.seed,
    )
    model.partial_fit(data[:64], labels[:64], classes=CLASSES)
    return model


def save(path: Path, epoch: int, model: MLPClassifier) -> None:
    """Leave a whole checkpoint or the one before, never a torn one."""
    weights = {f"weights_{at}": part for at, part in enumerate([*model.coefs_, *model.intercepts_])}
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        np.savez(file, epoch=np.array(epoch), **weights)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def restore(path: Path, model: MLPClassifier) -> int:
    """Put saved weights into the network and return the last epoch done; 0 without a checkpoint."""
    if not path.exists():
        return 0
    with np.load(path, allow_pickle=False) as saved:
        for at, part in enumerate([*model.coefs_, *model.intercepts_]):
            part[...] = saved[f"weights_{at}"]
        return int(saved["epoch"])


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train from the checkpoint, or from the start, to the last epoch."""
    data, labels, test, test_labels = load_data()
    model = make_model(options, data, labels)
    checkpoint = None if options.checkpoints is None else options.checkpoints / "digits.npz"
    done = 0 if checkpoint is None else restore(checkpoint, model)
    if done:
        print(f"going on from epoch {done} of {options.epochs}", flush=True)
    for epoch in range(done + 1, options.epochs + 1):
        order = np.random.default_rng([options.seed, epoch]).permutation(len(data))
        batch = data[order]
        if epoch == options.fail_at:
            batch[0] = np.nan
        model.partial_fit(batch, labels[order])
        if checkpoint is not None:
            save(checkpoint, epoch, model)
        accuracy = model.score(test, test_labels)
        print(f"epoch {epoch}/{options.epochs} loss {model.loss_:.4f} accuracy {accuracy:.4f}", flush=True)
    return {
        "accuracy": round(float(model.score(test, test_labels)), 4),
        "epochs": options.epochs,
        "resumed_from": done,
        "device": os.environ.get("FOXQUEUE_GPUS"),
        "attempt": int(os.environ.get("FOXQUEUE_ATTEMPT", "1")),
    }


def main(arguments: list[str] | None = None) -> int:
    print(json.dumps(train(read_options(arguments))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
