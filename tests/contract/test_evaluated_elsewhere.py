"""A model that TensorFlow has trained, evaluated by code that knows nothing of dpcompare."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpcompare import Cluster, RunConfig, Workload
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.run_dir import RESULT_FILE

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bare" / "evaluate_with_pillow.py"
COLOURS = {"blue": (40, 60, 200), "green": (50, 180, 70), "red": (200, 40, 50)}
ORIENTATION = 0x0112


@pytest.fixture
def photographs(tmp_path):
    """Three colours in noise: upright and turned, of many shapes, in colours and in grey."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("validation", 6)):
        for name, colour in COLOURS.items():
            folder = tmp_path / "photographs" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noise = rng.normal(colour, 60, (70 + 13 * number, 110, 3)).clip(0, 255).astype(np.uint8)
                image, exif = Image.fromarray(noise), Image.Exif()
                exif[ORIENTATION] = 1 + number
                if number == 5:
                    image = image.convert("L")
                image.save(folder / f"{number}.{'png' if number == 4 else 'jpg'}", exif=exif)
    return tmp_path / "photographs"


def evaluated(run_dir, photographs):
    return subprocess.run([sys.executable, SCRIPT, run_dir, photographs], capture_output=True, text=True, timeout=300)


def test_the_code_knows_nothing_of_dpcompare():
    tree = ast.parse(SCRIPT.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    standard = {"__future__", "collections.abc", "functools", "json", "pathlib", "sys"}
    assert imported - standard == {"PIL", "numpy", "numpy.typing", "safetensors.torch", "timm", "torch", "torch.nn"}


@pytest.mark.torch
@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_model_of_tensorflow_has_the_same_loss_and_accuracy(tmp_path, photographs, train_once):
    workload = Workload(
        **{"model": "toy-bn", "image_size": 33, "dataset": str(photographs), "global_batch_size": 8, "steps": 6},
        **{"warmup_steps": 0, "learning_rate": 0.02, "weight_average": 0.8, "augment": ("flip", "brightness")},
    )
    config = RunConfig(
        framework="tensorflow",
        mode="single",
        workload=workload,
        cluster=Cluster.partition(device="cpu"),
        checkpoint_every=6,
        keep_predictions=True,
    )
    result, run_dir = train_once(prepare_inputs(config))
    done = evaluated(run_dir, photographs)
    assert done.returncode == 0, done.stdout + done.stderr
    last = result.evaluations[-1]
    assert last.count == 18
    assert f"recorded: loss {last.loss:.7f}, accuracy {last.accuracy:.7f}" in done.stdout
    assert "photographs that are classified otherwise: 0 of 18" in done.stdout
    changed = shutil.copytree(run_dir, tmp_path / "changed")
    document = json.loads((changed / RESULT_FILE).read_text())
    document["evaluations"][-1]["loss"] += 3e-5
    (changed / RESULT_FILE).write_text(json.dumps(document))
    assert evaluated(changed, photographs).returncode == 3
    flipped = shutil.copytree(run_dir, tmp_path / "flipped")
    (file,) = flipped.glob("predictions/process-*.csv")
    header, first, *others = file.read_text().splitlines()
    index, label, predicted = map(int, first.split(","))
    file.write_text("\n".join([header, f"{index},{label},{(predicted + 1) % 3}", *others]))
    again = evaluated(flipped, photographs)
    assert again.returncode == 3
    assert "photographs that are classified otherwise: 1 of 18" in again.stdout
