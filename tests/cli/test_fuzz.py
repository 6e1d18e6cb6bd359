"""Whatever is typed, or stands in a file: an answer or a refusal, never a traceback, never forever.

Each property is tried with a few cases here and with hundreds or thousands where slow tests run, always in the same
order; `python -m stress.fuzz` continues for as long as it is asked to.
"""

import json
import string
import subprocess
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random

import click
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcompare.cli.plan import plan
from dpcompare.data.prepare import prepare
from dpcompare.data.store import open_store
from dpcompare.errors import RequestError
from dpcompare.experiments.study import Arm, Study
from dpcompare.results.checkpoint import BrokenCheckpointError, decode, encode
from dpcompare.results.events import EventLog, read_events
from dpcompare.results.run_dir import event_path
from stress.fuzz_files import FILE_TARGETS
from stress.fuzz_mutations import mutated
from stress.fuzz_oracle import Oracle, answered, limited, little_memory
from stress.fuzz_words import WORD_TARGETS
from tests.support.arms import runs
from tests.support.checkpoints import equal, made, sealed
from tests.support.events import trained


def few_and(many):
    cases = [pytest.param(20, id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]
    return pytest.mark.parametrize("cases", cases)


@pytest.fixture(autouse=True)
def _little_memory():
    with little_memory():
        yield


def tried(cases, *strategies):
    """A decorator: call the property with so many cases drawn from the strategies."""

    def run(check):
        always_the_same = settings(
            max_examples=cases,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        always_the_same(given(*strategies)(limited()(check)))()

    return run


NUMBERS = st.one_of(st.integers(-3, 70), st.integers(), st.floats(), st.sampled_from([0, 1, 2**31, 2**63, 10**30]))
WORDS = st.one_of(
    st.sampled_from(
        [
            "torch",
            "tensorflow",
            "ddp",
            "dp",
            "single",
            "mirrored",
            "multiworker",
            "cpu",
            "gpu",
            "auto",
            "mlp",
            "toy-bn",
            "efficientnet-b2",
            "digits",
            "synthetic",
            "adam",
            "sgd",
            "cosine",
            "linear",
            "sync",
            "shared",
            "float64",
            "bfloat16",
            "native",
            "flip,contrast",
            "0,1",
            "0,1,2,3",
            "3:5",
            "torch=/bin/true",
            "imagenet",
            "",
        ]
    ),
    st.text(max_size=12),
    st.text(alphabet=string.printable, max_size=40),
)
OPTIONS = [option for option in plan.params if isinstance(option, click.Option) and option.name != "config"]


@st.composite
def command_lines(draw):
    line = ["--framework", draw(st.sampled_from(["torch", "tensorflow"])), "--device", "cpu"]
    line += ["--mode", draw(st.sampled_from(["single", "ddp", "dp", "mirrored", "multiworker"]))]
    for option in draw(st.lists(st.sampled_from(OPTIONS), max_size=6)):
        line.append(option.opts[0])
        if not option.is_flag:
            line.append(str(draw(st.one_of(WORDS, NUMBERS))))
    return line + draw(st.lists(st.text(max_size=8), max_size=1))


@pytest.mark.seconds
@few_and(400)
@pytest.mark.slow
def test_command_lines(cases):
    codes = set()

    @tried(cases, command_lines())
    def check(line):
        if "-h" not in line and "--help" not in line:
            codes.add(answered("plan", *(part.replace("\0", "") for part in line)))

    assert codes == {0, 2}


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value) if isinstance(value, str) else str(value)


TOML_VALUES = st.recursive(
    st.one_of(WORDS, NUMBERS, st.booleans()), lambda values: st.lists(values, max_size=3), max_leaves=4
)
KEYS = st.one_of(
    st.sampled_from([option.name for option in OPTIONS] + ["arm", "repeats", "subject", "ablate", "until"]),
    st.text(string.ascii_letters + "_-", min_size=1, max_size=12),
)


@pytest.mark.seconds
@few_and(400)
def test_toml_files(cases, tmp_path):
    file = tmp_path / "options.toml"
    tables = st.dictionaries(KEYS, TOML_VALUES, max_size=5)
    texts = tables.map(lambda table: "".join(f"{key} = {toml(value)}\n" for key, value in table.items()))

    @tried(cases, st.one_of(texts, st.text(max_size=60), st.binary(max_size=60)))
    def check(content):
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        answered("plan", "--framework", "torch", "--mode", "ddp", "--config", str(file))
        answered("compare", str(file), "--dry-run", "--arm", "torch:ddp", "--steps", "3", "--device", "cpu")


CHANGES = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "zero"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)),
    min_size=1,
    max_size=4,
)


