"""The studies of equal arms: what is kept of each, and which claims are false."""

from stress.real_aa import is_false, shown
from tests.support.arms import FAST, SLOW, compared, runs, stalled


def test_what_is_kept_of_a_study_tells_its_claims_and_its_stalls():
    arms = stalled(runs("torch", "ddp", FAST), 3), runs("tensorflow", "multiworker", SLOW)
    kept = shown(compared(*arms))
    assert (kept["claims"], kept["stalls"], kept["widest"] > 1) == (["faster"], 1, True)
    assert is_false(kept)
    assert not is_false(kept | {"claims": ["no difference shown", "too few rounds"]})
