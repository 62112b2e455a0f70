"""Where a tensor lies on some ranks (sim/mesh/placement.hpp), and how it gets elsewhere, for autograd too.

    S1 = placement("S1")                            # a part of dimension 1 each; also R, P, @0, @last, S1/64
    mover = Mover(ranks, rooted=False)
    y = mover.moved(x, shape, (P, R), (R, R))       # x is a summand of y; so is the gradient of y, everywhere all of it
"""

from dataclasses import dataclass

import torch
from collectives import Cut


@dataclass(frozen=True)
class Placement:
    kind: str  # R: all have all of it; S: each a part of `dim`, in whole units; P: each a summand; @0, @last: that one
    dim: int = 0
    unit: int = 1

    def cut(self, shape: list[int], ranks: int) -> Cut:
        """Of a tensor of this shape; the last part takes the rest."""
        each = shape[self.dim] // self.unit // ranks * self.unit
        return Cut(self.dim, [each] * (ranks - 1) + [shape[self.dim] - each * (ranks - 1)])

    def lies_at(self, rank: int, ranks: int) -> bool:
        return rank == {"@0": 0, "@last": ranks - 1}.get(self.kind, rank)

    def piece(self, shape: list[int], rank: int, ranks: int) -> tuple[slice, ...]:
        """What a rank has of it, where it lies there."""
        slices = [slice(0, size) for size in shape]
        if self.kind == "S":
            sizes = self.cut(shape, ranks).sizes
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
        cut = after.cut(shape, self.ranks.size) if after.kind == "S" else None
        had = before.cut(shape, self.ranks.size) if before.kind == "S" else None
        if before.kind == "R":
            return self.own_part(x, cut)
        if before.kind == "@0":
            return self.ranks.scatter(x, shape, cut) if cut else self.broadcast(x, shape)
        if before.kind == "P":
            if cut and not self.rooted:
                return self.ranks.reduce_scatter(x, shape, cut)
            return self.own_part(self.sum(x), cut) if cut else self.sum(x)
        if not cut:
            return self.ranks.all_gather(x, shape, had)
        if cut.dim != had.dim:
            return self.ranks.all_to_all(x, shape, had, cut)
        return x if cut == had else self.own_part(self.ranks.all_gather(x, shape, had), cut)

    def own_part(self, x, cut: Cut):
        return cut.views(x)[self.ranks.rank].contiguous()

    def broadcast(self, x, shape: list[int]):
        whole = x.contiguous() if self.ranks.rank == 0 else x.new_empty(shape)
        self.ranks.broadcast(whole)
        return whole
