"""The second part of the checks on a GPU: what it computes against the CPU, then how fast it is, run after run."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.feed import feed, split_of
from dpcompare.system.devices import installed_gpus, visible_gpus
from stress.gpu_session import ROOT, Check, CheckFailedError, Figures, LeftOutError, Session, difference, spans
from stress.gpu_smoke import CLOSE, NATIVE, machine

LEAST_WATTS, MOST_WATTS = 20, 2000
"""Between which a GPU takes."""
BFLOAT16 = (*NATIVE, "--precision", "bfloat16")
LARGE_COPY = 1 << 20
"""Bytes from which a copy to the device is one of a batch."""


def ceilings(session: Session) -> Figures:
    """What the device can do at most; imports torch, so that later runs find it in the page cache."""
    size = ("8192", "1.0") if session.on_gpu else ("512", "0.1")
    arguments = ("--device", session.device, "--size", size[0], "--seconds", size[1])
    found: Figures = json.loads(session.command("ceilings", "benchmarks.ceilings", *arguments, seconds=60))
    return {f"{name} ({'TB/s' if name == 'copy' else 'TFLOP/s'})": value / 1e12 for name, value in found.items()}


def arithmetic(session: Session) -> Figures:
    """torch and JAX, on the GPU and on the CPU, array by array: some steps of the model, in float64."""
    session.run(
        "float64", "--precision", "float64",
        steps=6, warmup_steps=1, image_size=min(64, session.image_size), global_batch_size=16, dataset="synthetic-mini",
    )  # fmt: skip
    return _proved(session, "verify-model", "--like", str(session.run_dir("float64")), "--against", "cpu", seconds=150)


def toy(session: Session) -> Figures:
    """The same of a toy and its options, in both precisions; in the native profile with torch.compile."""
    both = [framework for framework in ("torch", "jax") if (framework, "single") in session.modes]
    side = ("--frameworks", ",".join(both), "--modes", "single", "--replicas", "1", "--quick", "--against", "cpu")
    model = ("--model", "toy-bn", "--precision", "float32,float64")
    return _proved(session, "verify-toy", *model, *side, seconds=300)


def shared(session: Session) -> Figures:
    """DDP on a shared GPU, against the CPU, in float64."""
    if not session.on_gpu:
        raise LeftOutError("no GPU")
    side = ("--frameworks", "torch", "--modes", "dp,ddp", "--replicas", "2", "--model", "toy-bn", "--quick")
    return _proved(session, "verify-shared", *side, "--precision", "float64", "--against", "cpu", seconds=120)


def _proved(session: Session, name: str, *options: str, seconds: float) -> Figures:
    """What `dpcompare verify` measures; all that it prints stays in OUT, also where it is interrupted."""
    where = ("--device", "auto" if session.on_gpu else "cpu", "--json")
    told = session.command(name, "dpcompare", "verify", *options, *where, seconds=seconds, codes=(0, 3))
    (session.out / f"{name}.json").write_text(told)
    checks: list[dict[str, Any]] = json.loads(told)["checks"]
    failed = [check for check in checks if not check["passed"]]
    if failed or not checks:
        named = "; ".join(f"{check['name']}, {check['pair']}: {check['measured']}" for check in failed[:3])
        raise CheckFailedError(f"{len(failed)} of {len(checks)} checks of verify failed: {named}")
    figures: Figures = {"checks passed": len(checks)}
    for precision in sorted({check["precision"] for check in checks}):
        within = [check for check in checks if check["precision"] == precision and check["tolerance"]]
        # Of a count, such as samples that are classified correctly, and of relative differences alike.
        figures[f"largest part of a tolerance in {precision}"] = max(
            check["measured"] / check["tolerance"] for check in within
        )
        if floors := [check["floor"] for check in within if check["floor"] is not None]:
            figures[f"two identical runs differ in {precision} by"] = max(floors)
    return figures


def speed(session: Session, name: str, *options: str, framework: str = "torch", mode: str = "single",
          seconds: float = 90) -> Figures:  # fmt: skip
    """A run of the model, and the figures that a table of speeds has."""
    result = session.run(name, *options, framework=framework, mode=mode, seconds=seconds)
    return figures_of(result)


def figures_of(result: dict[str, Any]) -> Figures:
    """The figures of a result that are known."""
    joules, rate = result["joules_per_image"], result["images_per_second"]
    memory = result["peak_device_memory_bytes"]
    figures: Figures = {
        "images/s": rate,
        "steady images/s": result["steady_images_per_second"],
        "median step (ms)": _milliseconds(result["step_seconds"]["median"]),
        "p95 (ms)": _milliseconds(result["step_seconds"]["p95"]),
        "W": None if joules is None else joules * rate,
        "J/image": joules,
        "GB": memory and memory["total"] / 1e9,
        "MFU": result.get("model_flops_utilization"),
        "GB/s": result.get("achieved_bandwidth") and result["achieved_bandwidth"] / 1e9,
        "first step (s)": result["first_step_seconds"],
        "settings": result["settings"]["compilation"],
        "last loss": result["train_loss"][-1],
    }
    return {name: value for name, value in figures.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def strict(session: Session) -> Figures:
    """float32, NCHW, without TF32: the baseline, whose energy must be possible."""
    figures = speed(session, "strict")
    if session.on_gpu and not LEAST_WATTS < figures.get("W", LEAST_WATTS + 1) < MOST_WATTS:
        raise CheckFailedError(f"{figures['W']:.0f} W")
    return figures


def tf32(session: Session) -> Figures:
    """float32 with TF32, NHWC and fused kernels."""
    return speed(session, "tf32", *NATIVE)


def bfloat16(session: Session) -> Figures:
    """The main figure."""
    return speed(session, "bfloat16", *BFLOAT16)


def timm(session: Session) -> Figures:
    """timm's own benchmark of training on the same card; it waits for the device after every step."""
    if session.timm_benchmark is None:
        raise LeftOutError("--timm-benchmark does not name timm's benchmark.py")
    name = session.model.replace("efficientnet-", "tf_efficientnet_")
    argv = [
        *(sys.executable, str(session.timm_benchmark), "--bench", "train", "-m", name, "-b", str(session.batch)),
        *("--img-size", str(session.image_size), "--opt", "adam", "--num-classes", "10"),
        *(("--amp", "--amp-dtype", "bfloat16", "--channels-last") if session.on_gpu else ("--device", "cpu")),
    ]
    told = session.output("timm", argv, seconds=90)
    result = json.loads(told[told.index("--result") + len("--result") :])
    rate = (result[0] if isinstance(result, list) else result)["train_samples_per_sec"]
    ours = session.run("each-step", *BFLOAT16, "--steps-per-window", "1")["images_per_second"]
    return {"images/s": rate, "dpcompare at equal waits / timm": ours / rate}


