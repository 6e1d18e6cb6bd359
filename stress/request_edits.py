"""The eight requests of `stress.change_requests`: changes of files that are there, and what shows that they work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A text that is once in a file, and what takes its place."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One row of REQUESTS."""

    title: str
    edits: tuple[Edit, ...]
    shown_by: tuple[tuple[str, ...], ...]
    """Commands of Python that fail unless it works."""
    says: str
    """The same in words; what is left out, where something is."""


DPCOMPARE = ("-m", "dpcompare")
SMALL = ("--image-size", "8", "--steps", "6", "--device", "cpu")
LAMB_ROW = """    "lamb": OptimizerSpec(
        constants={"betas": ADAM_BETAS, "epsilon": ADAM_EPSILON},
        slots=("exp_avg", "exp_avg_sq"),
        first_moment_factor=1 - ADAM_BETAS[0],
        fused_for_shards=False,
        verification=Verification(
            num_steps=12,
            schedule="constant",
            learning_rate=1e-3,
            precisions={"tiny": ("float64",), "big": ("float32", "float64"), "big, quick": ()},
            one_step={"float32": 5e-3, "float64": 1e-9},
            all_steps={"float32": None, "float64": 1e-8},
            one_step_on_gpus={"float32": 2e-2, "float64": 1e-8},
            all_steps_on_gpus={"float64": 1e-7},
        ),
    ),
}

FIRST_MOMENTS"""
LAMB_TORCH = '''class Lamb(Kernel):
    """Adam's step, as long as the weights of its tensor (You et al. 2020, algorithm 2)."""

    slots: ClassVar[Mapping[str, str]] = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **kernels: bool) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.steps_taken = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps_taken += 1
        first, second = (1 - beta**self.steps_taken for beta in ADAM_BETAS)
        for group in self.param_groups:
            for parameter in group["params"]:
                memory = self.state[parameter]
                mean = memory.setdefault("exp_avg", torch.zeros_like(parameter))
                square = memory.setdefault("exp_avg_sq", torch.zeros_like(parameter))
                mean.mul_(ADAM_BETAS[0]).add_(parameter.grad, alpha=1 - ADAM_BETAS[0])
                square.mul_(ADAM_BETAS[1]).addcmul_(parameter.grad, parameter.grad, value=1 - ADAM_BETAS[1])
                update = mean / (square.sqrt() + ADAM_EPSILON) * (second**0.5 / first)
                norms = parameter.norm(), update.norm()
                trust = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
                parameter.sub_(group["lr"] * trust * update)

    def continue_after(self, steps_taken: int) -> None:
        self.steps_taken = steps_taken


KERNELS: dict[str, type[Sgd | Adam | Lamb]] = {"sgd": Sgd, "adam": Adam, "lamb": Lamb}'''
LAMB_JAX = '''class Lamb(Optimizer):
    """Adam's step, as long as the weights of its tensor (You et al. 2020, algorithm 2)."""

    slot_names = ("exp_avg", "exp_avg_sq")

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, (1 - ADAM_BETAS[1] ** step) ** 0.5 / (1 - ADAM_BETAS[0] ** step)]

    def update(
        self, parameter: jax.Array, slots: Sequence[jax.Array], gradient: jax.Array, constants: jax.Array
    ) -> tuple[jax.Array, list[jax.Array]]:
        mean = ADAM_BETAS[0] * slots[0] + (1 - ADAM_BETAS[0]) * gradient
        square = ADAM_BETAS[1] * slots[1] + (1 - ADAM_BETAS[1]) * jnp.square(gradient)
        update = constants[1] * mean / (jnp.sqrt(square) + ADAM_EPSILON)
        norms = jnp.linalg.norm(parameter.ravel()), jnp.linalg.norm(update.ravel())
        trust = jnp.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
        return parameter - constants[0] * trust * update, [mean, square]


KERNELS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "lamb": Lamb}'''
LAMB_TENSORFLOW = '''class Lamb(Optimizer):
    """Adam's step, as long as the weights of its tensor (You et al. 2020, algorithm 2)."""

    slot_names = ("exp_avg", "exp_avg_sq")

    def kernel_constants(self, step: int, learning_rate: float) -> list[float]:
        return [learning_rate, (1 - ADAM_BETAS[1] ** step) ** 0.5 / (1 - ADAM_BETAS[0] ** step)]

    def arguments(self, constants: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"lr": constants[0], "correction": constants[1]}

    def update(
        self, variable: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, arguments: dict[str, tf.Tensor]
    ) -> tf.Operation:
        read = tf.raw_ops.ReadVariableOp
        weights, mean, square = (read(resource=each, dtype=gradient.dtype) for each in (variable, *slots[:2]))
        mean = ADAM_BETAS[0] * mean + (1 - ADAM_BETAS[0]) * gradient
        square = ADAM_BETAS[1] * square + (1 - ADAM_BETAS[1]) * tf.square(gradient)
        update = arguments["correction"] * mean / (tf.sqrt(square) + ADAM_EPSILON)
        norms = tf.norm(weights), tf.norm(update)
        trust = tf.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], tf.ones_like(norms[0]))
        for slot, value in zip(slots[:2], (mean, square), strict=True):
            tf.raw_ops.AssignVariableOp(resource=slot, value=value)
        return tf.raw_ops.AssignSubVariableOp(resource=variable, value=arguments["lr"] * trust * update)


KERNELS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "lamb": Lamb}'''
OPTIONS_OF_RAY = '''class RayOptions(EngineOptions):
    """Of tasks on a Ray cluster."""

    address: str = setting(
        "auto",
        changes=Changes.NOTHING,
        option=Option(CLUSTERS, "the address of its cluster.", resumable=True),
    )


@dataclass(frozen=True, kw_only=True)
class EngineRow:'''
ROW_OF_RAY = """    "ray": EngineRow(
        summary="machines of a Ray cluster",
        simulated=False,
        engine="dpcompare.launch.engines.ray:Ray",
        options=RayOptions,
        is_elsewhere=True,
    ),
    "kubernetes": EngineRow("""
