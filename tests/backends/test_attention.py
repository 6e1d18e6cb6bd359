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

found = {}
for model, precision in (*(("vit-narrow", each) for each in ("float32", "float64", "bfloat16")), ("mlp", "float32")):
    workload = Workload(model=model, image_size=32, precision=precision, dataset="synthetic-mini", steps=1)
    made = RunConfig(framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu"))
    backend = load_backend("torch", "single")(prepare_inputs(made))
    backend.setup()
    with profile() as ran:
        backend.replicated(backend.blank_images(4)).sum().backward()
    operations = {event.key for event in ran.key_averages()}
    found[f"{model} {precision}"] = (
        backend.describe().settings["attention"],
        any("flash_attention" in each for each in operations),
        "aten::_softmax" in operations,
    )
print(json.dumps(found))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "of_timm", "is_fused"),
    [
        ("", "1", True),
        ("", "0", False),
        ("import torch; torch.backends.cuda.enable_flash_sdp(False)", "1", False),
    ],
    ids=["fused", "switched off by timm", "switched off in torch"],
)
def test_the_kernel_of_attention_is_named(tmp_path, before, of_timm, is_fused):
    env = os.environ | {"DPCOMPARE_CACHE_DIR": str(tmp_path), "TIMM_FUSED_ATTN": of_timm}
    done = subprocess.run([sys.executable, "-c", before + KERNEL], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.pop("mlp float32") == ["none", False, False]
    for name, (kernel, ran_flash, ran_softmax) in found.items():
        assert (ran_flash, ran_softmax) == (is_fused, not is_fused), name
        assert kernel == ("flash attention" if is_fused else "products"), name
