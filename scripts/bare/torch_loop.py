"""torch, by hand: one device, DataParallel's algorithm on threads, DistributedDataParallel, and two wrappers of it.

python -m scripts.bare.torch_loop --mode single --variant "channels_last"
python -m torch.distributed.run --nproc-per-node 2 -m scripts.bare.torch_loop --mode ddp --threads 1
"""

from __future__ import annotations

import os
from typing import Any

import timm
import torch
from torch import nn
from torch.nn import functional

from dpcompare.backends.torch.dp import ThreadedDataParallel
from dpcompare.backends.torch.model import ToyCnn
from scripts.bare.measure import NUM_CLASSES, arguments, batches, measured, tell

VARIANTS = ["plain", "channels_last", "fabric", "accelerate"]


def main() -> None:
    chosen = arguments(["single", "dp", "ddp"], VARIANTS)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    layout = torch.channels_last if chosen.variant == "channels_last" else torch.contiguous_format
    model: Any = build(chosen.model, chosen.image_size).to(memory_format=layout)
    optimizer: Any = torch.optim.Adam(model.parameters())
    world = int(os.environ.get("WORLD_SIZE", "1"))
    backward = torch.Tensor.backward
    if chosen.variant == "fabric":
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp")
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        backward = fabric.backward
    elif chosen.variant == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, optimizer)
        backward = accelerator.backward
    elif chosen.mode == "ddp":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    elif chosen.mode == "dp":
        model = ThreadedDataParallel(model, 2, chosen.threads)
    data = [
        (torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=layout), torch.from_numpy(labels).long())
        for images, labels in batches(chosen.global_batch_size // world, chosen.image_size)
    ]

    def step(number: int) -> None:
        images, labels = data[number % len(data)]
        optimizer.zero_grad()
        backward(functional.cross_entropy(model(images), labels))
        optimizer.step()

    speed = measured(step, chosen)
    if int(os.environ.get("RANK", "0")) == 0:
        tell(speed)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def build(name: str, image_size: int) -> nn.Module:
    if name == "toy-cnn":
        return ToyCnn(image_size, NUM_CLASSES)
    return timm.create_model(f"tf_{name.replace('-', '_')}", num_classes=NUM_CLASSES)


if __name__ == "__main__":
    main()
