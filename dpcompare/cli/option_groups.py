"""The groups in which `--help` shows the options of a run."""

from __future__ import annotations

import click

OPTION_GROUPS: dict[str, tuple[str, ...]] = {
    "Mode and devices": (
        *("framework", "mode", "nodes", "devices_per_node", "device", "gpus", "share_gpu", "stages"),
        *("pipeline_schedule", "launcher", "python"),
    ),
    "Training": (
        *("model", "weights", "global_batch_size", "epochs", "steps", "precision", "optimizer", "learning_rate"),
        *("schedule", "lr_warmup_steps", "scale_lr", "weight_decay", "clip_norm", "weight_average", "accumulate"),
        *("batchnorm", "batchnorm_momentum", "batchnorm_recompute", "label_smoothing", "regularization", "seed"),
    ),
    "Evaluation": ("evaluate_every", "target_accuracy", "stop_at_target", "keep_predictions"),
    "Data": ("dataset", "image_size", "augment", "skip_corrupt", "follow_links", "input_threads"),
    "Speed and how it is measured": ("profile", "tune", "warmup_steps", "steps_per_window", "profile_steps"),
    "Recovery": (
        *("checkpoint_every", "keep_checkpoints", "resume", "max_restarts", "on_nan", "start_timeout"),
        "progress_timeout",
    ),
    "Clusters and networks": (
        *("engine", "hosts", "ssh", "cores_per_node", "partition", "time", "account", "gres", "sbatch", "image"),
        *("volume_claim", "link", "isolate"),
    ),
}
"""Title -> names of options, both in the order in which they are shown."""


class GroupedCommand(click.Command):
    """A command whose help shows its own options first, and those of a run in groups."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        records = {
            parameter.name: record
            for parameter in self.get_params(context)
            if isinstance(parameter, click.Option)  # arguments are in the usage, with what the docstring says of them
            and (record := parameter.get_help_record(context)) is not None
        }
        grouped = {
            title: [records.pop(name) for name in names if name in records] for title, names in OPTION_GROUPS.items()
        }
        for title, lines in {"Options": list(records.values()), **grouped}.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
