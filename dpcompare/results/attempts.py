"""What earlier attempts of a run contribute to its result: a document beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcompare.results.evaluation import Evaluation
from dpcompare.results.run_dir import HISTORY_FILE
from dpcompare.system.json_files import read_document, write_document
from dpcompare.system.quantities import Count, Finite, Number, Rate

Status = Literal["completed", "failed", "interrupted"]


class Attempt(BaseModel):
    """An earlier attempt of a run that was resumed from a checkpoint; its files are below attempts/."""

    model_config = ConfigDict(frozen=True)

    first_step: Count
    """Steps made before it."""
    last_step: Count
    """Steps made in all when it ended; those after the checkpoint that was resumed were made again."""
    status: Status
    error: str | None
    framework: str
    mode: str
    num_replicas: Number
    images_per_second: Rate | None


class History(BaseModel):
    """history.json: what earlier attempts of a run contribute to its result."""

    model_config = ConfigDict(frozen=True)

    losses: list[Finite | None] = Field(default_factory=list)
    """Of every step up to the checkpoint that the present attempt was resumed from."""
    evaluations: list[Evaluation] = Field(default_factory=list)
    attempts: list[Attempt] = Field(default_factory=list)

    @classmethod
    def load(cls, run_dir: Path) -> History:
        """What the earlier attempts of a run measured; nothing where there were none."""
        if not (run_dir / HISTORY_FILE).is_file():
            return cls()
        return read_document(cls, run_dir / HISTORY_FILE, kind="the history of a run", expected="a run directory")

    def up_to(self, step: int) -> History:
        """Without what was trained beyond a step, which is trained again."""
        losses = self.losses[:step]
        return History(
            losses=losses + [None] * (step - len(losses)),  # events that a loss of power took, unlike the checkpoint
            evaluations=[evaluation for evaluation in self.evaluations if evaluation.step <= step],
            attempts=self.attempts,
        )

    def save(self, run_dir: Path) -> None:
        write_document(self, run_dir / HISTORY_FILE)
