"""What people type for options that are spelt otherwise here; one more is a row."""

from __future__ import annotations

import click

_PLACE = ("--out", "--run-dir", "--html")
_REPEATS = ("--repeats",)
_DEVICES = ("--devices-per-node", "--devices", "--gpus")
_BATCH = ("--batch-size",)
_PRECISION = ("--precision",)

OTHER_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--study-dir", "--study", "--name", "--output", "--output-dir"), _PLACE),
    "--run-dir": ("--out",),
    "--out": ("--run-dir", "--html"),
    "--dry-run": ("dpcompare plan",),
    **dict.fromkeys(("--rounds", "--runs", "--seeds", "--num-repeats", "--trials"), _REPEATS),
    **dict.fromkeys(("--num-nodes", "--nnodes"), ("--nodes",)),
    **dict.fromkeys(("--num-devices", "--nproc-per-node", "--nproc_per_node", "--num-gpus", "--replicas"), _DEVICES),
    "--devices": ("--devices-per-node",),
    **dict.fromkeys(("--batch", "--bs", "--batch_size", "-b"), _BATCH),
    **dict.fromkeys(("--num-workers", "--workers", "--threads"), ("--input-threads",)),
    **dict.fromkeys(("--data", "--data-dir", "--data-path"), ("--dataset",)),
    **dict.fromkeys(("--dtype", "--amp", "--bf16", "--fp16"), _PRECISION),
    **dict.fromkeys(("--sync-bn", "--sync-batchnorm"), ("--batchnorm",)),
    **dict.fromkeys(("--compile", "--channels-last"), ("--tune",)),
    "--warmup": ("--lr-warmup-steps", "--warmup-steps"),
    **dict.fromkeys(("--figures", "--plot-format", "--pdf"), ("--plots",)),
    **dict.fromkeys(("--verbose", "-v", "--all"), ("--full",)),
    **dict.fromkeys(("--modes", "--mode"), ("--arm",)),
}
"""Option as people type it -> what it is called here, the likeliest first: an option that counts in commands which have
it, or a command, which always does."""


def known_option(error: click.ClickException) -> str | None:
    """The message about an option that a command calls otherwise; None where Click's own says as much."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return None
    known = {name for option in error.ctx.command.params for name in (*option.opts, *option.secondary_opts)}
    for name in OTHER_OPTIONS.get(error.option_name, ()):
        if name in known or not name.startswith("-"):
            return f"{error.message} Did you mean {name!r}?"
    return None
