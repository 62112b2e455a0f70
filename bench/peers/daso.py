"""DASO (heat/optim/dp_optimizer.py) with torch.distributed in the place of MPI: DistributedDataParallel in each node, and in
turn one rank of each averages its parameters with the other nodes'. Its names are the reference's."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from models import DTYPES, Stage
from replicas import Distributed, rows_and_columns
from session import memory_of


class Daso(Distributed):
    """An epoch that doesn't end."""

    reaches_on = True

    @classmethod
    def grid(cls, strategy: SimpleNamespace):
        """The ranks: a row is a node."""
        return torch.arange(strategy.replicas).view(-1, strategy.daso.local)

    @classmethod
    def lines(cls, strategy: SimpleNamespace) -> list[tuple[int, ...]]:
        return super().lines(strategy) + rows_and_columns(cls.grid(strategy))

    def replicas_group(self):
        return self.node_group

    def build(self, stages: list[Stage], devices: list):
        self.rule, grid = self.strategy.daso, self.grid(self.strategy)
        node, self.local = (grid == self.rank).nonzero()[0].tolist()
        self.node, self.nodes = grid[node].tolist(), len(grid)
        self.node_group = self.groups[tuple(self.node)]
        self.nodes_group = self.groups[tuple(grid[:, self.local].tolist())]
        super().build(stages, devices)
        self.period = max(1, self.rule.skips) * self.rule.local

    def begin(self):
        super().begin()
        self.current_batch, self.send_mod, self.send_mod_m1, self.prev_params = 0, 0, None, []
        self.sync_gradients(True)

    def end(self):
        for works, _, _ in self.prev_params:
            for work in works:
                work.wait()
        self.prev_params = []
        super().end()

    def step(self, x, target):
        result = super().step(x, target)
        with torch.no_grad():
            self.after_update()
        return result

    def sync_gradients(self, on: bool):
        self.module.require_backward_grad_sync = on

    def after_update(self):
        skips, local_skips, wait = self.rule.skips, self.rule.local_skips, self.rule.wait
        batch, next_batch = self.current_batch, self.current_batch + 1
        in_cycle = batch % skips if skips else 0
        self.current_batch = next_batch
        if in_cycle == 0:
            self.global_sync(wait)
        elif next_batch % skips == 0:
            self.sync_gradients(True)
        elif in_cycle >= wait:
            if in_cycle == wait:
                self.receive()
                self.local_update(self.send_mod_m1)
                self.sync_gradients(local_skips == 1)
            if local_skips == 1:
                self.sync_gradients(True)
            elif batch % local_skips == 0:
                self.sync_gradients(False)
            elif next_batch % local_skips == 0:
                self.sync_gradients(True)

    def global_sync(self, wait: int):
        if self.local == self.send_mod:
            self.send(wait)
        if wait:
            self.receive()
            self.local_update(self.send_mod_m1)
            self.send_mod_m1 = self.send_mod
        else:
            if self.local == self.send_mod:
                works, chunks, _ = self.prev_params.pop(0)
                self.take(works, chunks, self.nodes, lambda memory, mean: memory.copy_(mean))
            self.local_update(self.send_mod)
        self.send_mod = (self.send_mod + 1) % self.rule.local

    def memories(self):
        return [memory_of(parameter) for parameter in self.module.parameters()]

    def send(self, wait: int):
        memories = self.memories()
        dtype = DTYPES[self.rule.downcast] if self.rule.skips == 0 else memories[0].dtype
        flat, begin = torch.zeros(sum(map(len, memories)), dtype=dtype), 0
        for memory in memories:
            flat[begin:begin + len(memory)] = memory.to(dtype)
            begin += len(memory)
        if flat.isnan().sum():
            raise ValueError("NaNs in the parameters")
        first = (len(flat) - 1) % self.rule.chunk + 1
        chunks = [flat[:first], *flat[first:].split(self.rule.chunk)] if first < len(flat) else [flat]
        works = [dist.all_reduce(chunk, group=self.nodes_group, async_op=True) for chunk in chunks]
        self.prev_params.append((works, chunks, wait))

    def receive(self):
        if self.send_mod_m1 != self.local or not self.prev_params:
            return
        works, chunks, wait = self.prev_params.pop(0)
        own = 2 * wait if wait > 0 else 1
        share = own / (self.nodes + own)
        self.take(works, chunks, self.nodes + own, lambda memory, update: memory.mul_(share).add_(update))

    def take(self, works, chunks, parts: int, into):
        """`into`: what becomes of a parameter and what was received of it, divided into so many parts."""
        received, chunks = torch.empty(0, dtype=chunks[0].dtype), zip(works, chunks)
        begin = 0
        for memory in self.memories():
            while begin + len(memory) > len(received):
                work, chunk = next(chunks)
                work.wait()
                received = torch.cat((received, chunk / parts)) if len(received) else chunk / parts
            into(memory, received[begin:begin + len(memory)].to(memory.dtype))
            begin += len(memory)

    def local_update(self, sending):
        if sending is None:
            return
        works = [dist.broadcast(memory, self.node[sending], group=self.node_group, async_op=True)
                 for memory in self.memories()]
        for work in works:
            work.wait()
