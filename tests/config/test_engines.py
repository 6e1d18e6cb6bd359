"""Engines and their options: those of dpcompare, and those of other packages."""

import importlib.metadata
import sys
import types

import pytest

from dpcompare.cli.options import RunOptions
from dpcompare.cli.resume import changed_config
from dpcompare.config import engines
from dpcompare.config.cluster import Cluster
from dpcompare.config.engines import EngineOptions, EngineRow, engine_names, engine_row
from dpcompare.config.placement import Placement
from dpcompare.config.run import RunConfig
from dpcompare.config.setting import Changes, setting
from dpcompare.errors import RequestError
from dpcompare.launch.engines import Engine, load_engine
from tests.support.command import invoke

SLURM = ("plan", "torch:ddp", "--engine", "slurm", "--device", "cpu", "--cores-per-node", "2", "--nodes", "2")


ON_CLOUD = ("plan", "torch:ddp", "--engine", "cloud", "--device", "cpu", "--nodes", "2")


class CloudOptions(EngineOptions):
    zone: str | None = setting(None, changes=Changes.NOTHING)
    spot: bool = setting(False, changes=Changes.NOTHING)
    tags: tuple[str, ...] | None = setting(None, changes=Changes.NOTHING)


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
    assert (
        "-o: received zon=a with engine cloud, which has no such option; expected one of zone, spot" in refused.stderr
    )
    assert "Did you mean 'zone'?" in refused.stderr
    named = invoke(*ON_CLOUD, "-o", "tags=a", "-o", "tags=b,c", "-o", "spot=true", "--json").json["config"]["placement"]
    assert named == {"engine": "cloud", "zone": None, "spot": True, "tags": ["a", "b,c"]}


@pytest.mark.usefixtures("plug_ins")
@pytest.mark.parametrize(
    ("name", "why"), [("gone", "ModuleNotFoundError: No module named"), ("text", "TypeError: it is of type str")]
)
def test_a_broken_engine_is_named_and_the_others_work(name, why):
    with pytest.raises(RequestError, match=f"engine '{name}' of .* cannot be loaded .{why}"):
        engine_row(name)
    assert invoke(*SLURM).code == 0


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match=r"unknown engine 'slrum'; expected one of local, .*Did you mean 'slurm'"):
        Placement(engine="slrum")


def test_options_of_other_engines_are_refused():
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
    both = invoke(*SLURM, "-o", "sbatch=--qos=a", "-o", "sbatch=--nodelist=b,c").stdout
    assert "#SBATCH --qos=a\n#SBATCH --nodelist=b,c\n" in both
    twice = invoke(*SLURM, "-o", "partition=gpu", "--partition", "cpu")
    assert twice.code == 2
    assert "-o: received partition=gpu, but --partition was given too" in twice.stderr


@pytest.mark.torch
def test_an_arm_may_have_options_of_its_engine():
    arms = ["torch:ddp,engine=namespaces,engine_option=link=1gbit", "torch:ddp,engine=namespaces,link=100mbit"]
    named = [part for arm in arms for part in ("--arm", arm)]
    planned = invoke("compare", "--dry-run", "--json", *named, "--nodes", "2", "--model", "mlp", "--image-size", "8")
    assert planned.code == 0, planned.stderr
    arms = list(dict.fromkeys(run["arm"] for run in planned.json["runs"]))
    assert [arm.endswith(rate) for arm, rate in zip(arms, ("1gbit", "100mbit"), strict=True)] == [True, True], arms
    wrong = invoke("compare", "--dry-run", "--arm", "torch:ddp,engine=namespaces,engine_option=lnik=1gbit")
    assert (wrong.code, "Did you mean 'link'?" in wrong.stderr) == (2, True)


def changed(placement, engine_option, given):
    machines = Cluster.of_machines(2, 1, device_type="cpu", num_cores=1)
    config = RunConfig(framework="torch", mode="ddp", cluster=machines, placement=placement)
    return changed_config(config, RunOptions(engine_option=engine_option), given).placement


@pytest.mark.torch
def test_a_resumed_run_changes_options_of_its_engine_by_name():
    on_hosts = Placement(engine="hosts", hosts=("a", "b"), ssh=True)
    assert changed(on_hosts, ("hosts=c,d",), {"engine_option"}).hosts == ("c", "d")
    assert changed(on_hosts, ("ssh=no",), {"engine_option"}).options.ssh is False
    assert changed(on_hosts, ("ssh=no",), set()) == on_hosts  # from a variable
    slurm = Placement(engine="slurm", partition="gpu")
    assert changed(slurm, ("sbatch=--qos=high",), {"engine_option"}).options.sbatch == ("--qos=high",)


def test_a_field_that_no_engine_has_is_unknown():
    with pytest.raises(RequestError, match="lnik is unknown, received None"):
        Placement(engine="local", lnik=None)


@pytest.mark.usefixtures("plug_ins")
def test_an_engine_of_another_package_without_a_class_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules["cloud_engine"], "ROW", EngineRow(summary="a cloud", simulated=True))
    with pytest.raises(RequestError, match="its row names no class"):
        engine_row("cloud")


def test_a_changed_placement_reaches_its_engines_options():
    placement = Placement(engine="slurm", partition="gpu")
    assert placement.changed(partition="cpu") == Placement(engine="slurm", partition="cpu")
    with pytest.raises(RequestError, match="partition: received with engine local; expected engine slurm"):
        placement.changed(engine="local")


def test_an_option_without_what_it_changes_is_refused_by_name():
    class Undeclared(EngineOptions):
        zone: str | None = None

    with pytest.raises(TypeError, match=r"Undeclared.zone: expected a field made by setting\(\)"):
        EngineRow(summary="a cloud", simulated=False, options=Undeclared)
