"""The torch loops by hand: one device, DataParallel's algorithm on threads, DistributedDataParallel and two wrappers.

python -m benchmarks.bare.torch_loop --mode single --variant "channels_last"
python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.bare.torch_loop --mode ddp --threads 1
"""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

from benchmarks.bare.measure import NUM_CLASSES, arguments, batches, measured, report
from dpcompare.backends.torch.dp import ThreadedDataParallel
from dpcompare.backends.torch.precision import Computation
from dpcompare.models.toys.in_torch import ToyCnn

VARIANTS = ["plain", "channels_last", "bfloat16", "compiled", "fabric", "accelerate"]
"""bfloat16 is channels_last too, and compiled is both: as in timm's benchmark of training."""


def main() -> None:
    chosen = arguments(["single", "dp", "ddp"], VARIANTS)
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    compute_as(chosen.profile)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    bfloat16 = chosen.variant in ("bfloat16", "compiled")
    layout = torch.channels_last if bfloat16 or chosen.variant == "channels_last" else torch.contiguous_format
    model: Any = build(chosen.model, chosen.image_size).to(device, memory_format=layout)
    if chosen.variant == "compiled":
        model = torch.compile(model)
    optimizer: Any = torch.optim.Adam(model.parameters())
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model, optimizer, backward = distributed(chosen, model, optimizer, device, world)
    data = [
        (
            torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=layout).to(device),
            torch.from_numpy(labels).long().to(device),
        )
        for images, labels in batches(chosen.global_batch_size // world, chosen.image_size)
    ]

    def step(number: int) -> None:
        images, labels = data[number % len(data)]
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        backward(loss)
        optimizer.step()

    speed = measured(step, chosen, torch.cuda.synchronize if on_gpu else lambda: None)
    if int(os.environ.get("RANK", "0")) == 0:
        report(speed)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def compute_as(profile: str) -> None:
    """Switch on a GPU's arithmetic as that profile of dpcompare has it; torch's defaults are neither's."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = profile == "native"


def distributed(
    chosen: Namespace, model: Any, optimizer: Any, device: torch.device, world: int
) -> tuple[Any, Any, Any]:
    """The model, the optimizer and the function that goes backward, as the mode or the wrapper has them."""
    on_gpu = device.type == "cuda"
    if chosen.variant == "fabric":
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator=device.type, devices=world, strategy="ddp")
        fabric.launch()
        return *fabric.setup(model, optimizer), fabric.backward
    if chosen.variant == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=not on_gpu)
        return *accelerator.prepare(model, optimizer), accelerator.backward
    if chosen.mode == "ddp":
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
    elif chosen.mode == "dp":
        model = Computation(model, device.type, enabled=False)
        model = nn.DataParallel(model) if on_gpu else ThreadedDataParallel(model, 2, chosen.threads)
    return model, optimizer, torch.Tensor.backward


VIT_OF_TIMM = {"vit-ti16": "tiny", "vit-s16": "small", "vit-b16": "base"}


def build(name: str, image_size: int) -> nn.Module:
    """The model as its usual library has it."""
    if name == "toy-cnn":
        return ToyCnn(image_size, NUM_CLASSES)
    if name.startswith("resnet"):
        return torchvision.models.get_model(name, num_classes=NUM_CLASSES)
    if name == "vgg16":
        model = torchvision.models.get_model(name, num_classes=NUM_CLASSES, dropout=0.0)
        # torchvision pools any image to 7 x 7 features; dpcompare's first dense layer takes those that are there.
        model.avgpool = nn.Identity()
        model.classifier[0] = nn.Linear(512 * (image_size // 32) ** 2, 4096)
        return model
    if name in VIT_OF_TIMM:
        size = VIT_OF_TIMM[name]
        return timm.create_model(f"vit_{size}_patch16_224", img_size=image_size, num_classes=NUM_CLASSES)
    return timm.create_model(f"tf_{name.replace('-', '_')}", num_classes=NUM_CLASSES)


if __name__ == "__main__":
    main()
