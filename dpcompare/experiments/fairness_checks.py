"""The fairness checks: what can make a comparison unfair, where its value is found, and what to do about a difference.

A check reads anything that a run's speed or result may depend on: an option, a device, a version. The first losses are
among them, since what was asked for is not always what is computed. Readers see the checks as settings.
"""

from __future__ import annotations

from dpcompare._version import major_minor
from dpcompare.config.setting import Changes
from dpcompare.experiments import environments
from dpcompare.experiments import sheet_values as values
from dpcompare.experiments.agreement import (
    TOLERANCES,
    Agreement,
    ByRounding,
    as_asked,
    in_few_steps_of_float64,
    in_float64,
    no_clock_problem,
    no_late_step_problem,
    no_shared_gpu,
    on_cpu,
    replicas_equal,
    same_batches,
    same_decisions,
    same_environment,
    same_origin,
    updated_otherwise,
    where_evaluated_rows_differ,
)
from dpcompare.experiments.check_row import Differs, FairnessCheck, workload_check
from dpcompare.experiments.observed_checks import OBSERVED

UP_TO_FIRST_GRADIENT = Changes.FIRST_LOSS | Changes.FIRST_GRADIENT
UP_TO_SECOND_LOSS = UP_TO_FIRST_GRADIENT | Changes.SECOND_LOSS
"""What the first steps depend on; later losses and evaluations depend on more."""
OF_RATES = Changes.BATCHES | Changes.SECOND_LOSS | Changes.LATER_LOSSES | Changes.LAST_EVALUATION
"""What the rates of the steps depend on: a schedule ends with the steps that are trained, which the batches say too."""

