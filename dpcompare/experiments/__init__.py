"""Experiments: many runs, compared, judged and verified."""

STUDY_FILE = "study.json"
"""By which the directory of a study is known."""
