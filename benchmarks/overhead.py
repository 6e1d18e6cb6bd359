"""The overhead of dpcompare against a hand-written loop, and the gain of its native profile: ratios, side by side.

    python -m benchmarks.overhead [--mode torch:ddp ...] [--model efficientnet-b2] [--rounds 5] [--write [FOLDER]]

Every contestant is a separate process (or a group of them); in every round each runs once, in another order. A ratio is
that of two contestants of the same round; the table shows the median over the rounds and the range. Two CPU replicas
with one thread each, or one device with two. Two contestants are limits rather than loops: "two copies" are two
processes of one thread without gradient sync, each with half of the batch; and "as found" is Keras under
MirroredStrategy with glibc's default settings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from benchmarks.evidence import Keeper, Spread, extremes, number, spread, table, text
from dpcompare.config.modes import MODES, USUAL_MODES
from dpcompare.launch.plan import INHERITED_TO_DROP, KEPT_MEMORY
from dpcompare.system.ports import free_ports

Figures = dict[str, float]
"""`images_per_second` and `peak_memory_bytes` of the largest process."""


def environment(threads: int, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in INHERITED_TO_DROP}
    return inherited | {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "2"} | more


def start(argv: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def printed(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """The JSON objects that they printed.

    Raises:
        RuntimeError: one failed, with the end of what it said.
    """
    try:
        said = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for (_, errors), process in zip(said, processes, strict=True):
        if process.returncode:
            raise RuntimeError(errors[-3000:])
    return [json.loads(output) for output, _ in said if output.strip()]


def bare(
    framework: str, mode: str, variant: str, options: list[str], *, replicas: int = 2, keep_memory: bool = True
) -> Figures:
    """A hand-written loop. `keep_memory`, as dpcompare's processes do: the allocator's gain is not the loop's cost."""
    env = KEPT_MEMORY if keep_memory else {}
    module = f"benchmarks.bare.{framework}_loop"
    argv = ["--mode", mode, "--variant", variant, *options]
    if mode == "ddp":
        agent = ["torch.distributed.run", "--nproc-per-node", str(replicas), "--master-port", str(free_ports(1)[0])]
        processes = [start([*agent, "-m", module, *argv, "--threads", "1"], environment(1, **env))]
    elif mode == "multiworker":
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(replicas)]}
        tasks = ({"type": "worker", "index": rank} for rank in range(replicas))
        configs = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
        processes = [
            start([module, *argv, "--threads", "1"], environment(1, TF_CONFIG=config, **env)) for config in configs
        ]
    else:
        processes = [start([module, *argv], environment(2, **env))]
    (figures,) = printed(processes)
    return dict(figures)


def copies(framework: str, options: list[str]) -> Figures:
    """Two processes of one thread, half of the batch each: what two replicas could reach without gradient sync."""
    variant = {"torch": "channels_last", "tensorflow": "loop"}[framework]
    half = ["--global-batch-size", "16", "--threads", "1"]
    argv = [f"benchmarks.bare.{framework}_loop", "--mode", "single", "--variant", variant, *options, *half]
    both = printed([start(argv, environment(1, **KEPT_MEMORY)) for _ in range(2)])
    return {
        "images_per_second": sum(one["images_per_second"] for one in both),
        "peak_memory_bytes": max(one["peak_memory_bytes"] for one in both),
    }


def ours(framework: str, mode: str, options: list[str]) -> Figures:
    """`dpcompare run`. What its loop does between steps counts too, as it does in a hand-written loop."""
    with tempfile.TemporaryDirectory(prefix="dpcompare-overhead-") as folder:
        # One evaluation, at the end: each ends a window of the clock on GPUs.
        steps = options[options.index("--steps") + 1]
        argv = ["dpcompare", "run", "--framework", framework, "--mode", mode, *options, "--evaluate-every", steps]
        (result,) = printed(
            [start([*argv, "--dataset", "synthetic", "--run-dir", f"{folder}/run", "--json"], environment(2))]
        )
    return {
        "images_per_second": result["global_batch_size"]
        / (result["step_seconds"]["mean"] + result["host_overhead_seconds"]),
        "peak_memory_bytes": result["peak_memory_bytes"]["max_process"],
    }


def devices_of(framework: str, mode: str) -> list[str]:
    """Options of two simulated devices on the CPU."""
    row = MODES[framework, mode]
    return ["--nodes", "2"] if row.multi_node else ["--devices-per-node", "2"] if row.multi_device else []


# Keras 3's fit knows no MultiWorkerMirroredStrategy: it takes the values of its replicas for a tensor.
BARE = {
    "torch": {"single": ["plain", "channels_last"], "dp": ["plain", "channels_last"],
              "ddp": ["plain", "channels_last", "fabric", "accelerate"]},
    "tensorflow": {"single": ["loop", "fit"], "mirrored": ["loop", "fit"], "multiworker": ["loop"]},
    "jax": {"single": ["shifts", "kernel"]},
}  # fmt: skip

SAME_SETTINGS = ("channels_last", "loop", "shifts")
"""The loops that have the settings of the strict profile."""
AS_TAUGHT = ("plain", "fit", "kernel")
"""The loops as tutorials have them."""

Contestants = dict[str, Callable[[], Figures]]


