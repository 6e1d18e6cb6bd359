"""What is found of custom models: their checks in `verify`, without other models, and how they are described."""

import json
import subprocess
import sys

from dpcompare.experiments.contenders import Group, usable_contenders
from dpcompare.experiments.verify import verify
from dpcompare.experiments.verify_workloads import verified_workload


def checks_of(model, frameworks, modes, replicas=1, **asked):
    """The checks of one group in float64."""
    workload = verified_workload(model, "sgd", "float64", quick=True, asked={"image_size": 17, **asked})
    return list(verify([Group(workload=workload, contenders=usable_contenders(frameworks, modes, replicas))]))


EACH = """
import json, sys
from importlib import import_module
from dpcompare.backends.keras import compute_with

framework, *names = sys.argv[1:]
compute_with(framework)
custom_layers = import_module(f"dpcompare.backends.{framework}.model").custom_layers
found = {}
for name in names:
    try:
        found[name] = str(custom_layers(f"nets:{name}", 4, 4))
    except Exception as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def said_of(framework, names):
    """Name -> the layers of each model of nets.py, or why it is refused, as one process of a framework says it."""
    argv = [sys.executable, "-c", EACH, framework, *names]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
