"""Arms with a seed per round and the accuracies that a test names, and their comparison."""

from dpcompare.experiments.analysis import analyse
from dpcompare.experiments.collection import Collection
from dpcompare.experiments.study import Arm, Study
from dpcompare.results.computed import Evaluation, TrainingCost
from tests.support.arms import runs

# Accuracies of eight seeds.
SEEDS = [0.80, 0.82, 0.79, 0.81, 0.83, 0.80, 0.78, 0.81]
BETTER = [0.83, 0.84, 0.83, 0.84, 0.85, 0.83, 0.82, 0.83]
NEARLY = [0.802, 0.819, 0.791, 0.809, 0.831, 0.80, 0.779, 0.811]
NOISY = [0.84, 0.79, 0.83, 0.77, 0.86, 0.78, 0.80, 0.82]
SPEEDS = [100.0 + number for number in range(8)]


def varied(made, accuracies, *, target=None, stop_at_target=False, **changes):
    """The same arm, each round with a seed of its own."""
    made.varies_seed = True
    made.config = made.config.model_copy(update={"target_accuracy": target, "stop_at_target": stop_at_target})
    made.runs = [
        None
        if run is None
        else run.model_copy(
            update={
                "sample_order_sha256": f"order {number}",
                "weights_sha256": f"weights {number}",
                "train_loss": [2.0 + number / 100] * 45,
                "evaluations": [Evaluation(epoch=1, step=45, loss=1 - accuracy, accuracy=accuracy, count=400)],
                "config": run.config
                | {"target_accuracy": target, "stop_at_target": stop_at_target}
                | {"workload": run.config["workload"] | {"seed": number, **changes.get("workload", {})}},
                **{name: value for name, value in changes.items() if name != "workload"},
            }
        )
        for number, (run, accuracy) in enumerate(zip(made.runs, accuracies, strict=True), start=1)
    ]
    for each in made.runs:
        each.computed.batch_digests.clear()
    return made


def ddp(accuracies=SEEDS, **changes):
    return varied(runs("torch", "ddp", SPEEDS), accuracies, **changes)


def multiworker(accuracies=SEEDS, **changes):
    return varied(runs("tensorflow", "multiworker", SPEEDS), accuracies, **changes)


def compared(*arms, subject=()):
    for each in arms:
        each.plan = each.plan.__class__(rounds=8)
    return analyse(Collection(arms=list(arms), repeats=8, subject=subject))


def saved(folder, *arms, rounds=8):
    """A study of these arms on disk, as the first of their rounds left it."""
    made = Study(arms=[Arm(name=each.name, config=each.config) for each in arms], repeats=rounds, vary_seed=True)
    made.save(folder)
    for of, each in zip(made.arms, arms, strict=True):
        for number, run in zip(made.rounds, each.runs[:rounds], strict=True):
            run_dir = made.run_dir(folder, number, of)
            run_dir.mkdir(parents=True)
            run.save(run_dir)
    return folder


def evaluated(made, accuracies, seconds):
    """Each round evaluated after 15, 30 and 45 steps, a step taking so many seconds."""
    made.runs = [
        run.model_copy(
            update={
                "evaluations": [
                    Evaluation(epoch=1, step=step, loss=1 - accuracy, accuracy=accuracy, count=400)
                    for step, accuracy in zip((15, 30, 45), of_round, strict=True)
                ],
                "evaluation_costs": [
                    TrainingCost(step=step, images=32 * step, seconds=step * of_step, joules=None)
                    for step in (15, 30, 45)
                ],
            }
        )
        for run, of_round, of_step in zip(made.runs, accuracies, seconds, strict=True)
    ]
    return made


EARLY, LATE, NEVER = (0.5, 0.75, 0.8), (0.4, 0.6, 0.8), (0.4, 0.5, 0.6)
SECONDS = [0.1, 0.11, 0.1, 0.12, 0.1, 0.1, 0.11, 0.1]
