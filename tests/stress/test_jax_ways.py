"""What a program of XLA exchanges, counted in its text."""

from benchmarks import jax_ways

PROGRAM = """
  %all-reduce.1 = (f32[8]{0}, f32[3,4]{1,0}) all-reduce(%a, %b), channel_id=1
  %all-gather-start = f64[2]{0} all-gather-start(%c), channel_id=2
  %sum = f32[1000]{0} add(%all-reduce.1, %all-reduce.1)
  %loss = f32[] all-reduce(%d), channel_id=3
"""


def test_collectives_of_a_step_are_counted_in_its_last_text(tmp_path):
    """Of micro-batches as often as they are run, and neither twice nor in programs of other work."""
    name = "module_0001.jit__{}_replica.{}.txt"
    for program, stage in [
        *(("accumulate", "cpu_after_optimizations"), ("apply", "cpu_after_optimizations")),
        *(("apply", "before_optimizations"), ("evaluate", "cpu_after_optimizations")),
    ]:
        (tmp_path / name.format(program, stage)).write_text(PROGRAM)
    found = jax_ways.collectives_in(tmp_path, micro_batches=3)
    assert found.collectives == {"all-reduce": 8, "all-gather": 4}
    assert found.megabytes == 4 * (12 * 4 + 8 * 4 + 2 * 8 + 4) / 1e6
    assert found.in_words == "8 all-reduce, 4 all-gather"
