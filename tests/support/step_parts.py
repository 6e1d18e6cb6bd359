"""Series of step durations whose parts are known."""

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
