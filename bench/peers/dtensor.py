"""Layers of an imported model cut among ranks by PyTorch's own means: parallelize_module and DTensors."""

from types import SimpleNamespace

import initial
import torch.distributed as dist
import torch.nn.functional as F
from models import Stage
from session import Session, Skipped
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module


class TensorParallel(Session):
    """The strategy says along which dimension each parameter is cut: of a linear layer's weight the outputs (column) or the
    inputs (row), of an embedding's the vocabulary; and whether the loss takes the predictions in parts."""

    takes_channels_last = False
    faster_updates = ""  # there are none for DTensors beside tensors

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        return strategy.degree

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        cuts = vars(self.strategy.cuts)
        last = self.layers[-1][1]
        plan = {}
        for node, layer in self.layers:
            names = [name for name, _, _ in initial.firsts_of(node).values() if name in cuts]
            if names:
                plan[node.name] = self.style_of(layer, cuts[names[0]], layer is last)
        mesh = DeviceMesh.from_group(self.group or dist.group.WORLD, "cpu")
        parallelize_module(self.module.module, mesh, plan)

    def style_of(self, layer: nn.Module, dim: int, is_last: bool):
        if isinstance(layer, nn.Embedding) and dim == 0:
            return RowwiseParallel(input_layouts=Replicate())
        if isinstance(layer, nn.Linear):
            if dim == 1:
                return RowwiseParallel()
            in_parts = is_last and self.strategy.cut_predictions
            return ColwiseParallel(output_layouts=Shard(-1), use_local_output=not in_parts)
        raise Skipped(f"DTensor has no style for {type(layer).__name__}")

    def forward_and_backward(self, x, target):
        if not self.strategy.cut_predictions:
            return super().forward_and_backward(x, target)
        with loss_parallel():
            output = self.module(x)
            loss = F.cross_entropy(output.flatten(0, -2), target.flatten())
            loss.backward()
        return loss.detach().to_local(), output