def changed(content, changes):
    """Bytes after some damage, each at a place given as a share of the length."""
    for what, share, extra in changes:
        at = int(share * len(content))
        if what == "cut":
            content = content[:at]
        elif what == "insert":
            content = content[:at] + extra + content[at:]
        elif what == "zero":
            content = content[:at] + bytes(len(extra)) + content[at + len(extra) :]
        elif content:
            at = min(at, len(content) - 1)
            content = content[:at] + bytes([content[at] ^ 1 << extra[0] % 8]) + content[at + 1 :]
    return content


@pytest.mark.seconds
@few_and(400)
def test_checkpoints(cases):
    whole = encode(made())

    @tried(cases, CHANGES)
    def damaged(changes):
        content = changed(whole, changes)
        with suppress(BrokenCheckpointError):
            assert equal(decode(content), made()), "damage was not seen"

    # What stands in the header of a file whose checksum is right.
    strings = st.one_of(st.text(max_size=8), st.sampled_from(["1", "F64", "I8", "BOOL", "model.w"]))
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), strings)
    names = st.sampled_from(["__metadata__", "model.w", "dtype", "shape", "data_offsets", "format", "step", "training"])
    headers = st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
        max_leaves=12,
    )
    good = {"format": "1", "dpcompare_version": "0", "step": "1", "training": "b", "checksum": "0" * 64}

    @tried(cases, headers, headers)
    def forged(metadata, tensor):
        described = good | metadata if isinstance(metadata, dict) else good
        with suppress(BrokenCheckpointError):
            decode(sealed({"__metadata__": described | {"checksum": "0" * 64}, "model.w": tensor}))


@pytest.mark.seconds
@few_and(250)
def test_stores(cases, tmp_path):
    whole = prepare("synthetic-mini", tmp_path / "whole", 8)
    files = {path.name: path.read_bytes() for path in whole.path.iterdir()}
    expected = {name: whole.split(name).labels.tobytes() for name in whole.manifest.splits}
    store = tmp_path / "store"
    store.mkdir()

    @tried(cases, st.sampled_from(sorted(files)), CHANGES)
    def check(name, changes):
        for each, content in files.items():
            (store / each).write_bytes(changed(content, changes) if each == name else content)
        with suppress(RequestError):
            opened = open_store(store, verify=True)
            if opened.manifest.splits == whole.manifest.splits:
                found = {split: opened.split(split).labels.tobytes() for split in opened.manifest.splits}
                assert found == expected, "damage was not seen"


GENERATORS = st.randoms(use_true_random=False)


