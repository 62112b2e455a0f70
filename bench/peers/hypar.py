"""HyPar's hybrid layers: each is played by a part of the samples, of its input channels or of its output channels."""

import math
from types import SimpleNamespace

import initial
import torch
from collectives import Meeting, Processes, Threads
from models import DTYPES, LAYERS, MODEL_INPUT, MODEL_TARGET, Stage
from placement import Mesh, Mover, Placements, placements
from process import PinnedThreads
from session import Session, Skipped, loss_of_batch, memory_of
from torch import nn


def summed_levels(where: str) -> tuple[int, ...]:
    """Along which a gradient is to be summed."""
    return tuple(level for level, along in enumerate(placements(where)) if along.kind == "P")


class Hybrid(Session):
    """A process per rank. The strategy says where the tensors of each node lie, forward and backward; what lies
    elsewhere is moved, and so is its gradient. Gradients of weights that all have are summed after the backward."""

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        return math.prod(strategy.levels)

    @classmethod
    def lines(cls, strategy: SimpleNamespace) -> list[tuple[int, ...]]:
        of_one = {(level,) for level in range(len(strategy.levels))}
        of_sums = {summed_levels(where) for node in strategy.nodes for where in node.grad_parameters} - {()}
        meshes = [Mesh(strategy.levels, rank) for rank in range(cls.processes(strategy))]
        return super().lines(strategy) + sorted({mesh.line(levels) for mesh in meshes for levels in of_one | of_sums})

    def others(self, line: tuple[int, ...]):
        return Processes(line.index(self.rank), len(line), self.groups[line])

    def build(self, stages: list[Stage], devices: list):
        nodes, samples = self.model.nodes, [self.model.global_batch]
        self.whole = {f"{node.name}.{kind}": list(parameter.shape) for node, layer in stages[0].layers
                      for kind, parameter in layer.named_parameters()}
        self.mesh = Mesh(self.strategy.levels, self.rank)
        self.mover = Mover(self.mesh, self.strategy.rooted, self.others)
        # By node: the whole output's shape, and where its readers find it.
        self.shapes = {MODEL_INPUT: samples + self.model.input,
                       MODEL_TARGET: samples + [self.model.classes] * (self.model.loss != "cross_entropy"),
                       **{n: samples + node.shape for n, node in enumerate(nodes)}}
        self.where = {MODEL_INPUT: placements(self.strategy.input), MODEL_TARGET: placements(self.strategy.target),
                      **{n: placements(placed.resolved) for n, placed in enumerate(self.strategy.nodes)}}
        self.x_rows, self.target_rows = self.rows(MODEL_INPUT), self.rows(MODEL_TARGET)
        self.replica = self.rank
        self.share = self.mesh.local(placements(self.strategy.nodes[-1].inputs[0]), samples)[0] / samples[0]
        self.ways = [[self.way(n, k) for k in range(len(node.inputs))] for n, node in enumerate(nodes)]
        self.resolving = [((placements(placed.output), self.where[n]),
                           (self.where_gradient(n), placements(placed.grad_output)))
                          for n, placed in enumerate(self.strategy.nodes)]
        with torch.device("meta"):
            self.played = [self.part_of(n) for n in range(len(nodes) - 1)]
        self.layers = [(node, layer) for node, layer in zip(nodes, self.played) if isinstance(layer, nn.Module)]
        self.module = nn.ModuleList(layer for _, layer in self.layers).to(DTYPES[self.model.dtype])
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.module.to_empty(device=devices[0])
        self.note_parameters()

    def rows(self, source: int) -> range:
        """Of the model's input or target, before the step."""
        rows = self.mesh.piece(self.where[source], self.shapes[source])[0]
        return range(rows.start, rows.stop) if self.mesh.has(self.where[source]) else range(0)

    def way(self, n: int, k: int):
        """From where to where: the k-th input of a node, and its gradient."""
        source, placed = self.model.nodes[n].inputs[k], self.strategy.nodes[n]
        here = self.where[source]
        back = (placements(placed.grad_inputs[k]), self.where_gradient(source)) if source >= 0 else (here, here)
        return (here, placements(placed.inputs[k])), back

    def where_gradient(self, n: int) -> Placements:
        """That of the output as its readers find it: of the same shape."""
        return tuple(where if where.kind == "S" else of_gradient for where, of_gradient in
                     zip(self.where[n], placements(self.strategy.nodes[n].grad_output)))

    def part_of(self, n: int):
        """The layer that plays this rank's part of a node."""
        node, placed = self.model.nodes[n], self.strategy.nodes[n]
        attributes = dict(vars(node.attributes))
        if attributes.get("sync"):
            if any(where.kind == "S" and where.dim == 0 for where in placements(placed.inputs[0])):
                raise Skipped("these peers have no SyncBatchNorm of HyPar's layers")
            attributes["sync"] = 0  # the rank has all samples
        if any(before != after for before, after in self.ways[n][0]):
            attributes["inplace"] = 0  # autograd allows it on nothing that a user's own function passes on
        _, *x = self.mesh.local(placements(placed.inputs[0]), self.shapes[node.inputs[0]])
        if placed.parameters:
            of_weight = placements(placed.parameters[0])
            for size in {"out_channels", "out_features"} & attributes.keys():
                attributes[size] = self.mesh.local(of_weight, self.whole[f"{node.name}.weight"])[0]
        if len(placed.parameters) > 1 and not self.mesh.has(placements(placed.parameters[1])):
            attributes["bias"] = 0
        return LAYERS[node.op](SimpleNamespace(**attributes), x)

    def note_parameters(self):
        """Which are pieces of larger ones, and whose gradients are to be summed with whom, last layers first."""
        self.pieces, self.summands = {}, []
        for placed, layer, node in zip(self.strategy.nodes, self.played, self.model.nodes):
            if not isinstance(layer, nn.Module):
                continue
            for (kind, parameter), where, of_gradient in zip(layer.named_parameters(), placed.parameters,
                                                             placed.grad_parameters):
                name = f"{node.name}.{kind}"
                self.pieces[name] = self.whole[name], self.mesh.piece(placements(where), self.whole[name])
                if levels := summed_levels(of_gradient):
                    self.summands.insert(0, (parameter, self.others(self.mesh.line(levels))))

    def initialise(self, seed: int):
        initial.initialise(self.layers, seed, self.pieces)

    def inputs(self, seed: int):
        x = initial.inputs(self.model, self.x_rows, seed, self.x_device)
        _, *of_sample = self.mesh.piece(self.where[MODEL_INPUT], self.shapes[MODEL_INPUT])
        return self.layout(x[(slice(None), *of_sample)].contiguous())

    def forward_and_backward(self, x, target):
        values, brought = {MODEL_INPUT: x, MODEL_TARGET: target}, {}

        def bring(n: int, k: int):
            source, way = self.model.nodes[n].inputs[k], self.ways[n][k]
            if (source, way) not in brought:
                brought[source, way] = self.mover.moved(values[source], self.shapes[source], *way)
            return brought[source, way]

        for n, layer in enumerate(self.played):
            output = layer(*(bring(n, k) for k in range(len(self.ways[n]))))
            values[n] = self.mover.moved(output, self.shapes[n], *self.resolving[n])
        output, self.own_target = (bring(len(self.played), k) for k in range(2))
        loss = self.loss(output, self.own_target)
        values.clear()
        brought.clear()  # autograd has what it needs
        (loss if self.model.loss == "sum_loss" or self.share == 1 else self.share * loss).backward()
        for parameter, ranks in self.summands:
            self.mover.sum(memory_of(parameter.grad), ranks)
        return loss.detach(), output.detach()

    def read_result(self, loss, output, target):
        return super().read_result(loss, output, self.own_target)