NUMPY_FRAMEWORK = """FRAMEWORKS: dict[str, Framework] = {
    "numpy": Framework(
        packages=("numpy",),
        extras={"cpu": (), "gpu": ()},
        sizes={"cpu": Sizes(download=0.02, on_disk=0.1), "gpu": Sizes(download=0.02, on_disk=0.1)},
        variables=("NUMPY_",),
        count_gpus="print(0)",
        tested_versions={"numpy": ("2.4",)},
        is_optional=True,
        usual_modes=("single", "single"),
        cpu_start_seconds=1,
        gpu_start_seconds=60,
    ),"""
NUMPY_MODE = """MODES: dict[tuple[str, str], Mode] = {
    ("numpy", "single"): Mode(
        target="numpy.single:Single",
        summary="one device, by hand: what a backend has to do",
        multi_device=False,
        device_types=frozenset({"cpu"}),
        supported_values={"model": ("mlp",), "optimizer": ("sgd",), "accumulate": (1,)},
        by_default=False,
    ),"""

REQUESTS: dict[str, Request] = {
    "model": Request(
        title="AlexNet in three frameworks",
        edits=(
            Edit(
                "dpcompare/models/architectures.py",
                "from dpcompare.models import efficientnet, resnet, toys, vgg, vit\n",
                "from dpcompare.models import alexnet, efficientnet, resnet, toys, vgg, vit\n",
            ),
            Edit("dpcompare/models/architectures.py", "**toys.SPECS}", "**alexnet.SPECS, **toys.SPECS}"),
        ),
        shown_by=(
            (*DPCOMPARE, "run", "torch:single", "--model", "alexnet", "--image-size", "64", "--steps", "2"),
            (*DPCOMPARE, "run", "jax:single", "--model", "alexnet", "--image-size", "64", "--steps", "2"),
            (*DPCOMPARE, "run", "tensorflow:single", "--model", "alexnet", "--image-size", "64", "--steps", "2"),
        ),
        says="a run in each framework",
    ),
    "interpreter": Request(
        title="an interpreter per arm",
        edits=(
            Edit(
                "dpcompare/cli/options.py",
                """        metavar="FRAMEWORK=PATH",
        group=MODE,
        resumable=True,
        scope="study",
""",
                """        metavar="FRAMEWORK=PATH",
        group=MODE,
        resumable=True,
""",
            ),
        ),
        shown_by=(
            (
                "-c",
                "import os, sys; from pathlib import Path; other = Path('other-python'); "
                "other.write_text(f'#!/bin/sh\\nexec {sys.executable} \"$@\"\\n'); other.chmod(0o755)",
            ),
            (
                *(*DPCOMPARE, "compare", "--model", "mlp", *SMALL, "--arm", "torch:single"),
                *("--arm", "torch:single,python=torch=./other-python"),
            ),
        ),
        says="a study whose second arm runs in another interpreter, which is looked at before the start. `--resume` "
        "belongs to the feature itself",
    ),
    "engine": Request(
        title="an engine for Ray",
        edits=(
            Edit(
                "dpcompare/config/engines.py",
                "@dataclass(frozen=True, kw_only=True)\nclass EngineRow:",
                OPTIONS_OF_RAY,
            ),
            Edit("dpcompare/config/engines.py", '    "kubernetes": EngineRow(', ROW_OF_RAY),
        ),
        shown_by=(
            (
                *(*DPCOMPARE, "plan", "torch:ddp", "--engine", "ray", "--address", "ray://head:10001"),
                *("--nodes", "2", "--device", "cpu"),
            ),
        ),
        says="`plan`, with its option. Never run: no Ray was there",
    ),
    "optimizer": Request(
        title="LAMB",
        edits=(
            Edit("dpcompare/config/optimizers.py", "}\n\nFIRST_MOMENTS", LAMB_ROW),
            Edit(
                "dpcompare/config/modes.py",
                '        shards_parameters=True,\n        exchange="shards",\n',
                "        shards_parameters=True,\n"
                '        supported_values={"optimizer": ("sgd", "adam")},  # a norm of a whole tensor is needed\n'
                '        exchange="shards",\n',
            ),
            Edit(
                "dpcompare/backends/torch/optimizer.py",
                'KERNELS: dict[str, type[Sgd | Adam]] = {"sgd": Sgd, "adam": Adam}',
                LAMB_TORCH,
            ),
            Edit(
                "dpcompare/backends/jax/optimizer.py",
                'KERNELS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}',
                LAMB_JAX,
            ),
            Edit(
                "dpcompare/backends/tensorflow/optimizer.py",
                'KERNELS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}',
                LAMB_TENSORFLOW,
            ),
        ),
        shown_by=(
            (
                *(*DPCOMPARE, "verify", "--quick", "--frameworks", "torch,tensorflow,jax", "--modes", "single"),
                *("--model", "toy-bn", "--replicas", "1", "--precision", "float64"),
            ),
        ),
        says="`verify --quick --model toy-bn` in float64, which trains with LAMB too: every check passes. One mode, "
        "FSDP, is refused, since it keeps parts of tensors",
    ),
    "source": Request(
        title="datasets in .npz files",
        edits=(
            Edit(
                "dpcompare/data/prepare.py",
                "from dpcompare.data.hugging_face import HuggingFace\n",
                "from dpcompare.data.hugging_face import HuggingFace\nfrom dpcompare.data.npz import Npz\n",
            ),
            Edit("dpcompare/data/prepare.py", "HuggingFace, Custom, Folder)", "HuggingFace, Custom, Npz, Folder)"),
        ),
        shown_by=(
            (
                "-c",
                "import numpy as np; r = np.random.default_rng(0); "
                "x = lambda n: r.integers(0, 256, (n, 9, 9, 3), np.uint8); y = lambda n: r.integers(0, 3, n); "
                "np.savez('toy.npz', x_train=x(64), y_train=y(64), x_validation=x(9), y_validation=y(9))",
            ),
            (*DPCOMPARE, "run", "torch:single", "--dataset", "toy.npz", "--model", "mlp", *SMALL),
        ),
        says="a run that prepares such a file",
    ),
    "check": Request(
        title="transparent huge pages in the fairness sheet",
        edits=(
            Edit(
                "dpcompare/backends/description.py",
                '        "allocator": _allocator(),\n',
                '        "allocator": _allocator(),\n'
                '        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split("[")[1]'
                '.split("]")[0],\n',
            ),
            Edit(
                "dpcompare/experiments/fairness_checks.py",
                '    "environment variables": FairnessCheck(',
                '    "huge pages": FairnessCheck(\n'
                '        values.setting_value("huge_pages"), Changes.SPEED, "set the same transparent_hugepage on all '
                'machines"\n    ),\n    "environment variables": FairnessCheck(',
            ),
        ),
        shown_by=(
            (*DPCOMPARE, "run", "torch:single", "--model", "mlp", *SMALL, "--run-dir", "one"),
            (
                "-c",
                "from pathlib import Path; from dpcompare.experiments.fairness import compare; "
                "from dpcompare.results.result import RunResult; one = RunResult.load(Path('one')); "
                "values = {row.setting: row.values for row in compare([one, one]).rows}; "
                "assert values['huge pages'][0] in ('always', 'madvise', 'never'), values['huge pages']",
            ),
        ),
        says="a run, and its sheet",
    ),
    "figure": Request(
        title="how busy the GPUs were, by NVML",
        edits=(
            Edit(
                "dpcompare/system/gpu_state.py",
                '    thermal_slowdown_seconds: float | None = None\n    """Since the driver was loaded."""\n',
                '    thermal_slowdown_seconds: float | None = None\n    """Since the driver was loaded."""\n'
                '    busy_percent: Count | None = None\n    """Of the last second, in which a kernel ran."""\n',
            ),
            Edit(
                "dpcompare/system/gpu_state.py",
                "    return GpuReading(\n        power_limit_watts=None",
                '    rates = _ask("nvmlDeviceGetUtilizationRates", gpu)\n'
                "    return GpuReading(\n        busy_percent=rates.gpu if rates else None,\n"
                "        power_limit_watts=None",
            ),
            Edit(
                "dpcompare/experiments/figures.py",
                '    "achieved_flops": Figure(',
                '    "gpu_busy_percent": Figure(\n'
                '        "%",\n'
                '        "part of the last second of the measured steps in which a kernel ran, mean of the GPUs",\n'
                "        read=lambda run, _: mean_of([each.after.busy_percent for each in run.gpus if each.after]),\n"
                "        over_rounds=median,\n"
                '        column=Column("GPU busy", "of the last second, by NVML", "{:.0f}%", is_optional=True),\n'
                '    ),\n    "achieved_flops": Figure(',
            ),
            Edit(
                "dpcompare/experiments/figures.py",
                "def _jitter(",
                "def mean_of(values: Sequence[int | None]) -> float | None:\n"
                '    """Of those that are known; None where none is."""\n'
                "    known = [value for value in values if value is not None]\n"
                "    return sum(known) / len(known) if known else None\n\n\ndef _jitter(",
            ),
        ),
        shown_by=(
            (
                "-c",
                "from dpcompare.experiments.arm_rows import ArmRow, Round; from dpcompare.report.formats import "
                "COLUMNS; from dpcompare.report.records import FIELDS; name = 'gpu_busy_percent'; "
                "assert name in Round.model_fields and name in ArmRow.model_fields and name in FIELDS; "
                "assert 'GPU busy' in COLUMNS",
            ),
        ),
        says="it is in rounds, arms, columns, CSV and Parquet. Never run on a GPU",
    ),
    "framework": Request(
        title="NumPy, with a mode `single`",
        edits=(
            Edit("dpcompare/config/frameworks.py", "FRAMEWORKS: dict[str, Framework] = {", NUMPY_FRAMEWORK),
            Edit("dpcompare/config/modes.py", "MODES: dict[tuple[str, str], Mode] = {", NUMPY_MODE),
        ),
        shown_by=(
            (
                *(*DPCOMPARE, "compare", "--arm", "numpy:single", "--arm", "torch:single", "--optimizer", "sgd"),
                *("--precision", "float64", "--model", "mlp", *SMALL, "--out", "both"),
            ),
            (
                "-c",
                "import json; from pathlib import Path; "
                "one, *others = (json.loads(path.read_text())['train_loss'] for path in "
                "Path('both').glob('runs/*/*/result.json')); "  # more than two where one was disturbed and made again
                "print(worst := max(abs(a - b) for other in others for a, b in zip(one, other, strict=True))); "
                "assert worst < 1e-12",
            ),
        ),
        says="a study of it and torch, whose losses in float64 are within 1e-12",
    ),
}
