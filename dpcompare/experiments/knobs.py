"""The table of knobs: what can make a comparison unfair, where its value is found, and what to do about a difference.

A knob is anything that a run's speed or result may depend on: an option, a device, a version. The first losses are
among them, since what was asked for is not always what is computed. Readers see them as settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpcompare._version import major_minor
from dpcompare.backends.environment import acting_on
from dpcompare.experiments.agreement import (
    BATCHES_DEPEND_ON,
    EVALUATION_DEPENDS_ON,
    FIRST_GRADIENT_DEPENDS_ON,
    FIRST_LOSS_DEPENDS_ON,
    LATER_LOSSES_DEPEND_ON,
    SECOND_LOSS_DEPENDS_ON,
    TOLERANCES,
    Agreement,
    ByRounding,
    Judge,
    Judgement,
    Values,
    as_asked,
    computed,
    counted,
    evaluation_loss,
    in_few_steps_of_float64,
    in_float64,
    later_losses,
    loss_of_step,
    on_cpu,
    same_batches,
)
from dpcompare.results.result import RunResult


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One row of KNOBS."""

    value: Callable[[RunResult], Any]
    remedy: str = ""
    """What to do about a difference; empty where it is a property of the framework or mode that is being compared."""
    judge: Judge | None = None
    """Of the results, their values of this knob and of all, where the first may differ as asked for, or by rounding."""

    @property
    def must_be_equal(self) -> bool:
        return bool(self.remedy)


def of_workload(name: str) -> Callable[[RunResult], Any]:
    """A field of the workload."""
    return lambda result: result.config["workload"].get(name)


def _or_none(name: str) -> Callable[[RunResult], Any]:
    """A field of the workload that is off by default; results from before it was there have none."""
    return lambda result: result.config["workload"].get(name) or "none"


def _setting(name: str) -> Callable[[RunResult], Any]:
    return lambda result: result.settings.get(name)


def _property(name: str) -> Callable[[RunResult], Any]:
    """A setting that not every mode has."""
    return lambda result: result.settings.get(name) or "none"


def _environment(result: RunResult) -> str:
    variables = acting_on(result.framework, result.settings.get("environment") or {})
    return ", ".join(f"{name}={value}" for name, value in sorted(variables.items())) or "none"


def _measured_steps(result: RunResult) -> int | str:
    """Where one rule for all finds how many steps are left out, it may find another number in each run."""
    if of_workload("warmup_steps")(result) == "auto":
        return "all that had settled"
    return _until_target(result) or result.measured_steps


def _until_target(result: RunResult) -> str | None:
    """How long a run trains that ends at its target, which comes at another step in each; None of others."""
    return f"until an accuracy of {result.target_accuracy:g}" if result.config.get("stop_at_target") else None


def _gpu_settings(result: RunResult) -> str | None:
    """What decides how fast the GPUs may run; unknown where one of them could not be asked."""
    if result.device_type != "gpu":
        return "none"
    if not result.gpus or any(gpu.unread for gpu in result.gpus):
        return None
    return "; ".join(sorted({gpu.settings for gpu in result.gpus}))


def _no_clock_problem(results: Sequence[RunResult], values: Sequence[Any], of_all: Values) -> Judgement:
    """One run whose clock is wrong is enough; a run that nobody watched is none."""
    problem = any(result.clock_problem for result in results)
    return Judgement(equal=not problem, is_reason=problem)


def _no_shared_gpu(results: Sequence[RunResult], values: Sequence[Any], of_all: Values) -> Judgement:
    """Replicas that wait for each other's GPU have no speed to compare, not even with others that do."""
    is_shared = any(result.config["cluster"].get("shared") for result in results)
    equal = len(set(values)) == 1
    return Judgement(equal=equal, is_reason=is_shared or not equal)


def _gpu_links(result: RunResult) -> str:
    links = {link or "unknown" for gpu in result.gpus for link in gpu.links.values()}
    return "; ".join(sorted(links)) or "none"


def _kinds(names: Sequence[str]) -> list[str]:
    """Device names without the numbers of simulated ones."""
    return sorted({name.split(":")[0] for name in names})


