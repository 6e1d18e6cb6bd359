"""Runs as event files for TensorBoard, written after the fact from their results."""

from __future__ import annotations

from pathlib import Path

from dpcompare.errors import RequestError
from dpcompare.experiments.collection import Collection
from dpcompare.experiments.study import Arm


def write_event_files(collection: Collection, folder: Path) -> None:
    """A folder per run below `folder`: loss of every step, accuracy and loss of every evaluation, images per second.

    Raises:
        RequestError: tensorboardX, which writes them, is not installed. (TensorFlow no longer brings TensorBoard.)
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise RequestError(
            "--tensorboard needs tensorboardX, which is not installed; install the extra with: python -m pip install "
            "'dpcompare[report]'"
        ) from None
    for arm in collection.arms:
        for number, run in enumerate(arm.runs, start=1):
            if run is None:
                continue
            with SummaryWriter(
                str(folder / f"{Arm(name=arm.name, config=arm.config).folder}-round-{number:02d}")
            ) as writer:
                for step, loss in enumerate(run.train_loss, start=1):
                    if loss is not None:
                        writer.add_scalar("train/loss", loss, step)
                for evaluation in run.evaluations:
                    writer.add_scalar("evaluation/accuracy", evaluation.accuracy, evaluation.step)
                    if evaluation.loss is not None:
                        writer.add_scalar("evaluation/loss", evaluation.loss, evaluation.step)
                if run.images_per_second is not None:
                    writer.add_scalar("speed/images_per_second", run.images_per_second, len(run.train_loss))
