"""A run as its two processes recorded it, without any process: its config, records, events and result."""

from dpcompare.config.cluster import Cluster
from dpcompare.config.run import RunConfig
from dpcompare.config.run_fields import Inputs
from dpcompare.config.workload import Workload
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.results.aggregate import LaunchEnd, aggregate
from dpcompare.results.attempts import ProcessRecord
from dpcompare.results.events import Evaluated, EventLog
from tests.support.events import trained

STARTED_AT = 1000.0
INPUTS = Inputs(
    store="/store",
    store_sha256="a",
    weights="/weights",
    weights_sha256="b",
    num_classes=2,
    num_train=4,
    num_validation=2,
    num_skipped=0,
)
"""The inputs of a run whose files are not read."""


def recorded_config():
    """Two processes that train four steps of 8 samples."""
    workload = Workload(model="mlp", image_size=8, global_batch_size=8, steps=4, warmup_steps=1)
    cluster = Cluster.partition(2, device="cpu")
    return prepare_inputs(RunConfig(framework="torch", mode="ddp", workload=workload, cluster=cluster))


def record(rank, **changes):
    """The record of a process."""
    fields = {
        "process_rank": rank,
        "node_rank": rank,
        "local_rank": 0,
        "pid": 100 + rank,
        "host": "here",
        "device_names": [f"cpu:{rank}"],
        "threads": 1,
        "collective": "gloo",
        "settings": {"tf32": False},
        "sample_order_sha256": "abc",
        "peak_memory_bytes": 10 * (rank + 1),
        "peak_device_memory_bytes": None,
        "versions": {"numpy": "2"},
    }
    return ProcessRecord(**fields | changes)


def events(rank, *, seconds=(1.0, 0.1, 0.1, 0.1), evaluated=(150, 209), losses=(16.0, 8.0, 4.0, 2.0)):
    """What a process has logged: its steps, and an evaluation."""
    steps = {"step": len(losses), "step_seconds": list(seconds)[: len(losses)]}
    found = [trained(list(losses), time=1003.0 + rank, process_rank=rank, **steps)]
    if evaluated is not None:
        sums = {"loss_sum": 359.0, "correct": 90, "count": evaluated[rank]}
        found.append(Evaluated(time=1005.0, epoch=1, step=4, process_rank=rank, **sums))
    return found


def aggregated(config, run_dir, found, status="completed", error=None):
    """The result of a run that has logged these events."""
    for event in found:
        log = EventLog(run_dir, event.process_rank)
        log.append(event)
        log.close()
    end = LaunchEnd(status=status, error=error, started_at=STARTED_AT, ended_at=1010.0)
    return aggregate(config, run_dir, end)


def recorded_run(config, run_dir):
    """A run that has completed, with all that its processes have written; returns its directory."""
    run_dir.mkdir()
    config.save(run_dir / "config.json")
    for rank in range(2):
        record(rank).save(run_dir)
    aggregated(config, run_dir, events(0) + events(1)).save(run_dir)
    return run_dir
