"""Studies of tiny runs, as documents: nothing is trained."""

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.experiments.study import Arm, Study


def arm(name="torch single 1x1", mode="single", framework="torch", nodes=1, devices=1, **workload):
    chosen = Workload(**{"model": "mlp", "image_size": 8, "steps": 4, "warmup_steps": 1} | workload)
    cluster = Cluster.partition(nodes, devices, device="cpu", num_cores=2)
    return Arm(name=name, config=RunConfig(framework=framework, mode=mode, workload=chosen, cluster=cluster))


def study(**changes):
    arms = tuple(arm(name=f"arm {letter}") for letter in "abcd")
    return Study(**{"arms": arms, "repeats": 40} | changes)
