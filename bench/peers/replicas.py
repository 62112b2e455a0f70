"""Replicas of the whole model, each for a part of the samples: DistributedDataParallel and nn.DataParallel."""

import copy
from types import SimpleNamespace

import torch
from collectives import Cut, Processes
from models import Stage
from process import PinnedThreads
from session import Session, memory_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def own_rows(session: Session):
    """Each replica has its part of the global batch."""
    session.replica, session.share = session.rank, 1 / session.strategy.replicas
    rows = session.model.global_batch // session.strategy.replicas
    session.x_rows = session.target_rows = range(session.rank * rows, (session.rank + 1) * rows)


def rows_and_columns(grid) -> list[tuple[int, ...]]:
    """Of ranks."""
    return [tuple(line.tolist()) for line in [*grid, *grid.T]]


class Replicas(Session):
    """A process per replica."""

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        return strategy.replicas


class Distributed(Replicas):
    """DistributedDataParallel, a process per replica, each with its part of the global batch. Gradients are all-reduced
    bucket by bucket during the backward."""

    settle = 2  # buckets are rebuilt at the second forward, in the order in which gradients came

    def replicas_group(self):
        """Among whom gradients are summed."""
        return self.group

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        own_rows(self)
        buckets = self.strategy.buckets_MiB
        self.module = DistributedDataParallel(self.module, process_group=self.replicas_group(),
                                              broadcast_buffers=self.strategy.broadcast_buffers,
                                              bucket_cap_mb_list=None if buckets == [1, 25] else buckets)


def flattened(bucket: list[torch.Tensor]):
    return torch.cat([memory_of(tensor) for tensor in bucket])


def views_in(flat, bucket: list[torch.Tensor]):
    """Tensors of these shapes, one behind the other in the memory of `flat`."""
    offset = 0
    for tensor in bucket:
        yield flat.as_strided(tensor.shape, tensor.stride(), offset)
        offset += tensor.numel()


def buckets_of(tensors, limit_bytes: float) -> list[list[torch.Tensor]]:
    """Neighbours of one type, until they are more than this."""
    buckets, filled = [], 0
    for tensor in tensors:
        if not buckets or buckets[-1][0].dtype != tensor.dtype or filled + tensor.nbytes > limit_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.nbytes
    return buckets


class Buckets:
    """A module's parameters and buffers as they travel, many in one tensor, and its gradients on their way back
    (torch.nn.parallel.comm: broadcast_coalesced and reduce_add_coalesced)."""

    def __init__(self, module: nn.Module, limit_MiB: float):
        self.parameters = buckets_of(module.parameters(), limit_MiB * 2**20)
        self.buffers = buckets_of((b for d in (True, False) for b in module.buffers() if b.is_floating_point() == d),
                                  limit_MiB * 2**20)
        self.shapes = [[torch.empty_like(tensor, device="meta") for tensor in bucket] for bucket in self.all()]

    def all(self) -> list[list[torch.Tensor]]:
        return self.parameters + self.buffers

    def flat(self) -> list[torch.Tensor]:
        return [flattened(bucket) for bucket in self.all()]

    def empty(self) -> list[torch.Tensor]:
        return [torch.empty(sum(tensor.numel() for tensor in bucket), dtype=bucket[0].dtype) for bucket in self.shapes]

    def become(self, flat: list[torch.Tensor]):
        """The parameters and buffers lie in these from now on."""
        for bucket, shapes, memory in zip(self.all(), self.shapes, flat):
            for tensor, view in zip(bucket, views_in(memory, shapes)):
                tensor.data = view

    def flat_gradients(self) -> list[torch.Tensor]:
        return [flattened([parameter.grad for parameter in bucket]) for bucket in self.parameters]

    def forget(self):
        """What a replica has for one step only."""
        for tensor in sum(self.all(), []):
            tensor.grad, tensor.data = None, torch.empty(0, dtype=tensor.dtype)


