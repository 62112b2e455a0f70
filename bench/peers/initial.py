"""First values, inputs and targets: the same as paragauge's (backend/rank/initial.cpp), so that the losses are the same.

They are a function of the seed, the tensor's name and the row in the global batch, drawn in float64 and rounded.
"""

import math
from types import SimpleNamespace

import torch
from models import DTYPES
from torch import nn

MASK = (1 << 64) - 1
PERIOD = 65521


def mix(x: int) -> int:
    """splitmix64's finalizer."""
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def stream(seed: int, name: str, row: int = 0) -> int:
    """The generator's seed for a tensor; FNV-1a of its name."""
    hashed = 0xcbf29ce484222325
    for character in name.encode():
        hashed = ((hashed ^ character) * 0x100000001b3) & MASK
    return mix(hashed ^ mix(seed ^ mix(row)))


def draw(tensor: torch.Tensor, center: float, bound: float, seed: int):
    """Uniform in center ± bound; the values repeat after PERIOD."""
    if not tensor.is_contiguous():  # channels_last: the values don't depend on the layout
        plain = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        draw(plain, center, bound, seed)
        tensor.copy_(plain)
        return
    flat = tensor.view(-1)
    drawn = min(PERIOD, flat.numel())
    values = torch.empty(drawn, dtype=torch.float64).uniform_(center - bound, center + bound,
                                                              generator=torch.Generator().manual_seed(seed))
    for piece in flat.split(PERIOD):
        piece.copy_(values[:len(piece)])


@torch.no_grad()
def initialise(layers: list[tuple[SimpleNamespace, nn.Module]], seed: int, pieces: dict | None = None):
    """The parameters and buffers of these nodes' modules. `pieces`: of parameters that are parts of larger ones, by name,
    the shape of the whole and which part."""
    for node, module in layers:
        for kind, parameter in module.named_parameters():
            center, bound = getattr(node.parameters, kind)
            name = f"{node.name}.{kind}"
            shape, part = (pieces or {}).get(name, (parameter.shape, ...))
            whole = parameter if parameter.shape == shape else torch.empty(shape, dtype=parameter.dtype)
            draw(whole, center, bound, stream(seed, name))
            if whole is not parameter:
                parameter.copy_(whole[part])
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()


def inputs(model: SimpleNamespace, rows: range, seed: int, device: torch.device) -> torch.Tensor:
    x = torch.empty(len(rows), *model.input, dtype=DTYPES[model.dtype], device=device)
    for place, row in enumerate(rows):
        draw(x[place], 0, math.sqrt(3), stream(seed, "input", row))  # variance 1
    return x


def targets(model: SimpleNamespace, rows: range, seed: int, device: torch.device) -> torch.Tensor:
    classes = torch.tensor([stream(seed, "target", row) % model.classes for row in rows], dtype=torch.int64,
                           device=device)
    if model.loss == "cross_entropy":
        return classes
    return nn.functional.one_hot(classes, model.classes).to(DTYPES[model.dtype])


def data_seed(seed: int, step: int, replica: int) -> int:
    """Of the batch that a step makes for itself (timing=tutorial)."""
    return stream(stream(seed, "step", step), "replica", replica)


def make_input(model: SimpleNamespace, rows: int, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(stream(seed, "input"))
    return torch.randn(rows, *model.input, dtype=DTYPES[model.dtype], generator=generator).to(device)


def make_target(model: SimpleNamespace, rows: int, seed: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(stream(seed, "target"))
    classes = torch.empty(rows, 1, dtype=torch.int64).random_(0, model.classes, generator=generator)
    if model.loss == "cross_entropy":
        return classes.view(-1).to(device)
    return torch.zeros(rows, model.classes, dtype=DTYPES[model.dtype]).scatter_(1, classes, 1).to(device)
