"""Studies of tiny runs, as documents: nothing is trained; and which runs of a real one count."""

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.study import Arm, Study
from dpcompare.results.run_dir import RESULT_FILE


def arm(name="torch single 1x1", mode="single", framework="torch", nodes=1, devices=1, **workload):
    chosen = Workload(**{"model": "mlp", "image_size": 8, "steps": 4, "warmup_steps": 1} | workload)
    cluster = Cluster.partition(nodes, devices, device="cpu", num_cores=2)
    return Arm(name=name, config=RunConfig(framework=framework, mode=mode, workload=chosen, cluster=cluster))


def counted_runs(folder):
    """The directories of the finished runs that count, in order: a busy machine may have had one of them repeated."""
    there = Study.load(folder)
    directories = {there.run_dir(folder, number, arm) for number in there.rounds for arm in there.arms}
    return sorted(run for run in directories if (run / RESULT_FILE).is_file())


def study(**changes):
    arms = tuple(arm(name=f"arm {letter}") for letter in "abcd")
    return Study(**{"arms": arms, "repeats": 40} | changes)
