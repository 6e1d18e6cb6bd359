"""A placement: who starts the node processes, and with which options of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import SerializeAsAny, model_serializer, model_validator

from dpcompare.config.engines import ENGINES, EngineOptions, EngineRow, engine_row, engines_with
from dpcompare.config.setting import CLUSTERS, Changes, Config, Option, setting, settings_of
from dpcompare.system.type_names import FieldValue


class Placement(Config):
    """Who starts the node processes, and where; see `dpcompare.launch.engines`.

    The options of the engine are given and written next to its name: `Placement(engine="slurm", partition="gpu")`.
    """

    engine: str = setting(
        "local",
        changes=Changes.STEP_TIME,
        option=Option(
            CLUSTERS,
            "Who starts the nodes. " + "; ".join(f"{name}: {row.summary}" for name, row in ENGINES.items()) + ".",
            resumable=True,
        ),
    )
    options: SerializeAsAny[EngineOptions] = setting(EngineOptions(), changes=Changes.STEP_TIME)

    @property
    def row(self) -> EngineRow:
        return engine_row(self.engine)

    @property
    def link(self) -> str | None:
        """The rate to which the engine limits each node's link; None: it does not."""
        return getattr(self.options, "link", None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines of the nodes, where they are named; empty otherwise."""
        return getattr(self.options, "hosts", ())

    def on_first_node(self) -> Placement:
        """The same, of the first node alone."""
        return self.changed(hosts=self.hosts[:1]) if self.hosts else self

    def changed(self, **fields: FieldValue) -> Self:
        """The same as `Config.changed`; the options of the engine are fields as well."""
        return type(self)(**self.model_dump() | fields)

    @model_validator(mode="before")
    @classmethod
    def _options_of_the_engine(cls, values: Any) -> Any:
        """Gather the options of the engine. Those of others may stand there as long as they say nothing."""
        if not isinstance(values, Mapping) or isinstance(values.get("options"), EngineOptions):
            return values
        engine = values.get("engine", "local")
        if not isinstance(engine, str):
            return {"engine": engine}  # which pydantic refuses
        known = engine_row(engine).options.model_fields
        given = {name: value for name, value in values.items() if name != "engine"}
        foreign = {name: value for name, value in given.items() if name not in known and engines_with(name)}
        if said := [name for name, value in foreign.items() if not _is_unset(value)]:
            raise ValueError("; ".join(_why_foreign(said, engine)))
        own = {name: value for name, value in given.items() if name in known}
        unknown = {name: value for name, value in given.items() if name not in known and name not in foreign}
        return {"engine": engine, "options": engine_row(engine).options(**own), **unknown}  # pydantic refuses these

    @model_serializer
    def _flat(self) -> dict[str, Any]:
        return {"engine": self.engine, **self.options.model_dump(mode="json")}


def _is_unset(value: Any) -> bool:
    """Whether a placement of an older release, which had the options of all engines, has none here."""
    return value is None or value is False or value in ((), [])


def _why_foreign(names: list[str], engine: str) -> list[str]:
    """A problem for the options of each other engine."""
    owners = {name: " or ".join(engines_with(name)) for name in names}
    return [
        f"{', '.join(name for name in names if owners[name] == owner)}: received with engine {engine}; expected engine "
        f"{owner}"
        for owner in dict.fromkeys(owners.values())
    ]


settings_of(Placement)  # every field says what it changes
