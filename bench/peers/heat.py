"""Heat's DataParallel (heat/nn/data_parallel.py) with torch.distributed in the place of MPI: a hook on each parameter's
gradient all-reduces the mean of the replicas', each by itself."""

from types import SimpleNamespace

import torch.distributed as dist
from models import Stage
from replicas import Replicas, own_rows
from session import memory_of


class HeatBlocking(Replicas):
    """blocking_parameter_updates: the backward stands still for each."""

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        own_rows(self)
        for parameter in self.module.parameters():
            parameter.register_hook(lambda gradient, parameter=parameter: self.summed(parameter, gradient))

    def begin_sum(self, gradient):
        """The mean, once the work is waited for."""
        mean = gradient * (1 / self.ranks)
        return mean, dist.all_reduce(memory_of(mean), group=self.group, async_op=True)

    def summed(self, parameter, gradient):
        mean, work = self.begin_sum(gradient)
        work.wait()
        return mean


class Heat(HeatBlocking):
    """Its default: the sums are waited for, and a layer is updated, just before that layer's next forward."""

    reaches_on = True

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        self.under_way = {}
        for _, layer in self.layers:
            layer.register_forward_pre_hook(lambda layer, _: self.update(layer))

    def summed(self, parameter, gradient):
        self.under_way[parameter] = self.begin_sum(gradient)

    def begin(self):
        self.optimizers = {layer: self.make_optimizer(list(layer.parameters())) for _, layer in self.layers
                           if next(layer.parameters(), None) is not None}

    def update(self, layer):
        if layer not in self.optimizers or not self.under_way:
            return
        for parameter in layer.parameters():
            mean, work = self.under_way.pop(parameter)
            work.wait()
            parameter.grad = mean
        self.optimizers[layer].step()
        self.optimizers[layer].zero_grad(set_to_none=True)

    def step(self, x, target):
        return self.forward_and_backward(x, target)

    def end(self):
        for layer in self.optimizers:
            self.update(layer)
        self.optimizers = {}
        super().end()
