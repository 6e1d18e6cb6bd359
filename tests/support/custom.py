"""What `verify` finds of a custom model, without the small built-in models that the command compares besides."""

from dpcompare.experiments.contenders import Group, usable_contenders
from dpcompare.experiments.verify import verify
from dpcompare.experiments.verify_workloads import verified_workload


def checks_of(model, frameworks, modes, replicas=1, **asked):
    """The checks of one group in float64."""
    workload = verified_workload(model, "sgd", "float64", quick=True, asked={"image_size": 17, **asked})
    return list(verify([Group(workload=workload, contenders=usable_contenders(frameworks, modes, replicas))]))
