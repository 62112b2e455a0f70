"""First values, inputs and targets: the same as paragauge's (backend/rank/initial.cpp), so that the losses are the same.

They are a function of the seed, the tensor's name and the row in the global batch, drawn in float64 and rounded.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
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


def draw_classes(tensor: torch.Tensor, classes: int, seed: int):
    """Whole numbers from 0 to classes − 1; one by itself is the seed's."""
    if tensor.dim() == 0:
        tensor.fill_(seed % classes)
        return
    tensor.copy_(torch.empty(tensor.shape, dtype=torch.float64).uniform_(
        0, classes, generator=torch.Generator().manual_seed(seed)).floor_())


def names_of(node: SimpleNamespace) -> list[str]:
    """Of the parameters that a request's node reads."""
    return list(vars(node.reads)) if hasattr(node, "reads") else [f"{node.name}.{kind}" for kind in vars(node.parameters)]


def firsts_of(node: SimpleNamespace) -> dict[str, tuple]:
    """By the names of a module's parameters: the name that each is drawn by, center and bound. Without those that are another
    module's, too."""
    if hasattr(node, "firsts"):
        return node.firsts
    return {kind: (f"{node.name}.{kind}", *first) for kind, first in vars(node.parameters).items()}


def initialise_buffers(node: SimpleNamespace, module: nn.Module):
    for kind, values in getattr(node, "buffers", {}).items():
        getattr(module, kind).copy_(values)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.reset_running_stats()


@torch.no_grad()
def initialise(layers: list[tuple[SimpleNamespace, nn.Module]], seed: int, pieces: dict | None = None):
    """The parameters and buffers of these nodes' modules. `pieces`: of parameters that are parts of larger ones, by name,
    the shape of the whole and which part; a DTensor knows it itself."""
    for node, module in layers:
        firsts = firsts_of(node)
        for kind, parameter in module.named_parameters(recurse=False):
            if kind not in firsts:
                continue
            name, center, bound = firsts[kind]
            shape, part = (pieces or {}).get(name, (parameter.shape, ...))
            is_whole = parameter.shape == shape and not isinstance(parameter, DTensor)
            whole = parameter if is_whole else torch.empty(shape, dtype=parameter.dtype)
            draw(whole, center, bound, stream(seed, name))
            if isinstance(parameter, DTensor):
                own = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.to_local().copy_(own.to_local())
            elif whole is not parameter:
                parameter.copy_(whole[part])
        initialise_buffers(node, module)


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
