"""What processes were seen to have is compared with what was asked for, and between arms and rounds."""

import pytest

from dpcompare.experiments.fairness import compare
from dpcompare.results.observed import DIFFERS_BETWEEN_PROCESSES, Observed, OtherVariables
from tests.support.results import result


def seen(**changes):
    fields = {
        "threads": 2,
        "threads_asked": 2,
        "cores_at_start": "0-1",
        "cores_at_end": "0-1",
        "niceness": 0,
        "switches": [],
    }
    return Observed(**fields | {"input_threads": 1, "input_threads_asked": 1} | changes)


def ran(*processes, **changes):
    return result(observed=list(processes or [seen()]), **changes)


def variables(key="k", **digests):
    return OtherVariables(key=key, digests=digests)


def rows(*results, **options):
    return {row.setting: row for row in compare(results, **options).rows}


@pytest.mark.parametrize(
    ("process", "setting", "said"),
    [
        (seen(threads=1), "threads", "1 observed, 2 asked"),
        (seen(cores_at_end="0"), "affinity at the end", "cores 0, at the start 0-1"),
        (seen(input_threads=0), "input threads observed", "0 observed, 1 asked"),
        (seen(input_threads=3), "input threads observed", "3 observed, 1 asked"),
        (seen(niceness=10), "niceness", "0 against 10"),
        (seen(switches=["oneDNN of torch off"]), "switches", "oneDNN of torch off"),
    ],
)
def test_what_was_not_obeyed_is_named(process, setting, said):
    sheet = compare([ran(), ran(seen(), process)])
    assert sheet.verdict == "NOT COMPARABLE"
    (reason,) = sheet.reasons
    assert reason.startswith(f"{setting}: ")
    assert said.split(" against ")[-1] in reason


def test_both_sides_that_disobey_alike_are_named_too():
    assert [row.setting for row in compare([ran(seen(threads=1)), ran(seen(threads=1))]).rows if row.reason] == [
        "threads"
    ]


def test_modes_that_ask_for_other_numbers_are_no_reason():
    sheet = compare([ran(), ran(seen(threads=1, threads_asked=1)), ran(seen(input_threads=2, input_threads_asked=2))])
    assert sheet.verdict == "COMPARABLE"


@pytest.mark.parametrize(
    "other",
    [
        result(),  # of an older release
        ran(seen(threads=None, threads_asked=None)),  # JAX
        ran(seen(threads=1, threads_asked=None)),  # replicas on threads
        ran(seen(cores_at_end=None, input_threads=None)),
        ran(seen(switches=None)),
    ],
)
def test_what_was_not_seen_is_no_reason(other):
    assert compare([ran(variables=variables(LD_PRELOAD="1a")), other]).verdict == "COMPARABLE"


def test_a_variable_of_one_side_is_named_with_a_digest():
    sheet = compare([ran(variables=variables(HOME="9f", LD_PRELOAD="1a")), ran(variables=variables(HOME="9f"))])
    (reason,) = sheet.reasons
    assert reason.startswith("other environment variables: LD_PRELOAD (1a) against LD_PRELOAD unset; ")
    (row,) = (row for row in sheet.rows if row.reason)
    assert row.values == ["LD_PRELOAD (1a)", "LD_PRELOAD unset"]
    assert compare([ran(variables=variables(LD_PRELOAD="1a"))] * 2).verdict == "COMPARABLE"


def test_another_value_in_a_later_round_is_found_under_seeds():
    values = [("1a", 0), ("2b", 5)]
    rounds = [ran(seen(niceness=nice), variables=variables(LD_PRELOAD=digest)) for digest, nice in values]
    reasons = {name for name, row in rows(*rounds, rounds=[1, 2]).items() if row.reason}
    assert reasons == {"other environment variables", "niceness"}


def test_digests_under_other_keys_say_only_whether_it_is_set():
    here, there = variables(HOME="9f", MALLOC_ARENA_MAX="3c"), variables("other", HOME="11")
    row = rows(ran(variables=here), ran(variables=there))["other environment variables"]
    assert row.values == ["MALLOC_ARENA_MAX (3c)", "MALLOC_ARENA_MAX unset"]


def test_a_variable_of_one_process_alone_is_kept():
    together = OtherVariables.of([variables(HOME="9f", LD_PRELOAD="1a"), variables(HOME="9f")])
    assert together == variables(HOME="9f", LD_PRELOAD=DIFFERS_BETWEEN_PROCESSES)
    assert OtherVariables.of([together, None]) is None
    assert OtherVariables.of([]) is None


def modules(**digests):
    return result(settings={"model_modules": {f"{name}.py": digest * 64 for name, digest in digests.items()}})


def test_another_helper_of_the_model_is_named():
    sheet = compare([modules(net="a", layers="b"), modules(net="a", layers="c")])
    (row,) = (row for row in sheet.rows if row.reason)
    assert (row.setting, row.values) == ("modules of the model", ["layers.py bbbbbbbbbbbb", "layers.py cccccccccccc"])
    # Each framework has a file of its own; an older release says nothing.
    assert compare([modules(net="a", torch="b"), modules(net="a", keras="c"), result()]).verdict == "COMPARABLE"


def test_the_variables_may_be_what_a_study_is_about():
    sides = [ran(variables=variables(LD_PRELOAD="1a")), ran(variables=variables())]
    assert compare(sides, subject=["other environment variables"]).verdict == "COMPARABLE"
