"""Engines and their options: those of dpcompare, and those of other packages."""

import importlib.metadata
import sys
import types

import pytest

from dpcompare.config import engines
from dpcompare.config.engines import EngineOptions, EngineRow, engine_names, engine_row
from dpcompare.config.placement import Placement
from dpcompare.config.setting import Changes, setting
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, load_engine
from tests.support.command import invoke

SLURM = ("plan", "torch:ddp", "--engine", "slurm", "--device", "cpu", "--cores-per-node", "2", "--nodes", "2")


class CloudOptions(EngineOptions):
    zone: str | None = setting(None, changes=Changes.NOTHING)
    spot: bool = setting(False, changes=Changes.NOTHING)


class Cloud(Engine):
    def check(self, config):
        raise RequestError("there is no cloud here")

    def started(self, config, run_dir, rendezvous, report):
        raise NotImplementedError

    def node_identity(self, config, node_rank):
        raise NotImplementedError


@pytest.fixture
def plug_ins(monkeypatch):
    """Entry points of a package with an engine that works, and of one that does not."""
    package = types.ModuleType("cloud_engine")
    package.Cloud = Cloud
    package.ROW = EngineRow(summary="a cloud", simulated=False, engine="cloud_engine:Cloud", options=CloudOptions)
    package.TEXT = "no row"
    monkeypatch.setitem(sys.modules, "cloud_engine", package)
    found = [
        importlib.metadata.EntryPoint(name, value, engines.PLUG_INS)
        for name, value in {
            "cloud": "cloud_engine:ROW", "text": "cloud_engine:TEXT", "gone": "package_that_is_not_there:ROW",
        }.items()
    ]  # fmt: skip
    monkeypatch.setattr(engines, "entry_points", lambda group: found)
    for cached in (engines._plug_ins, engines.engine_row):
        cached.cache_clear()
    yield
    for cached in (engines._plug_ins, engines.engine_row):
        cached.cache_clear()


@pytest.mark.usefixtures("plug_ins")
def test_an_engine_of_another_package_has_its_own_options():
    assert engine_names()[-3:] == ["cloud", "text", "gone"]
    placement = Placement(engine="cloud", zone="a", spot="true")
    assert placement.options == CloudOptions(zone="a", spot=True)
    assert Placement(**placement.model_dump()) == placement
    assert isinstance(load_engine("cloud"), Cloud)
    planned = invoke("plan", "torch:ddp", "--engine", "cloud", "-o", "zone=a", "--device", "cpu", "--nodes", "2")
    assert planned.stdout.count("dpcompare.launch.node") == 2
    refused = invoke("plan", "torch:ddp", "--engine", "cloud", "-o", "zon=a", "--device", "cpu")
    assert refused.code == 2
    assert "zon: received with engine cloud, which has no such option; expected one of zone, spot" in refused.stderr


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("name", "why"), [("gone", "ModuleNotFoundError: No module named"), ("text", "TypeError: it is of type str")]
)
def test_an_engine_of_another_package_that_breaks_is_named_and_the_others_work(name, why):
    with pytest.raises(RequestError, match=f"engine '{name}' of .* cannot be loaded .{why}"):
        engine_row(name)
    assert invoke(*SLURM).code == 0


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match=r"unknown engine 'slrum'; expected one of local, .*Did you mean 'slurm'"):
        Placement(engine="slrum")


def test_options_of_other_engines_are_refused_by_the_engine_that_has_them():
    with pytest.raises(RequestError) as refused:
        Placement(engine="hosts", hosts=("a",), link="1gbit", partition="gpu", time="1:00")
    assert "link: received with engine hosts; expected engine namespaces" in str(refused.value)
    assert "partition, time: received with engine hosts; expected engine slurm" in str(refused.value)


def test_a_placement_of_an_older_release_is_read():
    old = {
        "engine": "slurm", "hosts": [], "ssh": False, "partition": "gpu", "time": None, "account": None, "gres": None,
        "sbatch": ["--qos=high"], "image": None, "volume_claim": None, "link": None,
    }  # fmt: skip
    assert Placement(**old) == Placement(engine="slurm", partition="gpu", sbatch=("--qos=high",))


def test_options_of_an_engine_may_be_typed_by_name_and_value():
    one, other = (invoke(*SLURM, *typed).stdout for typed in (["-o", "partition=gpu"], ["--partition", "gpu"]))
    directives = [[line for line in text.splitlines() if "--partition" in line] for text in (one, other)]
    assert directives[0] == directives[1] == ["#SBATCH --partition=gpu"]
    twice = invoke(*SLURM, "-o", "partition=gpu", "--partition", "cpu")
    assert twice.code == 2
    assert "-o: received 'partition=gpu', but --partition was given too" in twice.stderr


def test_an_option_without_what_it_changes_is_refused_by_name():
    class Undeclared(EngineOptions):
        zone: str | None = None

    with pytest.raises(TypeError, match=r"Undeclared.zone: expected a field made by setting\(\)"):
        EngineRow(summary="a cloud", simulated=False, options=Undeclared)
