"""The kernel of attention that a result names is the one that torch ran."""

import json
import os
import subprocess
import sys

import pytest

KERNEL = """
import json, sys
import torch
from torch.profiler import profile
from dpcompare import Cluster, RunConfig, Workload
from dpcompare.backends import load_backend
from dpcompare.launch.inputs import prepare_inputs

found = []
for flash in json.loads(sys.argv[1]):
  torch.backends.cuda.enable_flash_sdp(flash)
  for model, precision in (*(("vit-narrow", each) for each in ("float32", "float64", "bfloat16")), ("mlp", "float32")):
    workload = Workload(model=model, image_size=32, precision=precision, dataset="synthetic-mini", steps=1)
    made = RunConfig(framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu"))
    backend = load_backend("torch", "single")(prepare_inputs(made))
    backend.setup()
    with profile() as ran:
        backend.replicated(backend.blank_images(4)).sum().backward()
    operations = {event.key for event in ran.key_averages()}
    found.append((
        f"{model} {precision}",
        flash,
        backend.describe().settings["attention"],
        any("flash_attention" in each for each in operations),
        "aten::_softmax" in operations,
    ))
print(json.dumps(found))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_timm", "in_torch"),
    [("1", [True, False]), ("0", [True])],
    ids=["fused, and switched off in torch", "switched off by timm"],
)
def test_the_kernel_of_attention_is_named(tmp_path, of_timm, in_torch):
    env = os.environ | {"DPCOMPARE_CACHE_DIR": str(tmp_path), "TIMM_FUSED_ATTN": of_timm}
    argv = [sys.executable, "-c", KERNEL, json.dumps(in_torch)]
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == 4 * len(in_torch)
    for name, flash, *seen in found:
        is_fused = flash and of_timm == "1"
        kernel = ["flash attention", True, False] if is_fused else ["products", False, True]
        assert seen == (["none", False, False] if name == "mlp float32" else kernel), name
