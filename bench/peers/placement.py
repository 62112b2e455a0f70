"""Where a tensor lies on some ranks (sim/mesh/placement.hpp), and how it gets elsewhere, for autograd too.

    S1 = placement("S1")                            # a part of dimension 1 each; also R, P, @0, @last, S1/64
    mover = Mover(ranks, rooted=False)
    y = mover.moved(x, shape, (P, R), (R, R))       # x is a summand of y; so is the gradient of y, everywhere all of it
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Placement:
    kind: str  # R: all have all of it; S: each a part of `dim`, in whole units; P: each a summand; @0, @last: that one
    dim: int = 0
    unit: int = 1

    def sizes(self, shape: list[int], ranks: int) -> list[int]:
        """Of the parts of a tensor of this shape, along the dimension; the last takes the rest."""
        each = shape[self.dim] // self.unit // ranks * self.unit
        return [each] * (ranks - 1) + [shape[self.dim] - each * (ranks - 1)]

    def lies_at(self, rank: int, ranks: int) -> bool:
        return rank == {"@0": 0, "@last": ranks - 1}.get(self.kind, rank)

    def piece(self, shape: list[int], rank: int, ranks: int) -> tuple[slice, ...]:
        """What a rank has of it, where it lies there."""
        slices = [slice(0, size) for size in shape]
        if self.kind == "S":
            sizes = self.sizes(shape, ranks)
            slices[self.dim] = slice(sum(sizes[:rank]), sum(sizes[:rank + 1]))
        return tuple(slices)


def placement(text: str) -> Placement:
    if not text.startswith("S"):
        return Placement(text)
    dim, _, unit = text[1:].partition("/")
    return Placement("S", int(dim), int(unit or 1))


R, P = Placement("R"), Placement("P")


class Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mover, shape, way, way_back):
        ctx.of = mover, shape, way_back
        y = mover.move(x, shape, *way)
        if y is x and way[0] == P:
            ctx.mark_dirty(x)  # the sum takes its summand's place
        return y

    @staticmethod
    def backward(ctx, gradient):
        mover, shape, way_back = ctx.of
        return mover.move(gradient, shape, *way_back), None, None, None, None


class Mover:
    def __init__(self, ranks, rooted: bool):
        self.ranks, self.rooted = ranks, rooted

    def moved(self, x, shape: list[int], way: tuple[Placement, Placement], way_back: tuple[Placement, Placement]):
        """`way_back` is that of the gradient."""
        return x if way[0] == way[1] and way_back[0] == way_back[1] else Moved.apply(x, self, shape, way, way_back)

    def sum(self, x):
        """In place where the values lie as others' do; if rooted at the first, and from there to all."""
        x = x.contiguous()
        if self.rooted:
            self.ranks.reduce(x)
            self.ranks.broadcast(x)
        else:
            self.ranks.all_reduce(x)
        return x

    def move(self, x, shape: list[int], before: Placement, after: Placement):
        """`shape`: of the whole."""
        if before == after:
            return x
        if after.kind == "S":
            return self.to_parts(x, shape, before, after)
        if before.kind == "P":
            return self.sum(x)
        if before.kind == "S":
            return self.gathered(x, shape, before)
        whole = x.contiguous() if self.ranks.rank == 0 else x.new_empty(shape)
        self.ranks.broadcast(whole)
        return whole

    def to_parts(self, x, shape: list[int], before: Placement, after: Placement):
        sizes = after.sizes(shape, self.ranks.size)
        if before.kind == "S" and before.dim == after.dim:
            same = before.sizes(shape, self.ranks.size) == sizes
            return x if same else self.own_part(self.gathered(x, shape, before), after, sizes)
        if before.kind == "R":
            return self.own_part(x, after, sizes)
        if before.kind == "P" and self.rooted:
            return self.own_part(self.sum(x), after, sizes)
        if before.kind == "S":
            return self.exchanged(x, shape, before, after)
        mine = x.new_empty(with_size(shape, after.dim, sizes[self.ranks.rank]))
        even = len(set(sizes)) == 1
        if before.kind == "P":
            self.ranks.reduce_scatter(blocks_of(x, sizes, after.dim), mine, even)
        else:
            self.ranks.scatter(blocks_of(x, sizes, after.dim) if self.ranks.rank == 0 else None, mine, even)
        return mine

    def own_part(self, x, cut: Placement, sizes: list[int]):
        return x.split(sizes, cut.dim)[self.ranks.rank].contiguous()

    def gathered(self, x, shape: list[int], cut: Placement):
        sizes = cut.sizes(shape, self.ranks.size)
        blocks = [x.new_empty(with_size(shape, cut.dim, size)) for size in sizes]
        self.ranks.all_gather(x.contiguous(), blocks, len(set(sizes)) == 1)
        return torch.cat(blocks, cut.dim)

    def exchanged(self, x, shape: list[int], before: Placement, after: Placement):
        sizes, had = after.sizes(shape, self.ranks.size), before.sizes(shape, self.ranks.size)
        mine = with_size(shape, after.dim, sizes[self.ranks.rank])
        received = [x.new_empty(with_size(mine, before.dim, size)) for size in had]
        self.ranks.all_to_all(blocks_of(x, sizes, after.dim), received)
        return torch.cat(received, before.dim)


def with_size(shape: list[int], dim: int, size: int) -> list[int]:
    return [*shape[:dim], size, *shape[dim + 1:]]


def blocks_of(x, sizes: list[int], dim: int) -> list[torch.Tensor]:
    return [block.contiguous() for block in x.split(sizes, dim)]
