"""The first part of the checks on a GPU: every mode trains a toy, several at once, since nothing is timed."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from importlib import metadata
from typing import Any

from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.config.modes import MODES
from dpcompare.system.devices import installed_gpus, visible_gpus
from dpcompare.system.gpu_state import read_gpus
from stress.gpu_session import Check, CheckFailedError, Figures, LeftOutError, Session, difference, spans

CLOSE = 1e-2
"""Relative difference of two losses in float32 that is no sign of an error after some steps: the floor of
docs/fairness.md."""
TOY: dict[str, Any] = {
    **{"model": "toy-bn", "image_size": 32, "global_batch_size": 16, "steps": 12, "warmup_steps": 2},
    "evaluate_every": 12,
}
TOY_SECONDS = 80
"""The seconds that a toy may take: most of them are imports."""


def machine(session: Session) -> Figures:
    """What NVIDIA's tools and this environment say of themselves."""
    listed = "\n".join(sorted(f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()))
    (session.out / "distributions.txt").write_text(f"{listed}\n")
    found: Figures = {"driver": driver_version() or "none", "GPUs": len(installed_gpus()), "cores": os.cpu_count()}
    if not session.on_gpu:
        return found
    told = session.output("nvidia-smi", ["nvidia-smi", "-q"], seconds=30)
    (session.out / f"nvidia-smi-{session.part}.txt").write_text(told)
    gpus = visible_gpus(installed_gpus())
    states = [state.model_dump(mode="json") for state in read_gpus(gpus, gpus)]
    (session.out / "gpus.json").write_text(json.dumps(states, indent=1))
    unread = [name for name, value in states[0].items() if value is None and name not in ("unread", "after")]
    return found | {"name": states[0]["name"], "NVML does not tell": ", ".join(unread) or "nothing left out"}


def diagnosis(session: Session) -> Figures:
    """What doctor finds without trying the modes."""
    told = session.command("doctor", "dpcompare", "doctor", "--no-trials", "--json", seconds=60, codes=(0, 3))
    findings = json.loads(told)["findings"]
    problems = [f"{each['name']}: {each['found']}" for each in findings if each["status"] == "problem"]
    problems = [problem.replace(f" for {sys.executable}", "") for problem in problems]  # a path of this machine
    return {"findings": len(findings), "problems": "; ".join(problems) or "none"}


def toy(session: Session, name: str, framework: str, mode: str, options: tuple[str, ...] = ()) -> Figures:
    """A tiny run of a mode: its first loss and gradient norm are those of all others."""
    if not session.on_gpu and {"compilation=reduce-overhead", "--share-gpu"} & set(options):
        raise LeftOutError("GPUs alone have it")
    result = session.run(name, *options, framework=framework, mode=mode, seconds=TOY_SECONDS, **TOY)
    return {
        "first loss": result["train_loss"][0],
        "gradient norm": (result["computed"] or {}).get("first_gradient_norm"),
        "by": result["collective"],
        "first step (s)": result["first_step_seconds"],
    }


def agreement(session: Session) -> Figures:
    """All toys in float32 with one replica begin with the same loss; several have BatchNorm of their own."""
    losses = {}
    for path in sorted((session.out / "runs").glob("toy*/result.json")):
        result = json.loads(path.read_text())
        is_alike = result["precision"] == "float32" and result["num_replicas"] == 1
        if result["status"] == "completed" and is_alike:
            losses[path.parent.name] = result["train_loss"][0]
    if len(losses) < 2:
        raise LeftOutError(f"{len(losses)} toys in float32 have a result")
    widest = max(losses.values()) - min(losses.values())
    if widest > CLOSE * max(losses.values()):
        raise CheckFailedError(f"first losses differ by {widest:.2g}: {losses}")
    return {"runs": len(losses), "largest difference of a first loss": widest}


def resumption(session: Session, framework: str) -> Figures:
    """A killed run continues where it was."""
    every, longer = (
        ("--checkpoint-every", "3"),
        TOY | {"steps": 120, "evaluate_every": 120},
    )  # or it ends before the kill
    whole = session.run(f"toy-{framework}-whole", *every, framework=framework, seconds=TOY_SECONDS, **longer)
    resumed = session.killed_and_resumed(f"toy-{framework}-killed", framework, seconds=TOY_SECONDS, **longer)
    largest = difference(whole["train_loss"], resumed["train_loss"])
    if largest > CLOSE:
        raise CheckFailedError(f"losses {resumed['train_loss']} instead of {whole['train_loss']}")
    return {"attempts": 1 + len(resumed["attempts"]), "largest difference of a loss": largest}


def traced(session: Session, framework: str) -> Figures:
    """Steps are traced."""
    name = f"toy-{framework}-traced"
    session.run(name, "--profile-steps", "4:6", framework=framework, seconds=TOY_SECONDS, **TOY)
    return {"spans": len(spans(session.run_dir(name)))}


def model(session: Session, framework: str, options: tuple[str, ...], **workload: Any) -> Figures:
    """The model itself makes some steps."""
    fields = {"steps": 6, "warmup_steps": 2} | workload
    result = session.run(f"model-{framework}", *options, framework=framework, seconds=100, **fields)
    return {"first step (s)": result["first_step_seconds"], "last loss": result["train_loss"][-1]}


NATIVE = ("--profile", "native")
TOYS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    **{
        f"toy-{framework}-{mode}": (framework, mode, ())
        for (framework, mode), row in MODES.items()
        if not row.roles and not row.is_pipeline and "gpu" in row.device_types
    },
    "toy-torch-bfloat16": ("torch", "single", (*NATIVE, "--precision", "bfloat16")),
    "toy-torch-compiled": ("torch", "single", (*NATIVE, "--tune", "compilation=torch.compile")),
    "toy-torch-reduce-overhead": ("torch", "single", (*NATIVE, "--tune", "compilation=reduce-overhead")),
    "toy-torch-shared": ("torch", "ddp", ("--nodes", "2", "--devices-per-node", "1", "--share-gpu")),
    "toy-jax-bfloat16": ("jax", "single", (*NATIVE, "--precision", "bfloat16")),
}
"""Name -> framework, mode, and further options of the run."""

SMOKE = [
    Check(name="machine", about="The machine", make=machine, seconds=5),
    # What takes longest begins first.
    Check(
        name="model-jax", about="The model in JAX, at 64 px at most", seconds=40,
        make=lambda session: model(session, "jax", (), image_size=min(64, session.image_size), steps=3, warmup_steps=1),
    ),
    Check(
        name="model-torch", about="The model in torch, in bfloat16", seconds=30,
        make=lambda session: model(session, "torch", (*NATIVE, "--precision", "bfloat16")),
    ),
    *(
        Check(name=f"resumed-{framework}", about="A killed run continues", seconds=35,
              make=partial(resumption, framework=framework))
        for framework in ("torch", "jax")
    ),
    *(
        Check(name=name, about=f"{framework} {mode} trains a toy", seconds=20,
              make=partial(toy, name=name, framework=framework, mode=mode, options=options))
        for name, (framework, mode, options) in TOYS.items()
    ),
    *(
        Check(name=f"traced-{framework}", about="Steps are traced", seconds=20,
              make=partial(traced, framework=framework))
        for framework in ("torch", "jax")
    ),
    Check(name="doctor", about="What doctor finds", make=diagnosis, seconds=15),
]  # fmt: skip

AFTERWARDS = [Check(name="agreement", about="All toys begin alike", make=agreement, seconds=0)]
"""What looks at what the others have left."""
