"""What a run computed: counts, evaluations, what its target took, and how busy its devices were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from dpcompare.config.run import RunConfig
from dpcompare.data.digest import combined
from dpcompare.models.costs import training_flops, values_moved
from dpcompare.system.json_files import Count, Finite, Measured, Norm, Number, Share
from dpcompare.system.peaks import peak_of
from dpcompare.system.type_names import FieldValue

LARGEST_MEAN, LARGEST_BATCH = 1.25, 3.0
"""Times the loss of the median batch that the mean and the worst batch of an evaluation may have unmentioned."""
LARGEST_BATCH_OF_ONE_EPOCH = 10.0
"""The same of the worst batch within the first epoch, when a model is far from done and a batch may just be harder."""


class Evaluation(BaseModel):
    """One pass over the validation split, every sample once."""

    model_config = ConfigDict(frozen=True)

    epoch: Count
    """Epochs started when it was made, from 1."""
    step: Count
    """Steps trained when it was made."""
    loss: Finite | None
    """None where it is not finite."""
    accuracy: Share
    count: Number
    median_batch_loss: Finite | None = None
    """The median of the mean losses of its global batches, which a few samples do not move."""
    largest_batch_loss: Finite | None = None
    rows: str | None = None
    """The digest of its samples, their labels and pixels, in hexadecimal; None in results before 0.2.0."""

    @property
    def outlier(self) -> str | None:
        """A sentence about a few samples that make much of the loss; None where there are none."""
        mean, median, largest = self.loss, self.median_batch_loss, self.largest_batch_loss
        if mean is None or not median or largest is None:
            return None
        unmentioned = LARGEST_BATCH_OF_ONE_EPOCH if self.epoch <= 1 else LARGEST_BATCH
        if mean <= LARGEST_MEAN * median or largest <= unmentioned * median:
            return None
        return (
            f"a few samples make up most of the evaluation loss of {mean:.4f}: it is {median:.4f} in the median batch, "
            f"{largest:.4g} in the worst"
        )


class TrainingCost(BaseModel):
    """What all steps before an evaluation took; evaluations and checkpoints are no part of it."""

    model_config = ConfigDict(frozen=True)

    step: Count
    """Steps before it."""
    images: Count
    """Samples trained before it; one that came again in a later epoch counts again."""
    seconds: Measured | None
    """Seconds of the slowest process, the time between steps included, and the first step with what it compiles; None
    in a run that was resumed, whose earlier attempts are not timed."""
    joules: Measured | None
    """Joules of all devices; None if a part of them was not counted."""


def reached(evaluations: Sequence[Evaluation], target: float) -> Evaluation | None:
    """The first evaluation at which the target was reached; None where none was."""
    return next((evaluation for evaluation in evaluations if is_reached(evaluation.accuracy, target)), None)


def is_reached(accuracy: float, target: float) -> bool:
    return accuracy >= target


class ComputedByProcess(BaseModel):
    """What one training process contributes; sums are over its own samples."""

    model_config = ConfigDict(frozen=True)

    optimizer_steps: Count | None
    """Counted by the optimizer; None where its updates are not steps."""
    images: Count | None
    """Samples whose losses were computed for training."""
    batch_digests: dict[int, str]
    """Step -> digest of the rows that it received, in hexadecimal."""
    first_grad_norm_sq: float | None = None
    """Its share of the sum of squares of the synchronized gradient of step 1."""
    first_evaluation_loss_sum: float | None = None
    """The sum of the losses of its part of the batch of step 1, evaluated after that step."""
    first_evaluation_correct: float | None = None
    """Samples of this part that were classified correctly then; None in results before 0.2.0, as what follows."""
    first_evaluation_count: float = 0
    """Samples of this part."""
    backlog_seconds: float | None = None
    """Seconds that it took to read losses once the clock had stopped: before evaluations and at the end."""
    replica_digests: dict[int, dict[str, list[str]]] = {}
    """Steps made -> tensor of the parameters and the optimizer -> a digest of the copy of each replica of this process,
    in hexadecimal; empty where there is one replica in all, or each trains alone."""
    first_update_norms: dict[str, float] = {}
    """Parameter that this process has -> the L2 norm of what step 1 changed in it."""


class Computed(BaseModel):
    """What a run computed in its last attempt; a figure is None where it is not known."""

    model_config = ConfigDict(frozen=True)

    optimizer_steps: Count | None
    """Updates that the optimizer counted itself."""
    optimizer_steps_asked: Count
    images: Count | None
    """Samples whose losses were computed for training, as the loss saw them."""
    images_asked: Count
    images_claimed: Count
    """Samples that the speed and the mean losses are over."""
    batch_digests: dict[int, str]
    """Step -> digest of all rows that the training step received; of the first and of the last step."""
    first_gradient_norm: Norm | None
    """L2 norm over all parameters of the synchronized gradient of step 1."""
    first_evaluation_loss: Finite | None
    """Mean loss of the batch of step 1, evaluated after that step."""
    first_evaluation_accuracy: Share | None = None
    """Share of these samples that were classified correctly; None in results before 0.2.0, as what follows."""
    first_update_norms: dict[str, Norm] = {}
    """Parameter -> the L2 norm of what step 1 changed in it."""
    backlog_seconds: Measured | None = None
    """Seconds that the slowest process took to read losses once the clock had stopped, before evaluations and at the
    end: none to speak of, unless a device was still computing."""
    replicas_compared_after: list[Count] = []
    """Steps after which the parameters of all replicas, and what their optimizers remember, were compared; none where
    the replicas have one copy, or one replica is all there is."""
    replica_difference: str | None = None
    """A sentence about the first tensor that was not the same in all replicas, to the last bit; None where all were."""

    @property
    def first_update_norm(self) -> float | None:
        """L2 norm over all parameters of what step 1 changed."""
        return math.hypot(*self.first_update_norms.values()) if self.first_update_norms else None

    @classmethod
    def of(
        cls,
        processes: Sequence[ComputedByProcess],
        *,
        optimizer_steps_asked: int,
        images_asked: int,
        images_claimed: int,
    ) -> Computed:
        """Put together what all training processes contribute."""
        steps = [process.optimizer_steps for process in processes]
        images = [process.images for process in processes]
        squares = [process.first_grad_norm_sq for process in processes]
        loss_sums = [process.first_evaluation_loss_sum for process in processes]
        squares_sum, loss_sum = _finite_sum(squares), _finite_sum(loss_sums)
        correct = _finite_sum([process.first_evaluation_correct for process in processes])
        update_norms = {name: norm for process in processes for name, norm in process.first_update_norms.items()}
        copies = _copies_of_all(processes)
        count = sum(process.first_evaluation_count for process in processes)
        return cls(
            # Of the process that contradicts most what was asked.
            optimizer_steps=None if None in steps else max(steps, key=lambda n: abs((n or 0) - optimizer_steps_asked)),
            optimizer_steps_asked=optimizer_steps_asked,
            images=None if None in images else sum(count or 0 for count in images),
            images_asked=images_asked,
            images_claimed=images_claimed,
            batch_digests={
                step: combined([int(process.batch_digests[step], 16) for process in processes])
                for step in processes[0].batch_digests
            },
            first_gradient_norm=None if squares_sum is None else math.sqrt(squares_sum),
            first_evaluation_loss=None if loss_sum is None or not count else loss_sum / count,
            first_evaluation_accuracy=None if correct is None or not count else correct / count,
            first_update_norms=update_norms if all(map(math.isfinite, update_norms.values())) else {},
            backlog_seconds=max(
                (process.backlog_seconds for process in processes if process.backlog_seconds is not None), default=None
            ),
            replicas_compared_after=[
                step for step, tensors in copies.items() if any(len(digests) > 1 for digests in tensors.values())
            ],
            replica_difference=_replica_difference(copies),
        )


def _copies_of_all(processes: Sequence[ComputedByProcess]) -> dict[int, dict[str, list[str]]]:
    """Steps made -> tensor -> the digests of all copies, in the order of the replicas."""
    copies: dict[int, dict[str, list[str]]] = {}
    for process in processes:
        for step, tensors in process.replica_digests.items():
            for name, digests in tensors.items():
                copies.setdefault(step, {}).setdefault(name, []).extend(digests)
    return copies


def _replica_difference(copies: Mapping[int, Mapping[str, Sequence[str]]]) -> str | None:
    for step, tensors in copies.items():
        for name, digests in tensors.items():
            other = next((number for number, digest in enumerate(digests) if digest != digests[0]), None)
            if other is not None:
                when = f"after step {step}" if step else "before the first step"
                return f"replica {other} differs from replica 0 in {name} {when}"
    return None


def _finite_sum(values: Sequence[float | None]) -> float | None:
    """None where a part is missing, or the sum is not finite, which JSON cannot express."""
    known = [value for value in values if value is not None]
    total = math.fsum(known) if all(map(math.isfinite, known)) else math.inf
    return total if len(known) == len(values) and math.isfinite(total) else None


BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
"""The bytes of a feature, by precision."""


def utilization_figures(
    config: RunConfig, images_per_second: float | None, device_names: Sequence[str], *, tf32: bool
) -> dict[str, FieldValue]:
    """The figures of a run; nothing without a speed, or for a custom model, of which nothing is known.

    Args:
        config: of the run, whose inputs are prepared.
        images_per_second: of all replicas.
        device_names: of all of its devices, as the framework reports them.
        tf32: whether products of float32 were rounded to TF32.
    """
    workload = config.workload
    if config.inputs is None or images_per_second is None:
        return {}
    asked = workload.model, workload.image_size, config.inputs.num_classes
    flops, values = training_flops(*asked), values_moved(*asked)
    if flops is None or values is None:
        return {}
    devices = config.topology.num_replicas * config.topology.devices_per_replica
    per_device = images_per_second / (1 if config.cluster.shared else devices)
    peaks = {name: peak_of(name) for name in device_names}
    peak = next(iter(peaks.values()), None) if len(peaks) == 1 and not config.cluster.shared else None
    kind = "tf32" if tf32 and workload.precision == "float32" else workload.precision
    most = peak.flops.get(kind) if peak else None
    return {
        "flops_per_image": flops,
        "achieved_flops": per_device * flops,
        "achieved_bandwidth": per_device * values * BYTES[workload.precision],
        "model_flops_utilization": per_device * flops / most if most else None,
        "bandwidth_utilization": per_device * values * BYTES[workload.precision] / peak.bandwidth if peak else None,
        "peak_source": f"{peak.source}: {most / 1e12:g} TFLOP/s in {kind}" if peak and most else None,
    }