class DataParallel(Session):
    """nn.DataParallel: one process, a thread for each replica. Written out, because PyTorch's own takes no CPU: here a
    device is a core, and what goes to another one is copied there. The threads stay, as PyTorch's own for each device's
    backward do."""

    @classmethod
    def places(cls, strategy: SimpleNamespace) -> int:
        return strategy.replicas

    def build(self, stages: list[Stage], devices: list):
        others = [copy.deepcopy(stages[0].module).to_empty(device=devices[0]) for _ in self.cores[1:]]
        super().build(stages, devices)
        self.modules = [self.module, *others]
        self.buckets = [Buckets(module, self.strategy.bucket_MiB) for module in self.modules]
        for buckets in self.buckets[1:]:
            buckets.forget()
        self.threads = PinnedThreads(self.cores)

    def forward(self, replica: int, x, parameters):
        if replica > 0:
            x = x.clone()
            self.buckets[replica].become([flat.clone() for flat in parameters])
        return self.modules[replica](x)

    def backward(self, replica: int, output, gradient):
        """The gradients of the parameters; the root's stay where they are."""
        if replica == 0:
            output.backward(gradient)
            return None
        output.backward(gradient.clone())
        flat = self.buckets[replica].flat_gradients()
        self.buckets[replica].forget()
        return flat

    def forward_and_backward(self, x, target):
        replicas = range(len(self.modules))
        parameters = self.buckets[0].flat()
        outputs = self.threads.on_each(lambda replica, x: self.forward(replica, x, parameters), replicas,
                                       x.chunk(len(replicas)))
        output = torch.cat([part.detach() for part in outputs]).requires_grad_()
        loss = self.loss(output, target)
        loss.backward()
        parts = output.grad.split([len(part) for part in outputs])
        _, *gradients = self.threads.on_each(self.backward, replicas, outputs, parts)
        for flat in gradients:
            for bucket, memory in zip(self.buckets[0].parameters, flat):
                for parameter, view in zip(bucket, views_in(memory, bucket)):
                    parameter.grad += view
        return loss.detach(), output.detach()


class DataParallelProcesses(Replicas):
    """The same with a process for each replica, and torch.distributed between them."""

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        self.replica_module, self.buckets = self.module, Buckets(self.module, self.strategy.bucket_MiB)
        self.others = Processes(self.rank, self.ranks, self.group)
        self.cut = Cut(0, [len(part) for part in torch.arange(self.model.global_batch).chunk(self.ranks)])
        if self.rank > 0:  # nothing lives here between steps
            self.buckets.forget()
            self.module, self.layers, self.x_rows, self.target_rows = nn.Module(), [], range(0), range(0)

    def whole_shape(self, x) -> list[int]:
        return [self.model.global_batch, *x.shape[1:]]

    def scattered(self, x):
        """My rows of what the root has."""
        wire = self.wire(x)
        return self.unwire(self.others.scatter(wire, self.whole_shape(wire), self.cut))

    def forward_and_backward(self, x, target):
        flat = self.buckets.flat() if self.rank == 0 else self.buckets.empty()
        for bucket in flat:
            self.others.broadcast(bucket)
        if self.rank > 0:
            self.buckets.become(flat)
        part = self.replica_module(self.scattered(x))
        output = self.others.gather(part.detach(), self.whole_shape(part), self.cut)
        loss, gradient = None, part.detach()  # of which the others have nothing but the type
        if self.rank == 0:
            loss = self.loss(output.requires_grad_(), target)
            loss.backward()
            loss, gradient, output = loss.detach(), output.grad, output.detach()
        part.backward(self.scattered(gradient))
        flat = self.buckets.flat_gradients()
        for bucket in flat:
            self.others.reduce(bucket)
        if self.rank > 0:
            self.buckets.forget()
            return None, None
        for bucket, memory in zip(self.buckets.parameters, flat):
            for parameter, view in zip(bucket, views_in(memory, bucket)):
                parameter.grad = view
        return loss, output