KNOBS: dict[str, Knob] = {
    "status": Knob(value=lambda r: r.status, remedy="compare runs that completed"),
    # What is trained.
    "data": Knob(value=lambda r: r.store_sha256, remedy="train on the same prepared store"),
    "skipped images": Knob(value=lambda r: r.skipped_images, remedy="train on the same prepared store"),
    "evaluated samples": Knob(
        value=lambda r: r.evaluations[-1].count if r.evaluations else None,
        remedy="evaluate every validation sample exactly once",
    ),
    "sample order": Knob(
        value=lambda r: r.sample_order_sha256, remedy="use the same --seed, --global-batch-size and number of steps"
    ),
    "augmentation": Knob(value=of_workload("augment"), remedy="use the same --augment"),
    "model": Knob(value=lambda r: r.model, remedy="use the same --model"),
    "source of the model": Knob(
        value=lambda r: r.settings.get("model_source", "of dpcompare") if r.settings else None,
        remedy="use the same version of the model's file",
    ),
    "image size": Knob(value=lambda r: r.image_size, remedy="use the same --image-size"),
    "initial weights": Knob(value=lambda r: r.weights_sha256, remedy="use the same --model, --weights and --seed"),
    "steps trained": Knob(
        value=lambda r: _until_target(r) or len(r.train_loss),
        remedy="use the same --epochs or --steps, --target-accuracy and --stop-at-target",
    ),
    # How it is trained.
    "global batch size": Knob(value=lambda r: r.global_batch_size, remedy="use the same --global-batch-size"),
    "batch per replica": Knob(
        value=lambda r: r.global_batch_size / r.num_replicas, remedy="use equal numbers of replicas"
    ),
    "replicas": Knob(
        value=lambda r: r.num_replicas, remedy="use equal numbers of replicas: --nodes, --devices-per-node, --stages"
    ),
    "micro-batches per step": Knob(value=of_workload("accumulate"), remedy="use the same --accumulate"),
    "updates": Knob(
        value=lambda r: r.settings.get("updates", "synchronous") if r.settings else None,
        remedy="compare modes that train synchronously, or throughput alone with --subject updates",
    ),
    "BatchNorm scope": Knob(value=of_workload("batchnorm"), remedy="use the same --batchnorm"),
    "BatchNorm momentum": Knob(value=of_workload("batchnorm_momentum"), remedy="use the same --batchnorm-momentum"),
    "BatchNorm epsilon": Knob(value=_setting("batchnorm_epsilon"), remedy="use the same release of dpcompare"),
    "BatchNorm recomputation": Knob(value=_or_none("batchnorm_recompute"), remedy="use the same --batchnorm-recompute"),
    "optimizer": Knob(value=_setting("optimizer"), remedy="use the same --optimizer"),
    "learning rate": Knob(value=of_workload("learning_rate"), remedy="use the same --learning-rate"),
    "schedule": Knob(value=of_workload("schedule"), remedy="use the same --schedule"),
    "learning-rate warm-up": Knob(value=of_workload("lr_warmup_steps"), remedy="use the same --lr-warmup-steps"),
    "learning-rate scaling": Knob(value=of_workload("scale_lr"), remedy="use the same --scale-lr"),
    "weight decay": Knob(value=_or_none("weight_decay"), remedy="use the same --weight-decay"),
    "gradient clipping": Knob(value=_or_none("clip_norm"), remedy="use the same --clip-norm"),
    "weight average": Knob(value=_or_none("weight_average"), remedy="use the same --weight-average"),
    "label smoothing": Knob(value=_or_none("label_smoothing"), remedy="use the same --label-smoothing"),
    "regularization": Knob(value=of_workload("regularization"), remedy="use the same --regularization"),
    "dropout": Knob(value=_setting("dropout"), remedy="use the same rate in all frameworks"),
    "stochastic depth": Knob(value=_setting("stochastic_depth"), remedy="use the same rate in all frameworks"),
    # What that made of it: a setting that was asked for and not obeyed shows here.
    "batches": Knob(
        value=computed("batch_digests"),
        remedy="the training step must receive the same rows; `dpcompare verify` finds what differs",
        judge=Agreement(depends_on=BATCHES_DEPEND_ON, agree=same_batches),
    ),
    "optimizer steps": Knob(
        value=counted("optimizer_steps"), remedy="every step must update the weights", judge=as_asked
    ),
    "images computed": Knob(
        value=counted("images"), remedy="every sample must enter the loss, as often as is claimed", judge=as_asked
    ),
    "first loss": Knob(
        value=loss_of_step(1),
        remedy="the same first batch must give the same loss; `dpcompare verify` finds where they part",
        judge=Agreement(depends_on=FIRST_LOSS_DEPENDS_ON, agree=ByRounding(TOLERANCES["first loss"])),
    ),
    "first gradient norm": Knob(
        value=computed("first_gradient_norm"),
        remedy="backward pass and sum over replicas must agree; `dpcompare verify` finds where they part",
        judge=Agreement(
            depends_on=FIRST_GRADIENT_DEPENDS_ON,
            agree=ByRounding(TOLERANCES["first gradient norm"], least=0.0),
            judges=on_cpu,
        ),
    ),
    "second loss": Knob(
        value=loss_of_step(2),
        remedy="the first updates must agree; `dpcompare verify` finds where they part",
        judge=Agreement(depends_on=SECOND_LOSS_DEPENDS_ON, agree=ByRounding(TOLERANCES["second loss"]), judges=on_cpu),
    ),
    "first evaluation loss": Knob(
        value=computed("first_evaluation_loss"),
        remedy="evaluations and running statistics must agree; `dpcompare verify` finds where they part",
        judge=Agreement(
            depends_on=EVALUATION_DEPENDS_ON, agree=ByRounding(TOLERANCES["first evaluation loss"]), judges=on_cpu
        ),
    ),
    "later losses": Knob(
        value=later_losses,
        remedy="the updates must agree; `dpcompare verify` finds where they part",
        judge=Agreement(
            depends_on=LATER_LOSSES_DEPEND_ON,
            agree=ByRounding(TOLERANCES["later losses"]),
            judges=in_float64,
        ),
    ),
    "evaluation loss": Knob(
        value=evaluation_loss,
        remedy="the last evaluations must agree; `dpcompare verify` finds where they part",
        judge=Agreement(
            depends_on=(
                *EVALUATION_DEPENDS_ON,
                *("steps trained", "evaluated samples", "weight average", "BatchNorm recomputation"),
            ),
            agree=ByRounding(TOLERANCES["evaluation loss"]),
            judges=in_few_steps_of_float64,
        ),
    ),
    # With which arithmetic.
    "precision": Knob(value=lambda r: r.precision, remedy="use the same --precision"),
    "TF32": Knob(value=_setting("tf32"), remedy="use the same --profile, and --tune tf32 for all or none"),
    "convolution algorithms": Knob(
        value=_setting("convolution_algorithms"), remedy="leave TF_CUDNN_USE_AUTOTUNE alone"
    ),
    "profile": Knob(value=lambda r: r.profile, remedy="use the same --profile"),
    "tuning": Knob(
        value=lambda r: (
            "found by autotune" if r.config.get("autotuned") else r.config.get("tune") or "the profile's own"
        ),
        remedy="use the same --tune, or --autotune for all",
    ),
    "emulation": Knob(
        value=lambda r: "several replicas on one GPU" if r.config["cluster"].get("shared") else r.emulated,
        remedy="use GPUs, one for each replica: on the CPU, or with --share-gpu, the mode is only emulated",
        judge=_no_shared_gpu,
    ),
    # On what, and how it is measured.
    "device type": Knob(value=lambda r: r.device_type, remedy="use the same --device"),
    "devices": Knob(
        value=lambda r: len(r.device_names), remedy="use equal numbers of devices: --nodes, --devices-per-node"
    ),
    "device names": Knob(value=lambda r: _kinds(r.device_names), remedy="use the same kind of devices"),
    "GPU settings": Knob(
        value=_gpu_settings,
        remedy="set the same power limit, clocks, ECC and MIG on all GPUs (nvidia-smi -q), and have nvidia-ml-py, "
        "which reads them, in every environment",
    ),
    "links between GPUs": Knob(value=_gpu_links, remedy="choose GPUs that are connected in the same way: --gpus"),
    "cores": Knob(value=_setting("cores"), remedy="use the same number of cores"),
    "allocator": Knob(value=_setting("allocator"), remedy="use the same release of dpcompare"),
    "environment variables": Knob(
        value=_environment,
        remedy="unset them, or set the same for both; what only one framework reads can only be unset",
    ),
    "input threads per replica": Knob(value=_setting("input_threads"), remedy="use the same --input-threads"),
    "steps per window of the clock": Knob(value=_setting("steps_per_window"), remedy="use the same --steps-per-window"),
    "evaluations": Knob(
        value=lambda r: f"every {n} steps" if (n := r.config.get("evaluate_every")) else "after every epoch",
        remedy="use the same --evaluate-every",
    ),
    "checkpoints": Knob(
        value=lambda r: (
            ("every step" if n == 1 else f"every {n} steps") if (n := r.config.get("checkpoint_every")) else "none"
        ),
        remedy="use the same --checkpoint-every",
    ),
    "profiled steps": Knob(
        value=lambda r: r.config.get("profile_steps") or "none", remedy="use the same --profile-steps, or none"
    ),
    "clock": Knob(
        value=lambda r: r.clock_problem or "its seconds add up",
        remedy="run it again: its seconds must add up on two clocks",
        judge=_no_clock_problem,
    ),
    "warm-up steps": Knob(value=of_workload("warmup_steps"), remedy="use the same --warmup-steps"),
    "measured steps": Knob(value=_measured_steps, remedy="use the same --steps or --epochs"),
    "versions that differ between nodes": Knob(
        value=lambda r: r.differing_versions or "none", remedy="install the same versions on every node"
    ),
    "dpcompare": Knob(
        value=lambda r: major_minor(r.dpcompare_version), remedy="use the same MAJOR.MINOR version of dpcompare"
    ),
    "engine": Knob(
        value=lambda r: r.config.get("placement", {}).get("engine", "local"), remedy="use the same --engine"
    ),
    "link": Knob(
        value=lambda r: r.config.get("placement", {}).get("link") or "not limited", remedy="use the same --link"
    ),
    # What the comparison is about: shown, and never a reason.
    "stages": Knob(value=lambda r: r.config.get("stages", 1)),
    "pipeline schedule": Knob(value=lambda r: r.config.get("pipeline_schedule") or "none"),
    "launcher": Knob(value=lambda r: r.config.get("launcher") or "the mode's own"),
    "framework": Knob(value=lambda r: r.framework),
    "mode": Knob(value=lambda r: r.mode),
    "nodes": Knob(value=lambda r: r.num_nodes),
    "processes": Knob(value=lambda r: r.num_processes),
    "gradient sync": Knob(
        value=lambda r: r.config.get("sync_gradients", True), remedy="compare runs that sync gradients"
    ),
    "input": Knob(
        value=lambda r: "one batch, on its devices" if r.config.get("reuse_batch") else "read for every step",
        remedy="compare runs that read their batches: no reuse_batch",
    ),
    "collective": Knob(value=lambda r: r.collective),
    "memory layout": Knob(value=_property("memory_layout")),
    "compilation": Knob(value=_property("compilation")),
    "optimizer kernels": Knob(value=_property("optimizer_kernels")),
    "BatchNorm kernels": Knob(value=_property("batchnorm_kernels")),
    "gradient buckets": Knob(value=_property("gradient_buckets")),
    "depthwise convolution": Knob(value=_property("depthwise_convolution")),
    "donation": Knob(value=_property("donation")),
    "scheduler": Knob(value=_property("scheduler")),
    # XLA's counter cannot be reset; so GPU memory is not compared between JAX and the others.
    "GPU memory counted": Knob(value=lambda r: r.settings.get("peak_memory_counted", "in the measured steps")),
    # A process per device has a thread at least, which can be more threads than cores: a price of the mode.
    "threads in all": Knob(value=lambda r: r.threads_per_process * r.num_processes),
    # A process with GPUs of several NUMA nodes cannot be bound to one: a price of the mode.
    "bound to cores near the GPUs": Knob(
        value=lambda r: sum(len(node.bound_to_cores) for node in r.nodes) or "no process"
    ),
    "versions": Knob(value=lambda r: r.versions),
}


OF_SEED = frozenset({"sample order", "initial weights"})
"""Knobs that follow from a seed: in a study whose rounds have seeds of their own they are equal within rounds."""

SPEED_ONLY = frozenset({
    "convolution algorithms", "profile", "tuning", "emulation", "device type", "devices", "device names",
    "GPU settings", "links between GPUs", "cores", "allocator", "input threads per replica",
    "steps per window of the clock", "evaluations", "checkpoints", "profiled steps", "clock", "warm-up steps",
    "measured steps", "versions that differ between nodes", "engine", "link",
})  # fmt: skip
"""Knobs that decide how fast a model learns and not what, but for rounding; what a profile or a device makes of the
arithmetic is judged by the knobs of that."""

OF_NORMALISATION = frozenset({"batch per replica", "replicas", "micro-batches per step", "BatchNorm scope"})
"""Knobs that decide what a model learns only by the images that BatchNorm normalises together."""
