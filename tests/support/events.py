"""Events as a training process writes them, for tests that need only some of their fields."""

from dpcompare.results.events import Ready, Started, StepsTrained


def started(**fields):
    return Started(**{"pid": 1, "host": "here", "node_rank": 0, "local_rank": 0, "devices": ["cpu:0"]} | fields)


def ready(steps=10, first_step=0, **fields):
    return Ready(steps=steps, first_step=first_step, num_replicas=1, **fields)


def trained(losses, *, step, **fields):
    """Steps of 8 samples that took 0.1 s each."""
    series = {
        "global_counts": [8] * len(losses),
        "step_seconds": [0.1] * len(losses),
        "data_seconds": [0.01] * len(losses),
        "host_overhead_seconds": [0.002] * len(losses),
    }
    return StepsTrained(step=step, losses=losses, **series | fields)
