"""The frameworks and modes that `verify` compares unless it is told others."""

BOTH = ("torch", "tensorflow")
ALL = ("single", "dp", "ddp", "mirrored", "multiworker")
