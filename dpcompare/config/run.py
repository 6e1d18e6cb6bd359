"""The config of a run: a workload, trained by a mode of a framework on a cluster, that obeys the rules."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, model_validator

from dpcompare.config.rules import problems_of_run
from dpcompare.config.run_fields import RunFields
from dpcompare.config.validation import in_several_lines, raise_problems
from dpcompare.system.json_files import read_document, write_document


class RunConfig(RunFields):
    """One run: a workload, trained by one mode of one framework, on a cluster."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        for name, value in self:
            raise_problems(list(in_several_lines(value.model_dump() if isinstance(value, BaseModel) else value, name)))
        raise_problems(problems_of_run(self))
        return self

    def save(self, path: Path) -> None:
        write_document(self, path)

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        return read_document(cls, path, kind="the config of a run", expected="the directory of a run")