CHECKS: dict[str, FairnessCheck] = {
    "status": FairnessCheck(lambda r: r.status, Changes.LEARNING, "compare runs that completed"),
    # What is trained.
    "data": FairnessCheck(
        lambda r: r.store_sha256, Changes.BATCHES | Changes.FIRST_LOSS, "train on the same prepared store"
    ),
    "skipped images": FairnessCheck(lambda r: r.skipped_images, Changes.LEARNING, "train on the same prepared store"),
    "evaluated samples": FairnessCheck(
        lambda r: r.evaluations[-1].count if r.evaluations else None,
        Changes.LAST_EVALUATION,
        "evaluate every validation sample exactly once",
    ),
    "sample order": FairnessCheck(
        lambda r: r.sample_order_sha256,
        Changes.BATCHES | Changes.FIRST_LOSS,
        "use the same --seed, --global-batch-size and number of steps",
        differs=Differs.SEEDS | Differs.GLOBAL_BATCH,
    ),
    "augmentation": workload_check("augment"),
    "model": workload_check("model", lambda r: r.model, differs=Differs.MODELS),
    "source of the model": FairnessCheck(
        lambda r: r.settings.get("model_source", "of dpcompare") if r.settings else None,
        Changes.FIRST_LOSS,
        "use the same version of the model's file",
        differs=Differs.MODELS,
    ),
    "image size": workload_check("image_size", lambda r: r.image_size),
    "origin of the weights": workload_check("weights", values.origin_of_weights, compare=same_origin),
    "initial weights": FairnessCheck(
        lambda r: r.weights_sha256,
        Changes.FIRST_LOSS,
        "use the same --model, --weights and --seed; for a custom model also the same names of layers, unless its "
        "runs are of one `dpcompare compare`, which matches them",
        differs=Differs.SEEDS | Differs.MODELS,
    ),
    "steps trained": FairnessCheck(
        lambda r: values.until_target(r) or len(r.train_loss),
        Changes.BATCHES | Changes.LATER_LOSSES | Changes.LAST_EVALUATION,
        "use the same --epochs or --steps, --target-accuracy and --stop-at-target",
        differs=Differs.GLOBAL_BATCH,
    ),
    # How it is trained.
    "global batch size": workload_check(
        "global_batch_size", lambda r: r.global_batch_size, differs=Differs.GLOBAL_BATCH
    ),
    "batch per replica": FairnessCheck(
        lambda r: r.global_batch_size / r.num_replicas,
        Changes.NORMALISATION,  # with the two that it is made of
        "use equal numbers of replicas",
        differs=Differs.SPLIT_BATCH,
    ),
    "replicas": FairnessCheck(
        lambda r: r.num_replicas,
        Changes.FIRST_LOSS | Changes.NORMALISATION,
        "use equal numbers of replicas: --nodes, --devices-per-node, --stages",
        differs=Differs.DEVICES,
    ),
    "micro-batches per step": workload_check("accumulate"),
    "updates": FairnessCheck(
        lambda r: r.settings.get("updates", "synchronous") if r.settings else None,
        Changes.FIRST_LOSS,
        "compare modes that train synchronously, or throughput alone with --subject updates",
    ),
    "BatchNorm scope": workload_check("batchnorm"),
    "BatchNorm momentum": workload_check("batchnorm_momentum"),
    "BatchNorm epsilon": FairnessCheck(
        values.batchnorm_epsilon,
        Changes.FIRST_LOSS,
        "use the same release of dpcompare",
        differs=Differs.MODELS,
    ),
    "BatchNorm recomputation": workload_check("batchnorm_recompute", off="none"),
    "optimizer": workload_check("optimizer", values.setting_value("optimizer")),
    "learning rate": workload_check("learning_rate"),
    "schedule": workload_check("schedule"),
    "learning-rate warm-up": workload_check("lr_warmup_steps"),
    "learning-rate scaling": workload_check("scale_lr"),
    "weight decay": workload_check("weight_decay", off="none"),
    "gradient clipping": workload_check("clip_norm", off="none"),
    "weight average": workload_check("weight_average", off="none"),
    "label smoothing": workload_check("label_smoothing", off="none"),
    "regularization": workload_check("regularization"),
    "dropout": FairnessCheck(
        values.setting_value("dropout"),
        Changes.BATCHES | Changes.FIRST_LOSS,
        "use the same rate in all frameworks",
        differs=Differs.MODELS,
    ),
    "stochastic depth": FairnessCheck(
        values.setting_value("stochastic_depth"),
        Changes.BATCHES | Changes.FIRST_LOSS,
        "use the same rate in all frameworks",
        differs=Differs.MODELS,
    ),
    # What that made of it: a setting that was asked for and not obeyed shows here, first in what says which step.
    **{
        f"{what} of each step": FairnessCheck(
            values.decisions_of(what),
            Changes.LEARNING,
            fix,
            compare=same_decisions(what),
            depends_on=depends_on,
        )
        for what, fix, depends_on in (
            ("learning rate", "every step must be made at the rate that the schedule says", OF_RATES),
            ("decay and average", "every step must use the same factors", OF_RATES),
            ("images", "every step must train the same images", Changes.BATCHES),
            ("labels", "the images of every step must have the same labels", Changes.BATCHES),
            ("augmentation", "the images of every step must be changed in the same way", Changes.BATCHES),
            ("dropped features", "the same features must be dropped in every step", Changes.BATCHES),
        )
    },
    "batches": FairnessCheck(
        values.computed("batch_digests"),
        Changes.LEARNING,
        "the training step must receive the same rows; `dpcompare verify` finds what differs",
        compare=Agreement(agree=same_batches),
        depends_on=Changes.BATCHES,
    ),
    "evaluated rows": FairnessCheck(
        values.evaluated_rows,
        Changes.LEARNING,
        "every evaluation must read the same pixels and labels",
        compare=Agreement(agree=same_batches, explain=where_evaluated_rows_differ),
        shown=values.in_one_checksum,
        depends_on=Changes.BATCHES,
    ),
    "optimizer steps": FairnessCheck(
        values.count_value("optimizer_steps"), Changes.LEARNING, "every step must update the weights", compare=as_asked
    ),
    "images computed": FairnessCheck(
        values.count_value("images"),
        Changes.LEARNING,
        "every sample must enter the loss, as often as is claimed",
        compare=as_asked,
    ),
    "first loss": FairnessCheck(
        values.loss_of_step(1),
        Changes.LEARNING,
        "the same first batch must give the same loss; `dpcompare verify` finds where they part",
        compare=Agreement(agree=ByRounding(TOLERANCES["first loss"])),
        depends_on=Changes.FIRST_LOSS,
    ),
    "first gradient norm": FairnessCheck(
        values.computed("first_gradient_norm"),
        Changes.LEARNING,
        "backward pass and sum over replicas must agree; `dpcompare verify` finds where they part",
        compare=Agreement(agree=ByRounding(TOLERANCES["first gradient norm"], least=0.0), applies_to=on_cpu),
        depends_on=UP_TO_FIRST_GRADIENT,
    ),
    "first update norm": FairnessCheck(
        values.computed("first_update_norm"),
        Changes.LEARNING,
        "the optimizer must make the same update of the same gradient; `dpcompare verify` finds where they part",
        compare=Agreement(
            agree=ByRounding(TOLERANCES["first update norm"], least=0.0),
            applies_to=on_cpu,
            explain=updated_otherwise,
        ),
        depends_on=UP_TO_SECOND_LOSS,
    ),
    "equality of replicas": FairnessCheck(
        values.replicas_compared,
        Changes.LEARNING,
        "all replicas must begin from the same weights and make the same updates",
        compare=replicas_equal,
    ),
    "second loss": FairnessCheck(
        values.loss_of_step(2),
        Changes.LEARNING,
        "the first updates must agree; `dpcompare verify` finds where they part",
        compare=Agreement(agree=ByRounding(TOLERANCES["second loss"]), applies_to=on_cpu),
        depends_on=UP_TO_SECOND_LOSS,
    ),
    "first evaluation loss": FairnessCheck(
        values.computed("first_evaluation_loss"),
        Changes.LEARNING,
        "evaluations and running statistics must agree; `dpcompare verify` finds where they part",
        compare=Agreement(agree=ByRounding(TOLERANCES["first evaluation loss"]), applies_to=on_cpu),
        depends_on=UP_TO_SECOND_LOSS | Changes.EVALUATIONS,
    ),
    "first evaluation accuracy": FairnessCheck(
        values.computed("first_evaluation_accuracy"),
        Changes.LEARNING,
        "an accuracy must count the same samples as correct",
        compare=Agreement(
            agree=ByRounding(TOLERANCES["first evaluation accuracy"], samples=lambda result: result.global_batch_size),
            applies_to=on_cpu,
        ),
        depends_on=UP_TO_SECOND_LOSS | Changes.EVALUATIONS,
    ),
    "later losses": FairnessCheck(
        values.later_losses,
        Changes.LEARNING,
        "the updates must agree; `dpcompare verify` finds where they part",
        compare=Agreement(agree=ByRounding(TOLERANCES["later losses"]), applies_to=in_float64),
        depends_on=UP_TO_SECOND_LOSS | Changes.LATER_LOSSES,  # a schedule ends with the steps that are trained
    ),
    "evaluation loss": FairnessCheck(
        values.evaluation_loss,
        Changes.LEARNING,
        "the last evaluations must agree; `dpcompare verify` finds where they part",
        compare=Agreement(agree=ByRounding(TOLERANCES["evaluation loss"]), applies_to=in_few_steps_of_float64),
        depends_on=UP_TO_SECOND_LOSS | Changes.EVALUATIONS | Changes.LAST_EVALUATION,
    ),
    "evaluation accuracy": FairnessCheck(
        values.evaluation_accuracy,
        Changes.LEARNING,
        "an accuracy must count the same samples as correct",
        compare=Agreement(agree=ByRounding(TOLERANCES["evaluation accuracy"]), applies_to=in_few_steps_of_float64),
        depends_on=UP_TO_SECOND_LOSS | Changes.EVALUATIONS | Changes.LAST_EVALUATION,
    ),
    "late step": FairnessCheck(
        values.late_step,
        Changes.LEARNING,
        "another framework must make the same steps of the same state; `dpcompare verify --like RUN` finds where",
        compare=no_late_step_problem,
    ),
    # With which arithmetic.
    "precision": workload_check("precision", lambda r: r.precision),
    "TF32": FairnessCheck(
        values.setting_value("tf32"), Changes.LEARNING, "use the same --profile, and --tune tf32 for all or none"
    ),
    "convolution algorithms": FairnessCheck(
        values.setting_value("convolution_algorithms"), Changes.SPEED, "leave TF_CUDNN_USE_AUTOTUNE alone"
    ),
    "profile": workload_check("profile", lambda r: r.profile),
    "tuning": FairnessCheck(
        lambda r: "found by autotune" if r.config.get("autotuned") else r.config.get("tune") or "the profile's own",
        Changes.SPEED,
        "use the same --tune, or --autotune for all",
    ),
    "emulation": FairnessCheck(
        lambda r: "several replicas on one GPU" if r.config["cluster"].get("shared") else r.emulated,
        Changes.SPEED,
        "use GPUs, one for each replica: on the CPU, or with --share-gpu, the mode is only emulated",
        differs=Differs.EMULATION,
        compare=no_shared_gpu,
    ),
    # On what, and how it is measured.
    "device type": FairnessCheck(lambda r: r.device_type, Changes.SPEED, "use the same --device"),
    "devices": FairnessCheck(
        lambda r: len(r.device_names),
        Changes.SPEED,
        "use equal numbers of devices: --nodes, --devices-per-node",
        differs=Differs.DEVICES,
    ),
    "device names": FairnessCheck(
        lambda r: values.kinds_of_devices(r.device_names), Changes.SPEED, "use the same kind of devices"
    ),
    "GPU settings": FairnessCheck(
        values.gpu_settings,
        Changes.SPEED,
        "set the same power limit, clocks, ECC and MIG on all GPUs (nvidia-smi -q), and have nvidia-ml-py, "
        "which reads them, in every environment",
    ),
    "links between GPUs": FairnessCheck(
        values.gpu_links,
        Changes.SPEED,
        "choose GPUs that are connected in the same way: --gpus",
        differs=Differs.DEVICES,
    ),
    "cores": FairnessCheck(values.setting_value("cores"), Changes.SPEED, "use the same number of cores"),
    "allocator": FairnessCheck(values.setting_value("allocator"), Changes.SPEED, "use the same release of dpcompare"),
    "environment variables": FairnessCheck(
        values.environment,
        Changes.LEARNING,
        "unset them, or set the same for both; what only one framework reads can only be unset",
        compare=same_environment,
    ),
    "input threads per replica": FairnessCheck(
        values.setting_value("input_threads"), Changes.SPEED, "use the same --input-threads"
    ),
    **OBSERVED,
    "steps per window of the clock": FairnessCheck(
        values.setting_value("steps_per_window"), Changes.SPEED, "use the same --steps-per-window"
    ),
    "evaluations": FairnessCheck(
        lambda r: f"every {n} steps" if (n := r.config.get("evaluate_every")) else "after every epoch",
        Changes.SPEED,
        "use the same --evaluate-every",
        differs=Differs.CLUSTERS,
    ),
    "checkpoints": FairnessCheck(
        lambda r: (
            ("every step" if n == 1 else f"every {n} steps") if (n := r.config.get("checkpoint_every")) else "none"
        ),
        Changes.SPEED,
        "use the same --checkpoint-every",
    ),
    "profiled steps": FairnessCheck(
        lambda r: r.config.get("profile_steps") or "none", Changes.SPEED, "use the same --profile-steps, or none"
    ),
    "clock": FairnessCheck(
        lambda r: r.clock_problem or "its seconds add up",
        Changes.SPEED,
        "run it again: its seconds must add up on two clocks",
        compare=no_clock_problem,
    ),
    "warm-up steps": workload_check("warmup_steps"),
    "measured steps": FairnessCheck(
        values.measured_steps, Changes.SPEED, "use the same --steps or --epochs", differs=Differs.GLOBAL_BATCH
    ),
    "versions that differ between nodes": FairnessCheck(
        lambda r: r.differing_versions or "none", Changes.SPEED, "install the same versions on every node"
    ),
    "dpcompare": FairnessCheck(
        lambda r: major_minor(r.dpcompare_version),
        Changes.BATCHES | Changes.LEARNING,
        "use the same MAJOR.MINOR version of dpcompare",
    ),
    "engine": FairnessCheck(
        lambda r: r.config.get("placement", {}).get("engine", "local"),
        Changes.SPEED,
        "use the same --engine",
        differs=Differs.CLUSTERS,
    ),
    "link": FairnessCheck(
        lambda r: r.config.get("placement", {}).get("link") or "not limited",
        Changes.SPEED,
        "use the same --link",
        differs=Differs.CLUSTERS,
    ),
    # What the comparison is about: shown, and never a reason.
    "stages": FairnessCheck(lambda r: r.config.get("stages", 1), Changes.SPEED),
    "pipeline schedule": FairnessCheck(lambda r: r.config.get("pipeline_schedule") or "none", Changes.SPEED),
    "launcher": FairnessCheck(lambda r: r.config.get("launcher") or "the mode's own", Changes.SPEED),
    "backend": FairnessCheck(lambda r: r.config.get("backend") or "the mode's own", Changes.SPEED),
    "framework": FairnessCheck(lambda r: r.framework, Changes.SPEED),
    "mode": FairnessCheck(lambda r: r.mode, Changes.SPEED),
    "nodes": FairnessCheck(lambda r: r.num_nodes, Changes.SPEED),
    "processes": FairnessCheck(lambda r: r.num_processes, Changes.SPEED),
    "gradient sync": FairnessCheck(
        lambda r: r.config.get("sync_gradients", True), Changes.FIRST_GRADIENT, "compare runs that sync gradients"
    ),
    "input": FairnessCheck(
        lambda r: "one batch, on its devices" if r.config.get("reuse_batch") else "read for every step",
        Changes.LEARNING,
        "compare runs that read their batches: no reuse_batch",
    ),
    "collective": FairnessCheck(lambda r: r.collective, Changes.SPEED),
    **{
        name: FairnessCheck(values.setting_value_or_none(name.lower().replace(" ", "_")), Changes.SPEED)
        for name in (
            *("memory layout", "compilation", "optimizer kernels", "BatchNorm kernels", "gradient buckets"),
            *("convolutions", "donation", "scheduler"),
        )
    },
    "attention": FairnessCheck(values.attention, Changes.SPEED),
    # XLA's counter cannot be reset; so GPU memory is not compared between JAX and the others.
    "GPU memory counted": FairnessCheck(
        lambda r: r.settings.get("peak_memory_counted", "in the measured steps"), Changes.NOTHING
    ),
    # A process per device has a thread at least, which can be more threads than cores: a price of the mode.
    "threads in all": FairnessCheck(lambda r: r.threads_per_process * r.num_processes, Changes.SPEED),
    # A process with GPUs of several NUMA nodes cannot be bound to one: a price of the mode.
    "bound to cores near the GPUs": FairnessCheck(
        lambda r: sum(len(node.bound_to_cores) for node in r.nodes) or "no process", Changes.SPEED
    ),
    "environment": FairnessCheck(environments.in_words, Changes.SPEED),
    "versions": FairnessCheck(lambda r: r.versions, Changes.SPEED),
}


def names_that_change(what: Changes) -> frozenset[str]:
    """The checks that change any of these."""
    return frozenset(name for name, check in CHECKS.items() if check.changes & what)


def names_that_differ(between: Differs) -> frozenset[str]:
    """The checks that differ by nature between any of these."""
    return frozenset(name for name, check in CHECKS.items() if check.differs & between)


_ONLY_SPEED = Changes.SPEED | Changes.STEP_TIME


def changes_only_speed(name: str) -> bool:
    """Whether a check that differs leaves what is learned as it is, but for rounding."""
    return not CHECKS[name].changes & ~_ONLY_SPEED
