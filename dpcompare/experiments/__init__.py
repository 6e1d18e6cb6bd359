"""Experiments: many runs, compared, judged and verified."""

STUDY_FILE = "study.json"
"""The file by which the directory of a study is known."""
