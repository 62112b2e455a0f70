"""What ranks tell each other. The first of them is the root. Blocks are contiguous tensors, one for each rank in their
order; `even` says whether all have the same size.

    ranks = Processes(0, 2, group)
    ranks.all_reduce(tensor)                     # in place
    ranks.scatter(tensor.chunk(2), mine, True)   # into `mine`; others have None in the place of the blocks
"""

import threading
from contextlib import contextmanager

import torch
import torch.distributed as dist


class Processes:
    """torch.distributed's. What it has for parts of one size only, gloo does for others from message to message."""

    def __init__(self, rank: int, size: int, group):
        self.rank, self.size, self.group = rank, size, group

    def broadcast(self, tensor):
        dist.broadcast(tensor, 0, self.group)

    def reduce(self, tensor):
        """The others' tensors hold nothing of use afterwards."""
        dist.reduce(tensor, 0, group=self.group)

    def all_reduce(self, tensor):
        dist.all_reduce(tensor, group=self.group)

    def scatter(self, blocks, mine, even: bool):
        if even:
            dist.scatter(mine, blocks, 0, self.group)
        elif self.rank > 0:
            dist.recv(mine, 0, self.group)
        else:
            works = [dist.isend(block, rank, self.group) for rank, block in enumerate(blocks) if rank > 0]
            mine.copy_(blocks[0])
            for work in works:
                work.wait()

    def gather(self, mine, blocks, even: bool):
        if even:
            dist.gather(mine, blocks, 0, self.group)
        elif self.rank > 0:
            dist.send(mine, 0, self.group)
        else:
            works = [dist.irecv(block, rank, self.group) for rank, block in enumerate(blocks) if rank > 0]
            blocks[0].copy_(mine)
            for work in works:
                work.wait()

    def all_gather(self, mine, blocks, even: bool):
        if even:
            dist.all_gather(blocks, mine, self.group)
            return
        blocks[self.rank].copy_(mine)
        for rank, block in enumerate(blocks):
            dist.broadcast(block, rank, self.group)

    def all_to_all(self, sent, received):
        given = torch.cat([block.view(-1) for block in sent])
        taken = given.new_empty(sum(block.numel() for block in received))
        dist.all_to_all_single(taken, given, [block.numel() for block in received], [block.numel() for block in sent],
                               self.group)
        for block, part in zip(received, taken.split([block.numel() for block in received])):
            block.view(-1).copy_(part)

    def reduce_scatter(self, blocks, mine, even: bool):
        if even:
            dist.reduce_scatter(mine, blocks, group=self.group)
            return
        whole = torch.cat([block.view(-1) for block in blocks])
        dist.all_reduce(whole, group=self.group)
        mine.view(-1).copy_(whole.split([block.numel() for block in blocks])[self.rank])


class Meeting:
    """Where the threads of one process show each other what they have."""

    def __init__(self, size: int):
        self.shown, self.barrier = [None] * size, threading.Barrier(size)


class Threads:
    """The same for threads of one process: each takes what it gets from the others' tensors."""

    def __init__(self, rank: int, meeting: Meeting):
        self.rank, self.size, self.meeting = rank, len(meeting.shown), meeting

    @contextmanager
    def shown(self, mine):
        """What each shows; all stay until nobody reads any more."""
        self.meeting.shown[self.rank] = mine
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

    def scatter(self, blocks, mine, even: bool):
        with self.shown(blocks) as every:
            mine.copy_(every[0][self.rank])

    def gather(self, mine, blocks, even: bool):
        with self.shown(mine) as every:
            for block, other in zip(blocks or [], every):
                block.copy_(other)

    def all_gather(self, mine, blocks, even: bool):
        self.gather(mine, blocks, even)

    def all_to_all(self, sent, received):
        with self.shown(sent) as every:
            for block, blocks in zip(received, every):
                block.copy_(blocks[self.rank])

    def reduce_scatter(self, blocks, mine, even: bool):
        with self.shown(blocks) as every:
            mine.copy_(sum((blocks[self.rank] for blocks in every[1:]), every[0][self.rank]))
