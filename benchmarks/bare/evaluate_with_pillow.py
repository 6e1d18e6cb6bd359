"""The last evaluation of a run, made again by torch and Pillow alone: its checkpoint and its photographs, no dpcompare.

    python benchmarks/bare/evaluate_with_pillow.py RUN_DIR PHOTOS

Whichever framework trained it. RUN_DIR needs a checkpoint (`--checkpoint-every N`), PHOTOS validation/<class>/*; of
`--augment crop` and `--batchnorm-recompute`, which evaluate other pixels or statistics, it knows nothing. Exit code 3
where the loss differs from the recorded one by more than 1e-5 (above a loss of 1, by more than 1e-5 of it), where the
accuracy differs, or, of a run with `--keep-predictions`, where one photograph is classified otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch.nn import functional

TOLERANCE = 1e-5
"""The tolerance of the mean loss, relative to a loss above 1."""
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
BATCH_NORM_EPSILON = 1e-3
BATCH = 64

Tensors = dict[str, torch.Tensor]
Integers = NDArray[np.int64]
Network = Callable[[torch.Tensor], torch.Tensor]


def photographs(folder: Path, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images (batch, channels, height, width) and labels."""
    classes = sorted(path.name for path in (folder / "train").iterdir())
    files = [
        (path, label) for label, name in enumerate(classes) for path in sorted((folder / "validation" / name).iterdir())
    ]
    for start in range(0, len(files), BATCH):
        some = files[start : start + BATCH]
        images = torch.stack([pixels(path, size) for path, _ in some])
        yield images.permute(0, 3, 1, 2), torch.tensor([label for _, label in some])


def pixels(path: Path, size: int) -> torch.Tensor:
    """The centre square of a photograph, normalised: (height, width, channels)."""
    with Image.open(path) as image:
        image.draft("RGB", (2 * size, 2 * size))  # libjpeg's own halving, down to twice the size
        upright = ImageOps.exif_transpose(image).convert("RGB")
    side = min(upright.size)
    left, top = (upright.width - side) // 2, (upright.height - side) // 2
    square = upright.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
    return (torch.from_numpy(np.asarray(square).copy()) / 255 - MEAN) / STD


def checkpoint(run_dir: Path) -> Tensors:
    """The tensors that were evaluated last: where weights were averaged, their mean."""
    stored = load_file(max((run_dir / "checkpoints").glob("step-*.safetensors")))
    found = {name.removeprefix("model."): value for name, value in stored.items() if name.startswith("model.")}
    average = "optimizer.average."
    return found | {name.removeprefix(average): stored[name] for name in stored if name.startswith(average)}


def network(model: str, tensors: Tensors) -> Network:
    if model == "toy-bn":
        return partial(toy_bn, tensors)
    import timm

    built = timm.create_model(f"tf_{model.replace('-', '_')}", num_classes=len(tensors["classifier.bias"])).eval()
    missing, unexpected = built.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return built


def toy_bn(tensors: Tensors, images: torch.Tensor) -> torch.Tensor:
    """Two strided convolutions, a residual and a dense layer."""

    def normalised(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, variance, scale, shift = (
            tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(x, mean, variance, scale, shift, eps=BATCH_NORM_EPSILON)

    def halved(x: torch.Tensor, name: str, groups: int = 1) -> torch.Tensor:
        """A convolution of 3 x 3 with stride 2, padded at the right and the bottom first, as TensorFlow's "same"."""
        height, width = (1 + side % 2 for side in x.shape[2:])
        padding = (width // 2, width - width // 2, height // 2, height - height // 2)
        return functional.conv2d(functional.pad(x, padding), tensors[f"{name}.weight"], stride=2, groups=groups)

    x = functional.relu(normalised(halved(images, "conv_stem"), "bn1"))
    x = functional.relu(normalised(halved(x, "conv_dw", groups=8), "bn2"))
    x = x + normalised(functional.conv2d(x, tensors["conv_pwl.weight"]), "bn3")
    return functional.linear(x.mean((2, 3)), tensors["classifier.weight"], tensors["classifier.bias"])


def evaluate(classify: Network, folder: Path, size: int) -> tuple[float, Integers]:
    """Mean loss on the validation photographs of a folder, of `size` x `size` pixels; and label and class of each."""
    loss, found = 0.0, []
    with torch.no_grad():
        for images, labels in photographs(folder, size):
            outputs = classify(images)
            loss += functional.cross_entropy(outputs, labels, reduction="sum").item()
            found.append(torch.stack([labels, outputs.argmax(1)], 1).numpy())
    classified = np.concatenate(found)
    return loss / len(classified), classified


def kept_predictions(run_dir: Path) -> Integers | None:
    """Label and class of each photograph, in their order, as the run has kept them; None where it kept none."""
    files = sorted((run_dir / "predictions").glob("process-*.csv"))
    if not files:
        return None
    rows = np.concatenate([np.loadtxt(file, np.int64, delimiter=",", skiprows=1, ndmin=2) for file in files])
    return rows[np.argsort(rows[:, 0]), 1:]


def main() -> None:
    run_dir, folder = map(Path, sys.argv[1:])
    workload = json.loads((run_dir / "config.json").read_text())["workload"]
    recorded = json.loads((run_dir / "result.json").read_text())["evaluations"][-1]
    loss, classified = evaluate(network(workload["model"], checkpoint(run_dir)), folder, workload["image_size"])
    accuracy = float((classified[:, 0] == classified[:, 1]).mean())
    print(f"recorded: loss {recorded['loss']:.7f}, accuracy {recorded['accuracy']:.7f}")
    print(f"here:     loss {loss:.7f}, accuracy {accuracy:.7f}")
    is_same = abs(loss - recorded["loss"]) <= TOLERANCE * max(1, loss) and abs(accuracy - recorded["accuracy"]) < 1e-9
    if (kept := kept_predictions(run_dir)) is not None:
        otherwise = int((kept != classified).any(1).sum())
        print(f"photographs that are classified otherwise: {otherwise} of {len(kept)}")
        is_same = is_same and otherwise == 0
    sys.exit(0 if is_same else 3)


if __name__ == "__main__":
    main()