def each_step(session: Session) -> Figures:
    """The same with a wait after every step: what windows gain, and whether batches are waited for."""
    figures = speed(session, "each-step", *BFLOAT16, "--steps-per-window", "1")
    result = session.run("each-step")
    windows = session.run("bfloat16", *BFLOAT16)["images_per_second"] / result["images_per_second"]
    ceiling, _ = feed(split_of(session.out / "cache", session.image_size), 1, 1, pause=False)
    return figures | {
        "waiting for data": result["data_wait_fraction"],
        "one thread reads (images/s)": ceiling,
        "windows / each step": windows,
    }


def compiled(session: Session) -> Figures:
    """What torch.compile brings."""
    return speed(session, "compiled", *BFLOAT16, "--tune", "compilation=torch.compile", seconds=150)


def reduce_overhead(session: Session) -> Figures:
    """CUDA graphs, and what torch says of them."""
    if not session.on_gpu:
        raise LeftOutError("GPUs alone have it")
    return speed(session, "reduce-overhead", *BFLOAT16, "--tune", "compilation=reduce-overhead", seconds=150)


def jax_strict(session: Session) -> Figures:
    """JAX compared with torch's strict run: the same first loss and gradient norm at full size."""
    figures = speed(session, "jax-strict", framework="jax", seconds=130)
    torch, jax = session.run("strict"), session.run("jax-strict")
    loss = difference(torch["train_loss"][:1], jax["train_loss"][:1])
    if loss > CLOSE:
        raise CheckFailedError(f"first loss {jax['train_loss'][0]} instead of {torch['train_loss'][0]}")
    norms = [each["computed"]["first_gradient_norm"] for each in (torch, jax)]
    return figures | {
        "first loss off by": loss,
        "gradient norm off by": abs(norms[1] / norms[0] - 1),
        "jax / torch": jax["images_per_second"] / torch["images_per_second"],
    }


def jax_convolutions(session: Session, value: str) -> Figures:
    """JAX with its depthwise convolutions, and what else `convolutions` is about, made in one of two ways."""
    tuned = (*BFLOAT16, "--tune", f"convolutions={value}")
    return speed(session, f"jax-{value}", *tuned, framework="jax", seconds=300)


def trace(session: Session) -> Figures:
    """Batches are copied while the GPU computes, which is not left without work."""
    first = session.warmup_steps + 2
    last = min(first + 4, session.steps)
    session.run("trace", *BFLOAT16, "--profile-steps", f"{first}:{last}")
    found = spans(session.run_dir("trace"))
    if not session.on_gpu:
        return {"spans": len(found)}
    kernels = [event for event in found if event.get("cat") == "kernel"]
    copies = [event for event in found if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]]
    large = [event for event in copies if event["args"].get("bytes", 0) > LARGE_COPY]
    if not kernels or not large:
        raise CheckFailedError(f"the trace has {len(kernels)} kernels and {len(large)} copies of batches")
    computing = Counter(event["tid"] for event in kernels).most_common(1)[0][0]
    if any(event["tid"] == computing for event in large):
        raise CheckFailedError("batches are copied on the stream that computes")
    begin, end = min(event["ts"] for event in kernels), max(event["ts"] + event["dur"] for event in kernels)
    busy = sum(event["dur"] for event in kernels if event["tid"] == computing) / (end - begin)
    return {"copies of batches": len(large), "computing": busy, "kernels per step": len(kernels) / (last - first + 1)}


