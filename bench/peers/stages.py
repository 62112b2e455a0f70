"""Models cut into stages: in one process on several devices, or a process per stage."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from models import DTYPES, MODEL_INPUT, Stage, prediction, sample_shape
from session import Session
from torch import nn


class ModelParallel(Session):
    """PyTorch's model-parallel tutorial: one process, the stages on different devices; one of them works at a time."""

    class Module(nn.Module):
        def __init__(self, stages, devices, splits):
            super().__init__()
            self.parts, self.devices, self.splits = stages, devices, splits
            self.modules_of_stages = nn.ModuleList(stage.module.to_empty(device=device)
                                                   for stage, device in zip(stages, devices))

        def visit(self, s, values):
            """Stage s of a batch (or a split of it) whose `values` are known."""
            for node in self.parts[s].takes:
                values[node] = values[node].to(self.devices[s])
            values.update(self.parts[s](values))

        def forward(self, x):
            values = {MODEL_INPUT: x}
            for s in range(len(self.parts)):
                self.visit(s, values)
            return values[self.parts[-1].gives[0]]

    @classmethod
    def places(cls, strategy: SimpleNamespace) -> int:
        return strategy.stages[-1] + 1

    def stages(self) -> list[int]:
        return self.strategy.stages

    def build(self, stages: list[Stage], devices: list):
        self.layers = sum((stage.layers for stage in stages), [])
        self.module = self.Module(stages, devices, self.strategy.microbatches)


class ForwardPipeline(ModelParallel):
    """The tutorial's pipelined class: one process; while a stage works on a split, the stage before works on the next
    one, because a GPU's kernels are only launched here. One loss and one backward over the concatenated outputs."""

    class Module(ModelParallel.Module):
        def forward(self, x):
            splits = [{MODEL_INPUT: split} for split in x.split(len(x) // self.splits)]
            for tick in range(len(splits) + len(self.parts) - 1):
                for s in reversed(range(len(self.parts))):
                    if 0 <= tick - s < len(splits):
                        self.visit(s, splits[tick - s])
            return torch.cat([values[self.parts[-1].gives[0]] for values in splits])


class Pipeline(Session):
    """A process per stage: isend and recv around the stage's passes, in the schedule's order; the loss is the mean over
    the microbatches. With one stage, gradient accumulation."""

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        return strategy.stages[-1] + 1

    def stages(self) -> list[int]:
        return self.strategy.stages

    def build(self, stages: list[Stage], devices: list):
        self.device, self.rows = devices[0], self.model.global_batch // self.strategy.microbatches
        self.stage, self.last = stages[self.rank], self.rank == len(stages) - 1
        self.layers, self.module = self.stage.layers, self.stage.module.to_empty(device=self.device)
        self.x_rows = self.x_rows if MODEL_INPUT in self.stage.takes else range(0)
        self.target_rows = self.target_rows if self.last else range(0)
        self.source = {node: self.strategy.stages[node] for node in self.stage.takes if node != MODEL_INPUT}
        self.readers = {node: [s for s, stage in enumerate(stages) if node in stage.takes and s > self.rank]
                        for node in self.stage.gives}
        self.actions = [(action[0], int(action[1:])) for action in self.strategy.actions[self.rank].split()]

    def needs_grad(self, node: int) -> bool:
        return self.model.nodes[node].needs_grad

    def tag(self, node: int, microbatch: int) -> int:
        return microbatch * len(self.model.nodes) + node

    def send(self, tensor, to: int, tag: int):
        wire = self.wire(tensor.detach())
        self.sends.append((dist.isend(wire, to, tag=tag), wire))

    def post(self, kind: str, microbatch: int):
        """Begins to receive what this action needs."""
        expected = (self.source.items() if kind == "F" else
                    [(node, reader) for node, readers in self.readers.items() if self.needs_grad(node)
                     for reader in readers])
        self.arriving = []
        for node, source in expected:
            layout = (torch.channels_last if self.channels_last and len(sample_shape(self.model, node)) == 3 else
                      torch.contiguous_format)
            tensor = torch.empty(self.rows, *sample_shape(self.model, node), dtype=DTYPES[self.model.dtype],
                                 device=self.device, memory_format=layout)
            work = dist.irecv(self.wire(tensor), source, tag=self.tag(node, microbatch))
            self.arriving.append((node, tensor, work))

    def forward(self, microbatch: int, received, x, target):
        values = {node: tensor.requires_grad_(self.needs_grad(node)) for node, tensor in received}
        if MODEL_INPUT in self.stage.takes:
            values[MODEL_INPUT] = x[microbatch]
        outputs = self.stage(values)
        self.taken[microbatch], self.given[microbatch] = values, outputs
        for node, readers in self.readers.items():
            for reader in readers:
                self.send(outputs[node], reader, self.tag(node, microbatch))
        if self.last:
            output = outputs[prediction(self.model)]
            loss = self.loss(output, target[microbatch])
            self.losses.append(loss.detach())
            self.outputs.append(output.detach())
            self.given[microbatch] = {"loss": loss / self.strategy.microbatches}

    def backward(self, microbatch: int, received):
        gradients = {}
        for node, gradient in received:
            gradients[node] = gradients[node] + gradient if node in gradients else gradient
        outputs = {node: output for node, output in self.given.pop(microbatch).items() if output.requires_grad}
        if outputs:
            torch.autograd.backward(list(outputs.values()), [gradients.get(node) for node in outputs])
        for node, value in self.taken.pop(microbatch).items():
            if value.requires_grad:
                self.send(value.grad, self.source[node], self.tag(node, microbatch))

    def forward_and_backward(self, x, target):
        self.sends, self.losses, self.outputs, self.taken, self.given = [], [], [], {}, {}
        x, target = x.split(self.rows), target.split(self.rows)
        self.post(*self.actions[0])
        for i, (kind, microbatch) in enumerate(self.actions):
            for _, _, work in self.arriving:
                work.wait()
            received = [(node, tensor) for node, tensor, _ in self.arriving]
            if i + 1 < len(self.actions):
                self.post(*self.actions[i + 1])  # a message that is expected needn't wait for its receiver
            if kind == "F":
                self.forward(microbatch, received, x, target)
            else:
                self.backward(microbatch, received)
        for work, _ in self.sends:
            work.wait()
        self.sends.clear()
        return (torch.stack(self.losses).mean(), torch.cat(self.outputs)) if self.last else (None, None)
