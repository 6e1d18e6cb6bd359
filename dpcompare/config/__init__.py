"""Configs: a run as it is asked for, and the tables of what can be asked."""
