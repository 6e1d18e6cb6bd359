"""Coverage-guided fuzzing of what reads files, options and other programs' output.

    python -m stress.fuzz TARGET [--minutes 60] --corpus DIR

Atheris (the extra `fuzz`) makes up bytes, keeps those that reach new code in DIR/TARGET/inputs, and begins with them
the next time, so an hour can be made of pieces. What a reader neither answers nor refuses is written into
DIR/TARGET/findings: the smallest bytes for each place, and what happened then. Once it is fixed its place is
tests/cli/fuzz_corpus/TARGET. Prints a line of a table (target, minutes, inputs tried, edges of the code reached, inputs
kept, findings); exit code 3 where anything was found.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NoReturn

MOST_INPUT_BYTES = 64 << 10
MOST_RESIDENT_MIB = 6144
NOT_IMPORTED = ("dpcompare.__main__", *(f"dpcompare.backends.{name}" for name in ("torch", "tensorflow", "jax")))
"""Frameworks are imported by training processes alone."""
HANG_SECONDS = 60
"""Seconds by the clock, for a reader that the limit of the processor's time does not end."""


def fuzz(target: str, corpus: Path, folder: Path, seconds: int) -> NoReturn:
    """Fuzz a target in this process, which ends with it; `folder` is empty."""
    import atheris
    import sklearn.datasets  # noqa: F401 - an import that the limit of a reader's time cuts short cannot be made again

    with atheris.instrument_imports(include=["dpcompare"]):
        import dpcompare

        for module in pkgutil.walk_packages(dpcompare.__path__, "dpcompare."):
            if not module.name.startswith(NOT_IMPORTED):
                importlib.import_module(module.name)
        from stress.fuzz_files import FILE_TARGETS
        from stress.fuzz_oracle import Oracle, little_memory
        from stress.fuzz_words import WORD_TARGETS

    inputs, findings = corpus / "inputs", corpus / "findings"
    os.chdir(folder)
    reader = (FILE_TARGETS | WORD_TARGETS)[target](folder)
    for number, seed in enumerate(reader.seeds):
        (inputs / f"seed-{number}").write_bytes(seed)
    oracle = Oracle(folder)

    def try_once(content: bytes) -> None:
        if (found := oracle.finding(reader.read, content)) is None:
            return
        known = findings / found.place
        if not known.exists() or len(content) < known.stat().st_size:
            known.write_bytes(content)
            known.with_name(f"{found.place}.txt").write_text(found.what)

    def mutate(content: bytes, most_bytes: int, seed: int) -> bytes:
        generator = Random(seed)
        if reader.mutate is None or generator.random() < 0.2:
            return bytes(atheris.Mutate(content, most_bytes))
        return reader.mutate(content, generator)[:most_bytes]

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MOST_INPUT_BYTES}",
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MOST_RESIDENT_MIB}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(inputs)], try_once, custom_mutator=mutate)
    with little_memory():
        atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


def in_pieces(target: str, corpus: Path, seconds: float) -> tuple[int, int]:
    """Fuzz in processes, a new one where one ends early: by a hang, by a crash, for want of memory.

    Returns:
        how many inputs were tried, and how many edges of dpcompare's code were reached.
    """
    deadline = time.monotonic() + seconds
    executions = edges = 0
    while (left := round(deadline - time.monotonic())) > 0:
        with tempfile.TemporaryDirectory(prefix="dpcompare-fuzz-") as folder:
            own = {"DPCOMPARE_CACHE_DIR": f"{folder}/cache", "DPCOMPARE_ENVIRONMENTS_DIR": f"{folder}/environments"}
            command = [sys.executable, "-m", "stress.fuzz", target, "--corpus", str(corpus), "--seconds", str(left)]
            done = subprocess.run(
                [*command, "--folder", folder],
                env=os.environ | own,
                stderr=subprocess.PIPE,
                errors="replace",
                text=True,
            )
        executions += int((re.findall(r"number_of_executed_units: (\d+)", done.stderr) or [0])[-1])
        edges = max([edges, *map(int, re.findall(r"cov: (\d+)", done.stderr))])
        if done.returncode:
            print(done.stderr[-3000:], file=sys.stderr)
            if "number_of_executed_units" not in done.stderr:  # it did not come to fuzzing
                sys.exit(1)
    return executions, edges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a key of stress/fuzz_files.py or stress/fuzz_words.py")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--corpus", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    corpus = arguments.corpus.resolve()
    if arguments.folder:
        fuzz(arguments.target, corpus, arguments.folder, arguments.seconds)
    corpus /= arguments.target
    for name in ("inputs", "findings"):
        (corpus / name).mkdir(parents=True, exist_ok=True)
    executions, edges = in_pieces(arguments.target, corpus, 60 * arguments.minutes)
    found = sorted(path.name for path in (corpus / "findings").iterdir() if path.suffix != ".txt")
    kept = len(list((corpus / "inputs").iterdir()))
    figures = f"{arguments.minutes:g} | {executions:,} | {edges:,} | {kept}"
    print(f"| {arguments.target} | {figures} | {', '.join(found) or '-'} |")
    sys.exit(3 if found else 0)


if __name__ == "__main__":
    main()
