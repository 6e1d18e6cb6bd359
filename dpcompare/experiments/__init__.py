"""Experiments: many runs, compared, judged and verified."""
