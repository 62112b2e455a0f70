"""First values, inputs and targets: the same as paragauge's (backend/rank/initial.cpp), so that the losses are the same.

They are a function of the seed, the tensor's name and the row in the global batch, drawn in float64 and rounded.
"""

import math

import torch
from torch import nn

DTYPES = {"f32": torch.float32, "f64": torch.float64}
MASK = (1 << 64) - 1
PERIOD = 65521


def mix(x):
    """splitmix64's finalizer."""
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def stream(seed, name, row=0):
    """The generator's seed for a tensor; FNV-1a of its name."""
    hashed = 0xcbf29ce484222325
    for character in name.encode():
        hashed = ((hashed ^ character) * 0x100000001b3) & MASK
    return mix(hashed ^ mix(seed ^ mix(row)))


def draw(tensor, bound, seed):
    """Uniform in ±bound; the values repeat after PERIOD."""
    flat = tensor.view(-1)
    drawn = min(PERIOD, flat.numel())
    values = torch.empty(drawn, dtype=torch.float64).uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
    for piece in flat.split(PERIOD):
        piece.copy_(values[:len(piece)])


@torch.no_grad()
def initialise(layers, seed):
    """The parameters and buffers of (name, module) pairs: PyTorch's own distributions, our streams."""
    for layer, module in layers:
        for name, part in module.named_modules(prefix=layer):
            if isinstance(part, (nn.Conv2d, nn.Linear)):
                bound = 1 / math.sqrt(part.weight[0].numel())
                for kind, parameter in part.named_parameters(recurse=False):
                    draw(parameter, bound, stream(seed, f"{name}.{kind}"))
            elif isinstance(part, nn.BatchNorm2d):
                part.reset_parameters()


def inputs(subject, rows, seed, device):
    x = torch.empty(len(rows), *subject.input, dtype=DTYPES[subject.dtype], device=device)
    for place, row in enumerate(rows):
        draw(x[place], math.sqrt(3), stream(seed, "input", row))  # mean 0, variance 1
    return x


def targets(subject, rows, seed, device):
    classes = torch.tensor([stream(seed, "target", row) % subject.classes for row in rows], dtype=torch.int64,
                           device=device)
    if subject.loss == "cross_entropy":
        return classes
    return nn.functional.one_hot(classes, subject.classes).to(DTYPES[subject.dtype])


def data_seed(seed, step, replica):
    """Of the batch that a step makes for itself (timing=tutorial)."""
    return stream(stream(seed, "step", step), "replica", replica)


def make_input(subject, rows, seed, device):
    generator = torch.Generator().manual_seed(stream(seed, "input"))
    return torch.randn(rows, *subject.input, dtype=DTYPES[subject.dtype], generator=generator).to(device)


def make_target(subject, rows, seed, device):
    generator = torch.Generator().manual_seed(stream(seed, "target"))
    classes = torch.empty(rows, 1, dtype=torch.int64).random_(0, subject.classes, generator=generator)
    if subject.loss == "cross_entropy":
        return classes.view(-1).to(device)
    return torch.zeros(rows, subject.classes, dtype=DTYPES[subject.dtype]).scatter_(1, classes, 1).to(device)