@pytest.mark.seconds
@few_and(150)
def test_files_of_studies_and_runs(cases, tmp_path):
    """The report of a study of which one file says something else."""
    arms = [runs("torch", "ddp", [130.0, 129.0]), runs("tensorflow", "multiworker", [100.0, 101.0])]
    study = Study(arms=tuple(Arm(name=arm.name, config=arm.config) for arm in arms), repeats=2)
    documents = {tmp_path / "study" / "study.json": study}
    for arm, made_arm in zip(study.arms, arms, strict=True):
        for number, result in enumerate(made_arm.runs, start=1):
            run_dir = study.run_dir(tmp_path / "study", number, arm)
            documents |= {run_dir / "result.json": result, run_dir / "config.json": arm.config}
    contents = {path: document.model_dump_json() for path, document in documents.items()}
    for path in contents:
        path.parent.mkdir(parents=True, exist_ok=True)
    damaged = st.one_of(
        [
            st.tuples(st.just(path), GENERATORS.map(partial(mutated, json.loads(content))))
            for path, content in contents.items()
        ]
        + [st.tuples(st.just(path), CHANGES) for path in contents]
    )
    codes = set()

    @tried(cases, damaged, st.sampled_from(["--json", "--markdown", "--csv", None]))
    def check(damage, form):
        for path, content in contents.items():
            path.write_text(content)
        path, change = damage
        if isinstance(change, list) and change and isinstance(change[0], tuple):
            path.write_bytes(changed(contents[path].encode(), change))
        else:
            path.write_text(json.dumps(change))
        target = () if form is None else (form, "-")
        codes.add(answered("report", str(tmp_path / "study"), *target))

    assert codes == {0, 2}


@pytest.mark.seconds
@few_and(800)
def test_events_of_a_run(cases, tmp_path):
    """What was logged before a file was damaged, as by a loss of power, is read; what comes after is not believed."""
    log = EventLog(tmp_path, 0)
    for step in range(1, 9):
        log.append(trained([np.pi], step=step, time=float(step)))
    log.close()
    path = event_path(tmp_path, 0)
    whole, told = path.read_bytes(), read_events(tmp_path, 1)

    @tried(cases, CHANGES)
    def check(changes):
        content = changed(whole, changes)
        path.write_bytes(content)
        pairs = zip(content.splitlines(keepends=True), whole.splitlines(keepends=True), strict=False)
        intact = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert read_events(tmp_path, 1) == told[:intact]

    path.write_bytes(whole[:-20] + bytes(20) + b"\n")
    assert read_events(tmp_path, 1) == told[:-1]


FOUND = Path(__file__).parent / "fuzz_corpus"
"""What `stress.fuzz` has found, by target; all of it is fixed."""


@pytest.mark.parametrize("target", FILE_TARGETS | WORD_TARGETS)
def test_what_was_found_once_is_answered_or_refused(target, tmp_path):
    reader = (FILE_TARGETS | WORD_TARGETS)[target](tmp_path)
    contents = {"seed": reader.seeds[0]}
    if reader.mutate:
        contents |= {f"mutation {seed}": reader.mutate(reader.seeds[0], Random(seed)) for seed in range(3)}
    contents |= {path.name: path.read_bytes() for path in sorted((FOUND / target).glob("*"))}
    oracle = Oracle(tmp_path)
    found = {name: oracle.finding(reader.read, content) for name, content in contents.items()}
    assert not {name: finding.what for name, finding in found.items() if finding}


def _writes_elsewhere(content):
    Path("/var/elsewhere").write_bytes(content)


def _lasts(content):
    while True:
        pass


def _swallows(content):
    with suppress(Exception):
        subprocess.run(["true"])


@pytest.mark.process
@pytest.mark.parametrize(
    ("read", "place"),
    [
        (lambda content: int(content), "ValueError"),
        (_writes_elsewhere, "ForbiddenError-"),
        (_lasts, "ForbiddenError-test_fuzz-_lasts"),
        (_swallows, "ForbiddenError-"),
        (lambda content: answered("no-such-command", "--json"), None),
        (lambda content: answered("--version", "--help"), None),
    ],
)
def test_what_no_reader_may_do_is_found(read, place, tmp_path, monkeypatch):
    monkeypatch.setattr("stress.fuzz_oracle.LONGEST_SECONDS", 0.2)
    finding = Oracle(tmp_path).finding(read, b"x")
    assert (finding is None) if place is None else finding.place.startswith(place), finding
