"""Where tensors lie on a mesh of ranks (sim/mesh/), and how they get elsewhere, for autograd too.

    mesh = Mesh([2, 2], rank=3)                     # levels, outermost first
    where = placements("S0 P")                      # by level: a part of the samples, of which each has a summand
    mesh.piece(placements("S0 S1"), [8, 6])         # the last rank has rows 4 to 7, columns 3 to 5
    y = mover.moved(x, shape, (where, to), back)    # `shape`: of the whole tensor; `back`: its gradient's way
"""

from dataclasses import dataclass

import torch
from collectives import Cut


@dataclass(frozen=True)
class Placement:
    """Along one level."""
    kind: str  # R: all have all of it; S: each a part of `dim`, in whole units; P: each a summand; @0, @last: that one
    dim: int = 0
    unit: int = 1

    def cut(self, shape: list[int], ranks: int) -> Cut:
        """Of a tensor of this shape; the last part takes the rest."""
        each = shape[self.dim] // self.unit // ranks * self.unit
        return Cut(self.dim, [each] * (ranks - 1) + [shape[self.dim] - each * (ranks - 1)])


R = Placement("R")
Placements = tuple[Placement, ...]  # by level


def placements(text: str) -> Placements:
    def of_level(text):
        if not text.startswith("S"):
            return Placement(text)
        dim, _, unit = text[1:].partition("/")
        return Placement("S", int(dim), int(unit or 1))

    return tuple(of_level(each) for each in text.split())


class Mesh:
    def __init__(self, sizes: list[int], rank: int):
        self.sizes, self.at = sizes, []  # this rank's coordinates
        for size in reversed(sizes):
            self.at.insert(0, rank % size)
            rank //= size

    def line(self, levels) -> tuple[int, ...]:
        """The ranks that differ from this one on these levels only, ascending."""
        ranks = [0]
        for level, size in enumerate(self.sizes):
            coordinates = range(size) if level in levels else [self.at[level]]
            ranks = [rank * size + at for rank in ranks for at in coordinates]
        return tuple(ranks)

    def has(self, where: Placements) -> bool:
        """Whether this rank has something of it."""
        return all(at == {"@0": 0, "@last": size - 1}.get(placement.kind, at)
                   for placement, at, size in zip(where, self.at, self.sizes))

    def piece(self, where: Placements, shape: list[int]) -> tuple[slice, ...]:
        """What this rank has of it, if anything. Levels that cut the same dimension do so one after the other."""
        begin, size = [0] * len(shape), list(shape)
        for placement, at, ranks in zip(where, self.at, self.sizes):
            if placement.kind == "S":
                parts = placement.cut(size, ranks).sizes
                begin[placement.dim] += sum(parts[:at])
                size[placement.dim] = parts[at]
        return tuple(slice(first, first + count) for first, count in zip(begin, size))

    def local(self, where: Placements, shape: list[int]) -> list[int]:
        return [part.stop - part.start for part in self.piece(where, shape)]


class Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mover, shape, way, way_back):
        ctx.of = mover, shape, way_back
        y = mover.move(x, shape, *way)
        if y is x and any(placement.kind == "P" for placement in way[0]):
            ctx.mark_dirty(x)  # the sum takes its summand's place
        return y

    @staticmethod
    def backward(ctx, gradient):
        mover, shape, way_back = ctx.of
        return mover.move(gradient, shape, *way_back), None, None, None, None


class Mover:
    def __init__(self, mesh: Mesh, rooted: bool, ranks_of):
        """`ranks_of`: how this rank talks to those of a line (collectives.py)."""
        self.mesh, self.rooted = mesh, rooted
        self.along = [ranks_of(mesh.line([level])) for level in range(len(mesh.sizes))]

    def moved(self, x, shape: list[int], way: tuple[Placements, Placements], way_back: tuple[Placements, Placements]):
        return x if way[0] == way[1] and way_back[0] == way_back[1] else Moved.apply(x, self, shape, way, way_back)

    def sum(self, x, ranks):
        """In place, if it lies together; if rooted at the first, and from there to all."""
        x = x.contiguous()
        if self.rooted:
            ranks.reduce(x)
            ranks.broadcast(x)
        else:
            ranks.all_reduce(x)
        return x

    def move(self, x, shape: list[int], before: Placements, after: Placements):
        """One level after the other, the innermost first. But where an outer one is about to cut a dimension otherwise,
        inner ones that cut it too let go of it (sim/lower/redistribute.cpp)."""
        now = list(before)

        def go(level: int, there: Placement):
            nonlocal x
            whole = [*now[:level], R, *now[level + 1:]]
            if now[level] != there and self.mesh.has(whole):
                x = self.move_along(self.along[level], x, self.mesh.local(whole, shape), now[level], there)
            now[level] = there

        levels = range(len(now))
        lets_go = set()
        for outer in levels:
            if before[outer] != after[outer] or outer in lets_go:
                dims = {placement.dim for placement in (before[outer], after[outer]) if placement.kind == "S"}
                lets_go |= {inner for inner in levels[outer + 1:] for placement in (before[inner], after[inner])
                            if placement.kind == "S" and placement.dim in dims}
        for level in reversed(levels):
            if level in lets_go:
                go(level, R)
        for level in reversed(levels):
            if level not in lets_go:
                go(level, after[level])
        for level in levels:
            go(level, after[level])
        return x

    def move_along(self, ranks, x, shape: list[int], before: Placement, after: Placement):
        """`shape`: whole along this level."""
        cut = after.cut(shape, ranks.size) if after.kind == "S" else None
        had = before.cut(shape, ranks.size) if before.kind == "S" else None

        def own_part(whole):
            return cut.views(whole)[ranks.rank].contiguous() if cut else whole

        if before.kind == "R":
            return own_part(x)
        if before.kind == "@0":
            if cut:
                return ranks.scatter(x, shape, cut)
            x = x.contiguous() if ranks.rank == 0 else x.new_empty(shape)
            ranks.broadcast(x)
            return x
        if before.kind == "P":
            return ranks.reduce_scatter(x, shape, cut) if cut and not self.rooted else own_part(self.sum(x, ranks))
        if cut and cut.dim != had.dim:
            return ranks.all_to_all(x, shape, had, cut)
        return x if cut == had else own_part(ranks.all_gather(x, shape, had))
