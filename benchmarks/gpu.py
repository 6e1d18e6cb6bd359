"""The benchmark on one GPU: dpcompare against hand-written loops, in float32 and in bfloat16. It has not been run yet.

    python -m benchmarks.gpu [--mode single] [--image-size 260] [--global-batch-size 128] [--rounds 5]
                            [--write [FOLDER]]

EfficientNet-B2 with torch `single` and `ddp`. `strict` is float32 against the plain loop; `native` is bfloat16 with the
settings of that profile, against a plain loop with its images on the GPU from the start and compiled, as timm's
benchmark of training has it. A round of a mode is seven runs, half a minute each; after each round the table so far is
printed and kept. Each loop has TF32 and cudnn.benchmark as the profile that it is named after. The
data-wait fraction of each run is in its result.json.
"""

from __future__ import annotations

import argparse
import random
import sys
from functools import partial

from benchmarks.evidence import Keeper, table
from benchmarks.overhead import COLUMNS, Contestants, Row, bare, compared, ours, ratio_figures, rounds_in_words
from dpcompare.system.devices import installed_gpus, visible_gpus

PROFILES = {"plain": "strict", "channels_last": "strict", "bfloat16": "native", "compiled": "native"}
"""Hand-written loop -> the profile whose arithmetic it has."""

MODES = ("single", "ddp")

ARITHMETIC = (
    "`strict` and the loops as strict: TF32 off. `native` and the loops as native: TF32 on. All: cudnn.benchmark on."
)


def contestants(mode: str, options: list[str]) -> Contestants:
    one_gpu = [*options, "--device", "gpu", "--gpus", visible_gpus(installed_gpus())[0]]
    found: Contestants = {
        f"{variant}, as {profile}": partial(bare, "torch", mode, variant, [*options, "--profile", profile], replicas=1)
        for variant, profile in PROFILES.items()
    }
    found["strict"] = partial(ours, "torch", mode, one_gpu)
    native = [*one_gpu, "--profile", "native", "--precision", "bfloat16"]
    found["native"] = partial(ours, "torch", mode, native)
    found["native, compiled"] = partial(ours, "torch", mode, [*native, "--tune", "compilation=torch.compile"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, action="append", help="[default: all]")
    parser.add_argument("--image-size", type=int, default=260)
    parser.add_argument("--global-batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    keeper = Keeper(parser, "benchmarks.gpu")
    arguments = parser.parse_args()
    if not visible_gpus(installed_gpus()):
        print("error: no GPU is visible here, expected at least one", file=sys.stderr)
        sys.exit(2)
    options = ["--model", "efficientnet-b2", "--image-size", str(arguments.image_size), "--warmup-steps", "20"]
    options += ["--global-batch-size", str(arguments.global_batch_size), "--steps", str(arguments.steps)]
    generator = random.Random(0)
    finished: list[Row] = []

    def keep(rows: list[Row], done: int) -> None:
        so_far = [*finished, *rows]
        keeper.keep(
            arguments.write,
            "gpu",
            "open" if arguments.mode or done < arguments.rounds else "measured",
            sentences=[rounds_in_words(done, arguments.rounds), ARITHMETIC],
            tables=[table(COLUMNS, so_far)],
            figures=ratio_figures(so_far, ["plain, as strict"], ["bfloat16, as native"]),
        )

    for mode in arguments.mode or MODES:
        finished += compared(f"torch {mode}", contestants(mode, options), arguments.rounds, generator, keep)


if __name__ == "__main__":
    main()
