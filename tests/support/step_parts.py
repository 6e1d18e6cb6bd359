"""Series of step durations whose parts are known, and runs that have them."""

from dpcompare.results.clock import MachineLoad
from dpcompare.results.events import EventLog
from dpcompare.results.result import NodeRecord
from tests.support.events import ready, trained
from tests.support.results import result

STEPS = 60


def constant(*processes):
    return [[seconds] * STEPS for seconds in processes]


SYNCHRONOUS = {
    # Process 1 needs 100 ms to compute, the other 80, of which 30 are for the images; input takes 20, the exchange 50.
    "as_it_is": constant(0.170, 0.170),
    "no_exchange": constant(0.100, 0.120),
    "no_input": constant(0.150, 0.150),
    "computing_alone": constant(0.080, 0.100),
    "larger_batch": constant(0.170, 0.190),
    "one_device": constant(0.060),
}


def write_runs(study, folder, variants, seconds, *, failed=(), slower=None, busy=(), **fields):
    """What the runs of a study leave, whose variants took these seconds per step and process.

    Args:
        study: of the variants.
        folder: of the study.
        variants: as the study has them.
        seconds: variant, with underscores -> seconds of the steps of each process.
        failed: variants that fail.
        slower: round -> how many times as long it took without exchange.
        busy: the rounds in which other processes took cores.
        fields: of the results.
    """
    for number in study.rounds:
        for variant, arm in variants.arms.items():
            run_dir = study.run_dir(folder, number, arm)
            (run_dir / "events").mkdir(parents=True)
            own = {"status": "failed", "error": "out of memory"} if variant in failed else {}
            own |= {"nodes": [BUSY]} if number in busy else {}
            result(config=arm.config.model_dump(mode="json"), num_nodes=1, **fields, **own).save(run_dir)
            times = (slower or {}).get(number, 1.0) if variant == "no exchange" else 1.0
            steps = arm.config.workload.steps
            for rank, (of_step, *_) in enumerate(seconds[variant.replace(" ", "_")]):
                log = EventLog(run_dir, rank)
                log.append(ready(steps=steps))
                log.append(trained([1.0] * steps, step=steps, step_seconds=[of_step * times] * steps))
                log.close()


BUSY = NodeRecord(
    node_rank=0,
    host="here",
    device_names=["cpu:0"],
    versions={},
    load=MachineLoad(
        seconds=4.0,
        cores=2,
        planned_cores=2,
        run_cores=0.6,
        other_cores=1.4,
        stolen_cores=0.0,
        waiting_fraction=None,
        heat_throttles=None,
    ),
)