def one_process(session: Session) -> Figures:
    """DDP with one process computes what `single` does, and costs next to nothing."""
    alone, ddp = session.run("bfloat16", *BFLOAT16), session.run("ddp", *BFLOAT16, mode="ddp")
    if difference(alone["train_loss"][:5], ddp["train_loss"][:5]) > CLOSE:
        raise CheckFailedError(f"losses {ddp['train_loss'][:5]} instead of {alone['train_loss'][:5]}")
    return figures_of(ddp) | {"ddp / single": ddp["images_per_second"] / alone["images_per_second"]}


def several(session: Session) -> Figures:
    """Several GPUs compute what one does."""
    gpus = visible_gpus(installed_gpus()) if session.on_gpu else ["cpu", "cpu"]
    if len(gpus) < 2:
        raise LeftOutError("one GPU")
    alone = session.run("bfloat16", *BFLOAT16)
    figures: Figures = {}
    for mode, options in (("dp", ("--devices-per-node", "2")), ("ddp", ("--nodes", "2", "--devices-per-node", "1"))):
        result = session.run(f"two-{mode}", *BFLOAT16, *options, mode=mode)
        if difference(alone["train_loss"][:1], result["train_loss"][:1]) > CLOSE:
            raise CheckFailedError(f"{mode}: first loss {result['train_loss'][0]}, not {alone['train_loss'][0]}")
        figures[f"{mode} on 2 (images/s)"] = result["images_per_second"]
    return figures


def tensorflow(session: Session) -> Figures:
    """TensorFlow sees the GPU, and begins with the loss of torch."""
    figures = speed(session, "tensorflow", framework="tensorflow", seconds=1800)
    loss = difference(session.run("strict")["train_loss"][:1], session.run("tensorflow")["train_loss"][:1])
    if loss > CLOSE:
        raise CheckFailedError(f"first losses differ by {loss:.2g}")
    return figures | {"first loss off by": loss}


def gpu_tests(session: Session) -> Figures:
    """The tests that are marked gpu."""
    if not session.on_gpu:
        raise LeftOutError("no GPU")
    where = ("--rootdir", str(ROOT), str(ROOT / "tests" / "gpu"))
    told = session.command("tests", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *where, seconds=300)
    return {"pytest": told.strip().splitlines()[-1]}


FIGURES: Sequence[Check] = [
    Check(name="machine", about="The machine", make=machine, seconds=5),
    Check(name="ceilings", about="What the device can do at most", make=ceilings, seconds=10),
    Check(name="bfloat16", about="torch native, bfloat16", make=bfloat16, seconds=75),
    Check(name="compiled", about="The same, by torch.compile", make=compiled, seconds=100),
    Check(name="trace", about="Copies and computing, side by side", make=trace, seconds=60),
    Check(
        name="jax-shifts", about="JAX native, convolutions by shifts", seconds=150,
        make=partial(jax_convolutions, value="shifts"),
    ),
    Check(name="timm", about="timm's benchmark of torch native, bfloat16", make=timm, seconds=70),
    Check(name="each-step", about="bfloat16 with a wait after every step", make=each_step, seconds=65),
    Check(name="strict", about="torch, float32 without TF32", make=strict, seconds=30),
    Check(name="jax-strict", about="JAX, float32 without TF32", make=jax_strict, seconds=75),
    Check(name="arithmetic", about="GPU = CPU and torch = JAX, array by array", make=arithmetic, seconds=100),
    Check(name="tf32", about="torch native, float32 with TF32", make=tf32, seconds=50),
    Check(name="ddp", about="DDP with one process", make=one_process, seconds=50),
    Check(name="shared", about="DDP on a shared GPU against the CPU", make=shared, seconds=65),
    Check(name="reduce-overhead", about="torch native, bfloat16, by CUDA graphs", make=reduce_overhead, seconds=100),
    Check(name="several", about="Two GPUs", make=several, seconds=100),
    Check(name="tests", about="Tests marked gpu", make=gpu_tests, seconds=150),
    Check(
        name="jax-kernel", about="JAX native, convolutions by XLA's kernels", seconds=250,
        make=partial(jax_convolutions, value="kernel"),
    ),
    Check(name="toy", about="A toy in both precisions: GPU = CPU and torch = JAX", make=toy, seconds=200),
    Check(name="tensorflow", about="TensorFlow, float32 without TF32", make=tensorflow, seconds=60),
]  # fmt: skip
"""What is worth most first; seconds as on an H200, where torch's first step in NHWC takes 28 to 51 s, JAX's 55 s in
float32 and more than 100 s in bfloat16."""
