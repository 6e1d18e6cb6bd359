"""The frameworks and modes that `verify` compares by default."""

BOTH = ("torch", "tensorflow")
ALL = ("single", "dp", "ddp", "mirrored", "multiworker")
