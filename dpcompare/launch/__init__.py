"""Launching: from a config to the processes of a run, and to its result."""