class HybridOfThread(Hybrid):
    """A rank of HybridThreads, which has their meetings for a group."""

    def others(self, line: tuple[int, ...]):
        return Threads(line.index(self.rank), self.groups.setdefault(line, Meeting(len(line))))


class HybridThreads(Session):
    """One process, a thread per rank on its core. The reference's only thread launches what all its devices do; a core
    does nothing asynchronously."""

    @classmethod
    def places(cls, strategy: SimpleNamespace) -> int:
        return math.prod(strategy.levels)

    def build(self, stages: list[Stage], devices: list):
        self.meetings, self.threads = {}, PinnedThreads(self.cores)
        subject = SimpleNamespace(model=self.model, strategy=self.strategy, best=bool(self.faster))
        self.parts = [HybridOfThread(subject, self.channels_last, rank, devices, self.meetings, [core])
                      for rank, core in enumerate(self.cores)]
        self.module = nn.ModuleList(part.module for part in self.parts)

    def initialise(self, seed: int):
        for part in self.parts:
            part.initialise(seed)

    def inputs(self, seed: int) -> list:
        return [part.inputs(seed) for part in self.parts]

    def targets(self, seed: int) -> list:
        return [part.targets(seed) for part in self.parts]

    def make_batch(self, x: list, target: list, seed: int, step: int):
        return zip(*self.threads.on_each(lambda part, *batch: part.make_batch(*batch, seed, step), self.parts, x,
                                         target))

    def begin(self):
        for part in self.parts:
            part.begin()

    def end(self):
        for part in self.parts:
            part.end()

    def step_of(self, part: Hybrid, x, target):
        try:
            return part.step(x, target)
        except Exception:
            for meeting in self.meetings.values():
                meeting.barrier.abort()
            raise

    def step(self, x: list, target: list):
        losses, outputs = zip(*self.threads.on_each(self.step_of, self.parts, x, target))
        return loss_of_batch(self.model, [(part.share, loss) for part, loss in zip(self.parts, losses)]), outputs

    def read_result(self, loss, outputs: list, target: list):
        return self.threads.on_each(lambda part, *result: part.read_result(loss, *result), self.parts, outputs,
                                    target)
