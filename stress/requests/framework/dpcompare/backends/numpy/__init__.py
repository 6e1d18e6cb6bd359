"""NumPy as a framework: one replica on the host."""
