"""The list of the runs that a study has made, by which files of another run in the place of one are noticed."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from dpcompare.results.result import RunResult
from dpcompare.system.files import no_link

LIST_FILE = "runs.jsonl"


class MadeRun(BaseModel):
    """A line of runs.jsonl; the last one of a round and an arm counts."""

    model_config = ConfigDict(frozen=True)

    round: int
    arm: str
    attempt_id: str | None
    """Of the last attempt of the run; None while it runs, and where no process has said it."""


def note(study_dir: Path, number: int, arm: str, result: RunResult | None) -> None:
    """Add a run that begins, or with its result one that has ended."""
    line = MadeRun(round=number, arm=arm, attempt_id=result.attempt_id if result else None)
    with open(study_dir / LIST_FILE, "a", opener=no_link) as file:
        file.write(line.model_dump_json() + "\n")


def attempts_of(study_dir: Path) -> dict[tuple[int, str], str | None]:
    """(round, arm) -> the attempt that the study has made; empty where an older release made it."""
    file = study_dir / LIST_FILE
    found = {}
    for line in file.read_text(errors="replace").splitlines() if file.is_file() and not file.is_symlink() else []:
        try:
            made = MadeRun.model_validate_json(line)
        except ValidationError:  # a line that a loss of power has cut: of its run nothing is known
            continue
        found[made.round, made.arm] = made.attempt_id
    return found


def replaced(result: RunResult, attempt_id: str | None) -> str | None:
    """Why a result is not that of the run which the study has made; None where it is, or that is not known."""
    if attempt_id is None or result.attempt_id == attempt_id:
        return None
    return (
        f"its files are those of another run: received attempt {result.attempt_id or 'without an id'}, and the study "
        f"made {attempt_id} ({LIST_FILE}); bring its own files back, or move the directory away and --resume"
    )
