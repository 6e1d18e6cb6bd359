"""How many GPUs a framework finds: fewer than the driver lists, where its build or its libraries do not fit."""

from __future__ import annotations

import subprocess

from dpcompare.errors import RequestError
from dpcompare.system.commands import run_command

# Runs in the interpreter of a framework, and imports it. Those that find none say why on stderr.
_ASK = {
    "torch": "import torch; print(torch.cuda.device_count())",
    "tensorflow": "import tensorflow; print(len(tensorflow.config.list_physical_devices('GPU')))",
    # Only to count them it would reserve three quarters of their memory, and fail where others hold it.
    "jax": """
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
print(sum(device.platform == "gpu" for device in jax.devices()))
""",
}
START_SECONDS = 120.0


def gpus_seen(framework: str, python: str) -> tuple[int, str]:
    """How many of the visible GPUs a framework can use, and the end of what it said about them.

    Raises:
        RequestError: the interpreter, or the framework in it, cannot be used.
    """
    try:
        answer = run_command([python, "-P", "-c", _ASK[framework]], seconds=START_SECONDS)
        answer.check_returncode()
        return int(answer.stdout), " ".join(answer.stderr.split())[-300:]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise RequestError(f"the {framework} of {python!r} cannot be asked which GPUs it finds: {error}") from None