def contestants(framework: str, mode: str, options: list[str], without: Collection[str] = ()) -> Contestants:
    """The hand-written loops of a mode but for those `without`, its limits, and both profiles."""
    found: Contestants = {}
    for variant in BARE[framework][mode]:
        if variant not in without:
            found[variant] = partial(bare, framework, mode, variant, options)
    if mode in ("mirrored", "multiworker"):
        found["fit, MirroredStrategy as found"] = partial(
            bare, framework, "mirrored", "fit", options, keep_memory=False
        )
    if MODES[framework, mode].multi_device:
        found["two copies"] = partial(copies, framework, options)
    for profile in ("strict", "native"):
        chosen = [*options, *devices_of(framework, mode), "--device", "cpu", "--profile", profile]
        found[profile] = partial(ours, framework, mode, chosen)
    return found


class Row(NamedTuple):
    """A contestant in the table; nothing stands where a round failed."""

    mode: str
    loop: str
    speed: Spread | None
    strict: Spread | None
    native: Spread | None
    memory: Spread | None


COLUMNS = [
    *text("mode", "loop"),
    number("images/s", ".1f"),
    number("strict / this loop", ".2f"),
    number("native / this loop", ".2f"),
    number("memory of strict against it", ".2f"),
]


def compared(
    title: str,
    them: Contestants,
    rounds: int,
    generator: random.Random,
    after_round: Callable[[list[Row], int], None],
) -> list[Row]:
    """A row per contestant, two of which are `strict` and `native`.

    Args:
        after_round: is given the rows so far and how many rounds they are of, since a round takes long.
    """
    found: dict[str, list[Figures]] = defaultdict(list)
    for done in range(1, rounds + 1):
        order = list(them)
        generator.shuffle(order)
        for name in order:
            try:
                found[name].append(them[name]())
            except RuntimeError as error:  # what the others measure is not to be lost
                print(f"{title}, round {done}: {name} failed:\n{error}", file=sys.stderr)
                found[name].append({"images_per_second": math.nan, "peak_memory_bytes": math.nan})
            speed = found[name][-1]["images_per_second"]
            print(f"{title}, round {done}: {name} {speed:.1f} images/s", file=sys.stderr)
        after_round(_rows(title, found, list(them)), done)
    return _rows(title, found, list(them))


def _rows(title: str, found: Mapping[str, list[Figures]], names: list[str]) -> list[Row]:
    strict, native = found["strict"], found["native"]
    return [
        Row(
            mode=title,
            loop=name,
            speed=spread([figures["images_per_second"] for figures in found[name]]),
            strict=_ratio(strict, found[name], "images_per_second"),
            native=_ratio(native, found[name], "images_per_second"),
            memory=_ratio(strict, found[name], "peak_memory_bytes"),
        )
        for name in names
    ]


def _ratio(above: list[Figures], below: list[Figures], key: str) -> Spread | None:
    """Of the ratios of the rounds."""
    return spread([a[key] / b[key] for a, b in zip(above, below, strict=True)])


def ratio_figures(rows: Iterable[Row], of_strict: Collection[str], of_native: Collection[str]) -> dict[str, str]:
    """How fast the profiles are, as multiples of the loops named for each, over the modes."""
    strict = [row.strict[0] for row in rows if row.loop in of_strict and row.strict]
    native = [row.native[0] for row in rows if row.loop in of_native and row.native]
    return extremes("strict_ratio", strict, ".2f") | extremes("native_ratio", native, ".2f")


def rounds_in_words(done: int, rounds: int) -> str:
    """How many rounds a table is of, which may end before the last one."""
    return (
        f"{rounds} rounds."
        if done == rounds
        else f"{done} of {rounds} rounds of the last mode, {rounds} of each before it."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", action="append", help="only these, such as torch:ddp")
    parser.add_argument(
        "--without", action="append", default=[], metavar="LOOP", help="a hand-written loop to leave out"
    )
    parser.add_argument("--model", default="efficientnet-b2")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warmup-steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the order in a round")
    keeper = Keeper(parser, "benchmarks.overhead")
    arguments = parser.parse_args()
    options = ["--model", arguments.model, "--image-size", str(arguments.image_size), "--global-batch-size", "32"]
    options += ["--steps", str(arguments.steps), "--warmup-steps", str(arguments.warmup_steps)]
    modes = [tuple(mode.split(":")) for mode in arguments.mode] if arguments.mode else USUAL_MODES
    loops = {loop for framework, mode in modes for loop in BARE[framework][mode]}
    if unknown := set(arguments.without) - loops:
        parser.error(f"--without: received {', '.join(unknown)}; expected some of {', '.join(sorted(loops))}")
    generator = random.Random(arguments.seed)
    finished: list[Row] = []

    def keep(rows: list[Row], done: int) -> None:
        so_far = [*finished, *rows]
        keeper.keep(
            arguments.write,
            f"overhead-{arguments.model}",
            "open" if arguments.mode or done < arguments.rounds else "measured",
            sentences=[rounds_in_words(done, arguments.rounds)],
            tables=[table(COLUMNS, so_far)],
            figures=ratio_figures(so_far, SAME_SETTINGS, AS_TAUGHT),
        )

    for framework, mode in modes:
        them = contestants(framework, mode, options, arguments.without)
        finished += compared(f"{framework} {mode}", them, arguments.rounds, generator, keep)


if __name__ == "__main__":
    main()
