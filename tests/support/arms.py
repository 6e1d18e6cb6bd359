"""Arms of a study with the speeds that a test names, and their comparison."""

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import ArmRuns, Collection
from dpcompare.results.result import StepSeconds
from dpcompare.results.steadiness import SlowSteps
from tests.support.results import result


def runs(framework, mode, speeds, *, replicas=2, mean_ms=None, **changes):
    """An arm with a run per speed; None where a run failed."""
    found = []
    for number, speed in enumerate(speeds):
        mean = (mean_ms[number] if mean_ms else 3200 / (speed or 1)) / 1000
        step = StepSeconds(median=mean, p95=mean, mean=mean, mad=0.0)
        fields = {"num_nodes": replicas, "num_replicas": replicas, "step_seconds": step, "data_wait_fraction": 0.1}
        fields["measured_steps"] = 60  # long enough for a claim of speed
        made = result(framework, mode, images_per_second=speed, **fields | changes)
        found.append(None if speed is None else made)
    nodes = replicas if mode in ("ddp", "multiworker") else 1
    config = RunConfig(
        framework=framework,
        mode=mode,
        workload=Workload(),
        cluster=Cluster.partition(nodes, replicas // nodes, device="cpu", num_cores=2),
    )
    positions = list(range(1, len(speeds) + 1))
    return ArmRuns(
        name=f"{framework} {mode} {replicas}x1",
        config=config,
        runs=found,
        run_dirs=[f"runs/{n}" for n in positions],
        positions=positions,
    )


FAST = [130.0, 129.0, 131.0, 130.5, 129.5, 130.0]
SLOW = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]


def compared(*arms, repeats=6, subject=()):
    return analyse(Collection(arms=list(arms), repeats=repeats, subject=subject))


def single(speeds, **changes):
    changes = {"num_nodes": 1, "num_processes": 1, "device_names": ["cpu:0"]} | changes
    return runs("torch", "single", speeds, replicas=1, **changes)


def stalled(arm, number, mean=0.5):
    """The arm with a run that one step of 20 s has made slow; the others were as fast as ever."""
    before = arm.runs[number - 1]
    slow = SlowSteps(
        largest_seconds=20.0, first=15, last=15, count=1, lost_seconds=19.7, images_per_second_without=110.9
    )
    step = before.step_seconds.model_copy(update={"median": 0.29, "mean": mean})
    changes = {"images_per_second": 22.0, "steady_images_per_second": before.images_per_second}
    arm.runs[number - 1] = before.model_copy(update={"slow_steps": slow, "step_seconds": step} | changes)
    return arm


def renamed(name, arm):
    arm.name = name
    return arm
