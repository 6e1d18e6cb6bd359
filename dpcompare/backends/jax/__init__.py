"""The JAX side: one file per mode, and what the modes share in backend.py."""
