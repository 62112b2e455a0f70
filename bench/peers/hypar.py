"""HyPar's hybrid layers: each is played by a part of the samples, of its input channels or of its output channels."""

from types import SimpleNamespace

import initial
import torch
from collectives import Meeting, Processes, Threads
from models import DTYPES, LAYERS, MODEL_INPUT, MODEL_TARGET, Stage
from placement import R, Mover, Placement, placement
from process import PinnedThreads
from session import Session, Skipped, loss_of_batch, memory_of
from torch import nn


def ranks_of(strategy: SimpleNamespace) -> int:
    if len(strategy.levels) > 1:
        raise Skipped("these peers have HyPar's layers on one level of devices only")
    return strategy.levels[0]


class Hybrid(Session):
    """A process per rank. The strategy says where the tensors of each node lie, forward and backward; what lies
    elsewhere is moved, and so is its gradient. Gradients of weights that all have are summed after the backward."""

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        return ranks_of(strategy)

    def others(self):
        return Processes(self.rank, self.ranks, self.group)

    def build(self, stages: list[Stage], devices: list):
        nodes, samples = self.model.nodes, [self.model.global_batch]
        self.mover = Mover(self.others(), self.strategy.rooted)
        # By node: the whole output's shape, and where its readers find it.
        self.shapes = {MODEL_INPUT: samples + self.model.input,
                       MODEL_TARGET: samples + [self.model.classes] * (self.model.loss != "cross_entropy"),
                       **{n: samples + node.shape for n, node in enumerate(nodes)}}
        self.where = {MODEL_INPUT: placement(self.strategy.input), MODEL_TARGET: placement(self.strategy.target),
                      **{n: placement(placed.resolved) for n, placed in enumerate(self.strategy.nodes)}}
        self.x_rows, self.target_rows = self.rows(MODEL_INPUT), self.rows(MODEL_TARGET)
        self.replica = self.rank
        of_loss, = self.piece(placement(self.strategy.nodes[-1].inputs[0]), samples)
        self.share = (of_loss.stop - of_loss.start) / self.model.global_batch
        self.ways = [[self.way(n, k) for k in range(len(node.inputs))] for n, node in enumerate(nodes)]
        self.resolving = [((placement(placed.output), self.where[n]),
                           (self.where_gradient(n), placement(placed.grad_output)))
                          for n, placed in enumerate(self.strategy.nodes)]
        with torch.device("meta"):
            self.played = [self.part_of(n) for n in range(len(nodes) - 1)]
        self.layers = [(node, layer) for node, layer in zip(nodes, self.played) if isinstance(layer, nn.Module)]
        self.module = nn.ModuleList(layer for _, layer in self.layers).to(DTYPES[self.model.dtype])
        if self.channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.module.to_empty(device=devices[0])
        self.note_parameters(stages[0].layers)

    def piece(self, where: Placement, shape: list[int]) -> tuple[slice, ...]:
        return where.piece(shape, self.mover.ranks.rank, self.mover.ranks.size)

    def lies_here(self, where: Placement) -> bool:
        return where.lies_at(self.mover.ranks.rank, self.mover.ranks.size)

    def rows(self, source: int) -> range:
        """Of the model's input or target, before the step."""
        rows = self.piece(self.where[source], self.shapes[source])[0]
        return range(rows.start, rows.stop) if self.lies_here(self.where[source]) else range(0)

    def way(self, n: int, k: int):
        """From where to where: the k-th input of a node, and its gradient."""
        source, placed = self.model.nodes[n].inputs[k], self.strategy.nodes[n]
        back = (placement(placed.grad_inputs[k]), self.where_gradient(source)) if source >= 0 else (R, R)
        return (self.where[source], placement(placed.inputs[k])), back

    def where_gradient(self, n: int) -> Placement:
        """That of the output as its readers find it: of the same shape."""
        return self.where[n] if self.where[n].kind == "S" else placement(self.strategy.nodes[n].grad_output)

    def part_of(self, n: int):
        """The layer that plays this rank's part of a node."""
        node, placed = self.model.nodes[n], self.strategy.nodes[n]
        attributes = dict(vars(node.attributes))
        if any(before != after for before, after in self.ways[n][0]):
            attributes["inplace"] = 0  # autograd allows it on nothing that a user's own function passes on
        x = self.piece(placement(placed.inputs[0]), self.shapes[node.inputs[0]])
        for size in {"out_channels", "out_features"} & attributes.keys():
            if placed.parameters[0] == "S0":
                part, = self.piece(placement("S0"), [attributes[size]])
                attributes[size] = part.stop - part.start
        if len(placed.parameters) > 1 and not self.lies_here(placement(placed.parameters[1])):
            attributes["bias"] = 0
        return LAYERS[node.op](SimpleNamespace(**attributes), [part.stop - part.start for part in x[1:]])

    def note_parameters(self, whole_layers):
        """Which are pieces of larger ones, and which have gradients that are to be summed, last layers first."""
        shapes = {f"{node.name}.{kind}": list(parameter.shape) for node, layer in whole_layers
                  for kind, parameter in layer.named_parameters()}
        self.pieces, self.summands = {}, []
        for placed, layer, node in zip(self.strategy.nodes, self.played, self.model.nodes):
            if not isinstance(layer, nn.Module):
                continue
            for (kind, parameter), where, of_gradient in zip(layer.named_parameters(), placed.parameters,
                                                             placed.grad_parameters):
                name = f"{node.name}.{kind}"
                self.pieces[name] = shapes[name], self.piece(placement(where), shapes[name])
                if of_gradient == "P":
                    self.summands.insert(0, parameter)

    def initialise(self, seed: int):
        initial.initialise(self.layers, seed, self.pieces)

    def inputs(self, seed: int):
        x = initial.inputs(self.model, self.x_rows, seed, self.x_device)
        _, *of_sample = self.piece(self.where[MODEL_INPUT], self.shapes[MODEL_INPUT])
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
        for parameter in self.summands:
            self.mover.sum(memory_of(parameter.grad))
        return loss.detach(), output.detach()

    def read_result(self, loss, output, target):
        return super().read_result(loss, output, self.own_target)


class HybridOfThread(Hybrid):
    """A rank of HybridThreads."""

    def others(self):
        return self.group


class HybridThreads(Session):
    """One process, a thread per rank on its core. The reference's only thread launches what all its devices do; a core
    does nothing asynchronously."""

    @classmethod
    def places(cls, strategy: SimpleNamespace) -> int:
        return ranks_of(strategy)

    def build(self, stages: list[Stage], devices: list):
        self.meeting, self.threads = Meeting(len(self.cores)), PinnedThreads(self.cores)
        subject = SimpleNamespace(model=self.model, strategy=self.strategy, best=self.fused)
        self.parts = [HybridOfThread(subject, self.channels_last, rank, devices, Threads(rank, self.meeting), [core])
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
            self.meeting.barrier.abort()
            raise

    def step(self, x: list, target: list):
        losses, outputs = zip(*self.threads.on_each(self.step_of, self.parts, x, target))
        return loss_of_batch(self.model, [(part.share, loss) for part, loss in zip(self.parts, losses)]), outputs

    def read_result(self, loss, outputs: list, target: list):
        return self.threads.on_each(lambda part, *result: part.read_result(loss, *result), self.parts, outputs,
                                    target)
