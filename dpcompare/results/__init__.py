"""Results: what a run leaves on disk."""
