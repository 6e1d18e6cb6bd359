"""The inputs of a tiny run: its dataset and its initial weights, prepared."""

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.launch.inputs import prepare_inputs


def config(**workload):
    chosen = Workload(**{"model": "mlp", "image_size": 8} | workload)
    return RunConfig(framework="torch", mode="single", workload=chosen, cluster=Cluster.partition(device="cpu"))


def inputs(**workload):
    return prepare_inputs(config(**workload)).inputs
