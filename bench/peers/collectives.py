"""What ranks tell each other. The first of them is the root.

    ranks = Processes(0, 2, group)
    ranks.all_reduce(tensor)                          # in place
    mine = ranks.scatter(x, [8, 3], Cut(0, [4, 4]))   # x: the whole tensor at the root, elsewhere any of its type
"""

import threading
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist


class Cut(NamedTuple):
    """How a dimension is cut into a part for each rank."""
    dim: int
    sizes: list[int]

    def even(self) -> bool:
        return min(self.sizes) == max(self.sizes)

    def views(self, x) -> tuple[torch.Tensor, ...]:
        return x.split(self.sizes, self.dim)

    def blocks(self, x) -> list[torch.Tensor]:
        """The parts, each contiguous."""
        return [part.contiguous() for part in self.views(x)]

    def flat(self, x):
        """The blocks one behind the other: a copy where they don't lie so."""
        return x.reshape(-1) if self.dim == 0 else torch.cat([part.reshape(-1) for part in self.views(x)])

    def shapes(self, shape: list[int]) -> list[list[int]]:
        """Of the parts of a tensor of this shape."""
        return [[*shape[:self.dim], size, *shape[self.dim + 1:]] for size in self.sizes]

    def join(self, parts):
        return torch.cat(tuple(parts), self.dim)


class Processes:
    """torch.distributed's. What it has for parts of one size only, gloo does for others by single messages."""

    def __init__(self, rank: int, size: int, group):
        self.rank, self.size, self.group = rank, size, group

    def broadcast(self, tensor):
        dist.broadcast(tensor, group=self.group, group_src=0)

    def reduce(self, tensor):
        """The others' tensors hold nothing of use afterwards."""
        dist.reduce(tensor, group=self.group, group_dst=0)

    def all_reduce(self, tensor):
        dist.all_reduce(tensor, group=self.group)

    def scatter(self, x, shape: list[int], cut: Cut):
        mine = x.new_empty(cut.shapes(shape)[self.rank])
        blocks = cut.blocks(x) if self.rank == 0 else None
        if cut.even():
            dist.scatter(mine, blocks, group=self.group, group_src=0)
        elif self.rank > 0:
            dist.recv(mine, group=self.group, group_src=0)
        else:
            works = [dist.isend(block, group=self.group, group_dst=rank) for rank, block in enumerate(blocks) if rank]
            for work in works:
                work.wait()
            return blocks[0]
        return mine

    def gather(self, x, shape: list[int], cut: Cut):
        """At the root; None elsewhere."""
        mine = x.contiguous()
        blocks = [x.new_empty(part) for part in cut.shapes(shape)] if self.rank == 0 else None
        if cut.even():
            dist.gather(mine, blocks, group=self.group, group_dst=0)
        elif self.rank > 0:
            dist.send(mine, group=self.group, group_dst=0)
        else:
            works = [dist.irecv(block, group=self.group, group_src=rank) for rank, block in enumerate(blocks) if rank]
            blocks[0] = mine
            for work in works:
                work.wait()
        return cut.join(blocks) if self.rank == 0 else None

    def all_gather(self, x, shape: list[int], cut: Cut):
        if cut.even() and cut.dim == 0:
            whole = x.new_empty(shape)
            dist.all_gather_into_tensor(whole, x.contiguous(), self.group)
            return whole
        blocks = [x.new_empty(part) for part in cut.shapes(shape)]
        if cut.even():
            dist.all_gather(blocks, x.contiguous(), self.group)
        else:
            blocks[self.rank] = x.contiguous()
            for rank, block in enumerate(blocks):
                dist.broadcast(block, group=self.group, group_src=rank)
        return cut.join(blocks)

    def all_to_all(self, x, shape: list[int], had: Cut, cut: Cut):
        """From parts by one cut to parts by another."""
        received = had.shapes(cut.shapes(shape)[self.rank])
        taken = [torch.Size(part).numel() for part in received]
        given = [part.numel() for part in cut.views(x)]
        flat = x.new_empty(sum(taken))
        dist.all_to_all_single(flat, cut.flat(x), taken, given, self.group)
        if had.dim == 0:
            return flat.view(cut.shapes(shape)[self.rank])
        return had.join(block.view(part) for block, part in zip(flat.split(taken), received))

    def reduce_scatter(self, x, shape: list[int], cut: Cut):
        if cut.even():
            mine = x.new_empty(cut.shapes(shape)[self.rank])
            dist.reduce_scatter_tensor(mine.view(-1), cut.flat(x), group=self.group)
            return mine
        whole = x.contiguous()
        dist.all_reduce(whole, group=self.group)
        return cut.blocks(whole)[self.rank]


class Meeting:
    """Where the threads of one process show each other what they have."""

    def __init__(self, size: int):
        self.shown, self.barrier = [None] * size, threading.Barrier(size)


class Threads:
    """The same for threads of one process: each takes what it gets from the others' tensors."""

    def __init__(self, rank: int, meeting: Meeting):
        self.rank, self.size, self.meeting = rank, len(meeting.shown), meeting

    @contextmanager
    def shown(self, x):
        """What each shows; all stay until nobody reads any more."""
        self.meeting.shown[self.rank] = x
        self.meeting.barrier.wait()
        yield self.meeting.shown
        self.meeting.barrier.wait()

    def broadcast(self, tensor):
        with self.shown(tensor) as every:
            if self.rank > 0:
                tensor.copy_(every[0])

    def reduce(self, tensor):
        with self.shown(tensor) as every:
            if self.rank == 0:
                for other in every[1:]:
                    tensor += other

    def all_reduce(self, tensor):
        with self.shown(tensor) as every:
            total = sum(every[1:], every[0])
        tensor.copy_(total)

    def scatter(self, x, shape: list[int], cut: Cut):
        with self.shown(x) as every:
            return cut.views(every[0])[self.rank].clone(memory_format=torch.contiguous_format)

    def gather(self, x, shape: list[int], cut: Cut):
        with self.shown(x) as every:
            return cut.join(every) if self.rank == 0 else None

    def all_gather(self, x, shape: list[int], cut: Cut):
        with self.shown(x) as every:
            return cut.join(every)

    def all_to_all(self, x, shape: list[int], had: Cut, cut: Cut):
        with self.shown(x) as every:
            return had.join(cut.views(other)[self.rank] for other in every)

    def reduce_scatter(self, x, shape: list[int], cut: Cut):
        with self.shown(x) as every:
            mine, *others = (cut.views(other)[self.rank] for other in every)
            return sum(others, mine).contiguous()
