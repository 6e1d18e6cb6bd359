"""Fields of results whose runs carry no claim, or do: the load of their machine, and how long they were."""

from dpcompare.results.clock import MachineLoad
from dpcompare.results.result import NodeRecord, StepSeconds


def load(*, others=1.6, seconds=4.0, throttles=0):
    return MachineLoad(
        seconds=seconds,
        cores=2,
        planned_cores=2,
        run_cores=2.0 - others,
        other_cores=others,
        stolen_cores=0.0,
        waiting_fraction=None,
        heat_throttles=throttles,
    )


def on_machine(loaded, **changes):
    """What a result has of a machine with this load."""
    node = NodeRecord(node_rank=0, host="here", device_names=["cpu:0"], versions={}, load=loaded, **changes)
    return {"nodes": [node]}


DISTURBED, IDLE = on_machine(load()), on_machine(load(others=0.0))


def changed(arm, numbers, **changes):
    """The same arm with other fields in some of its rounds, counted from 1."""
    for number in numbers:
        arm.runs[number - 1] = arm.runs[number - 1].model_copy(update=changes)
    return arm


def steps_of(count, seconds):
    """What a result has of so many measured steps of so many seconds each."""
    step = StepSeconds(median=seconds, p95=seconds, mean=seconds, mad=0.0)
    return {"measured_steps": count, "step_seconds": step, "steps_left_out": 5}
