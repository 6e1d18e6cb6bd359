"""The models of two tutorials, as they stand there: what has to be written around them, and whether `verify` passes.

    python -m stress.tutorial_models --flax docs_nnx/mnist_tutorial.md --keras examples/demo_mnist_convnet.py \\
        [--write [FOLDER]]

The files are those of Flax's and of Keras's repository. Of each, the statements that the model needs are taken as they
are. Both models expect grey images of 28 pixels; Keras's ends with a softmax, of which dpcompare wants the logits.
Exit code 3 if a check fails.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evidence import Cell, Keeper, number, table, text, versions_here

NAME = "tutorial-models"


@dataclass(frozen=True)
class Tutorial:
    """A model of a tutorial."""

    words: str
    model: str
    """Its name there."""
    around: str
    """The module that a user writes, in which the tutorial's is `tutorial`."""
    twin: str
    """What another framework needs, if it cannot train the same object."""
    options: tuple[str, ...]
    """Of `verify`, the modes last."""
    file: str
    """In words."""


FLAX = Tutorial(
    words="Flax NNX, the CNN of the MNIST tutorial",
    model="CNN",
    around="""
from flax import nnx
from tutorial import CNN

class Net(CNN):
    def __init__(self):
        super().__init__(rngs=nnx.Rngs(0))
    def __call__(self, images, rngs=None):
        return super().__call__(images.mean(-1, keepdims=True), rngs)
""",
    twin="""
from torch import nn
from torch.nn.functional import avg_pool2d

class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.batch_norm1, self.batch_norm2 = nn.BatchNorm2d(32, momentum=0.01), nn.BatchNorm2d(64, momentum=0.01)
        self.dropout1, self.dropout2 = nn.Dropout(0.025), nn.Dropout(0.025)
        self.linear1, self.linear2 = nn.Linear(3136, 256), nn.Linear(256, 10)
    def forward(self, images):
        x = self.dropout1(self.conv1(images.mean(1, keepdim=True)))
        x = avg_pool2d(self.batch_norm1(x).relu(), 2)
        x = avg_pool2d(self.batch_norm2(self.conv2(x)).relu(), 2)
        x = self.linear1(x.permute(0, 2, 3, 1).flatten(1))
        return self.linear2(self.dropout2(x).relu())
""",
    options=("--frameworks", "torch,jax", "--modes", "single,ddp,spmd,jit"),
    file="docs_nnx/mnist_tutorial.md of google/flax",
)
KERAS = Tutorial(
    words="Keras, the convnet of the MNIST example",
    model="model",
    around="""
import runpy
import keras

def net():
    *layers, last = runpy.run_path("tutorial.py")["model"].layers
    last.activation = keras.activations.linear
    grey = keras.layers.Lambda(lambda images: keras.ops.mean(images, -1, keepdims=True))
    return keras.Sequential([keras.Input((28, 28, 3)), grey, *layers, last])
""",
    twin="",
    options=("--frameworks", "torch,tensorflow,jax", "--modes", "single,ddp,mirrored,spmd,jit"),
    file="examples/demo_mnist_convnet.py of keras-team/keras",
)


def code_of(path: Path) -> str:
    """The Python of a file: all of it, or that of the cells of a page in Markdown."""
    whole = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return whole
    return "\n".join(re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", whole, re.DOTALL))


def needed(code: str, name: str) -> str:
    """The statements of a program that make `name`, and what they use, unchanged."""
    statements = ast.parse(re.sub(r"^[!%]", "#", code, flags=re.MULTILINE)).body
    wanted = {name}
    chosen: set[ast.stmt] = set()
    while True:
        more = {one for one in statements if wanted & set(_names_made(one))} - chosen
        if not more:
            break
        chosen |= more
        wanted |= {name for one in more for name in _names_used(one)}
    segments = (ast.get_source_segment(code, one) for one in statements if one in chosen)
    return "\n\n".join(segment for segment in segments if segment) + "\n"


def _names_made(statement: ast.stmt) -> Iterator[str]:
    """What a statement at the top of a module binds by an import, a definition or an assignment to a name."""
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((each.asname or each.name).partition(".")[0] for each in names)
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _names_used(statement: ast.stmt) -> set[str]:
    """The names in a statement but for the arguments of its functions."""
    inside = list(ast.walk(statement))
    arguments = {each.arg for each in inside if isinstance(each, ast.arg)}
    return {each.id for each in inside if isinstance(each, ast.Name)} - arguments


def lines_of(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


def module_of(tutorial: Tutorial) -> str:
    """The module of the user's, of which `MODEL` trains."""
    by_framework = "jax=Net, torch=Twin" if tutorial.twin else "keras=net"
    return f"{tutorial.around}{tutorial.twin}\nimport dpcompare\nMODEL = dpcompare.CustomModel({by_framework})\n"


@dataclass(frozen=True)
class Row:
    """What came out of a tutorial."""

    tutorial: Tutorial
    its_lines: int
    checks: Sequence[dict[str, Any]]
    digest: str

    @property
    def passed(self) -> int:
        return sum(check["passed"] for check in self.checks)

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (
            self.tutorial.words,
            self.its_lines,
            lines_of(module_of(self.tutorial)) - lines_of(self.tutorial.twin),
            lines_of(self.tutorial.twin),
            self.tutorial.options[-1].replace(",", ", "),
            f"{self.passed} of {len(self.checks)}",
            max(check["measured"] for check in self.checks if check["name"] == "evaluation logits"),
        )


COLUMNS = [
    *text("model"),
    *map(number, ("its lines", "lines around it", "lines of a twin in torch")),
    *text("modes, on one device and two replicas", "checks passed"),
    number("largest difference of logits", ".1e"),
]


def verified(tutorial: Tutorial, path: Path) -> Row:
    """Have `verify` compare the modes that train a model of a tutorial in `path`."""
    with tempfile.TemporaryDirectory(prefix="dpcompare-tutorial-") as name:
        folder = Path(name)
        theirs = needed(code_of(path), tutorial.model)
        (folder / "tutorial.py").write_text(theirs)
        (folder / "mine.py").write_text(module_of(tutorial))
        command = [sys.executable, "-m", "dpcompare", "verify", "--model", "mine:MODEL", *tutorial.options]
        command += ["--replicas", "1,2", "--precision", "float64", "--image-size", "28"]
        command += ["--regularization", "shared", "--batchnorm", "sync", "--full", "--json"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"received exit code {done.returncode} of verify, expected 0 or 3; see above")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return Row(tutorial, lines_of(theirs), json.loads(done.stdout)["checks"], digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flax", type=Path, required=True, metavar="FILE", help="Flax's MNIST tutorial")
    parser.add_argument("--keras", type=Path, required=True, metavar="FILE", help="Keras's MNIST example")
    keeper = Keeper(parser, "stress.tutorial_models")
    arguments = parser.parse_args()
    rows = [verified(FLAX, arguments.flax), verified(KERAS, arguments.keras)]
    have_passed = all(row.passed == len(row.checks) for row in rows)
    keeper.keep(
        arguments.write,
        NAME,
        "passed" if have_passed else "failed",
        sentences=[f"The sha256 of {row.tutorial.file} begins with {row.digest}." for row in rows],
        versions=versions_here("flax"),
        tables=[table(COLUMNS, [row.cells for row in rows])],
    )
    sys.exit(0 if have_passed else 3)


if __name__ == "__main__":
    main()
