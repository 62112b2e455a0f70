"""Replicas that keep a part each of what all have: ZeRO 1 (ZeroRedundancyOptimizer) and 3 (fully_shard, FSDP2)."""

from types import SimpleNamespace

import initial
import torch
import torch.distributed as dist
from models import Stage
from replicas import Distributed, Replicas, own_rows, rows_and_columns
from session import optimizer_kind
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer


class ZeroRedundancy(Distributed):
    """DistributedDataParallel, whose ranks have the optimizer's states of some parameters each, update these, and
    broadcast them."""

    def make_optimizer(self, parameters):
        kind = optimizer_kind(self.model, self.faster)
        return ZeroRedundancyOptimizer(parameters, kind.func, process_group=self.group, **kind.keywords)


class FullyShard(Replicas):
    """FSDP2: of each parameter a rank has some rows. A unit's are gathered before its first node's forward, and again
    before its backward; their gradients are reduce-scattered. With several groups of `shard` ranks (HSDP) they are also
    all-reduced between these."""

    takes_channels_last = False  # only contiguous parameters
    faster_updates = "foreach"  # SGD's fused ones aren't there for DTensors

    @classmethod
    def grid(cls, strategy: SimpleNamespace):
        """The ranks: a row has everything once."""
        return torch.arange(strategy.replicas).view(-1, strategy.shard)

    @classmethod
    def lines(cls, strategy: SimpleNamespace) -> list[tuple[int, ...]]:
        grid = cls.grid(strategy)
        return super().lines(strategy) + (rows_and_columns(grid) if len(grid) > 1 else [])

    def make_mesh(self) -> DeviceMesh:
        grid = self.grid(self.strategy)
        if len(grid) == 1:
            return DeviceMesh.from_group(self.group or dist.group.WORLD, "cpu")
        row, column = (grid == self.rank).nonzero()[0].tolist()
        groups = [self.groups[tuple(line.tolist())] for line in (grid[:, column], grid[row])]
        return DeviceMesh.from_group(groups, "cpu", mesh=grid, mesh_dim_names=("replicate", "shard"))

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        own_rows(self)
        mesh, units = self.make_mesh(), {}
        unit_of = {}
        for node, unit in zip(self.model.nodes, self.strategy.units):
            for name in initial.names_of(node):
                unit_of.setdefault(name, unit)
        units_of = {getattr(layer, kind): unit_of[name] for node, layer in self.layers
                    for kind, (name, _, _) in initial.firsts_of(node).items() if name in unit_of}
        for _, layer in self.layers:  # of a parameter that several have, each: they are gathered together
            of_layer = [units_of[parameter] for parameter in layer.parameters(recurse=False) if parameter in units_of]
            if of_layer:
                units.setdefault(of_layer[0], []).append(layer)
        half = getattr(self.strategy, "half_parameters", None)
        policy = MixedPrecisionPolicy(initial.DTYPES[half], initial.DTYPES[self.strategy.sums]) if half else MixedPrecisionPolicy()
        for unit in units.values():
            fully_shard(unit, mesh=mesh, reshard_after_forward=self.strategy.reshard, mp_policy=policy)
        fully_shard(self.module, mesh=mesh, mp_policy=policy)
