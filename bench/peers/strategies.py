"""The strategies as a PyTorch user writes them. Every session has

    layers              the (node, module) pairs whose parameters live in this process
    settle              steps after which its step takes as long as all later ones
    step(x, target)     one training step; the loss and what it is of, or None where they aren't known
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import DTYPES, LAYERS, MODEL_INPUT, Stage, make_stages, prediction, sample_shape
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOSSES = {"mse_loss": F.mse_loss, "cross_entropy": F.cross_entropy,
          "sum_loss": lambda prediction, _: prediction.sum()}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


class Skipped(Exception):
    """Plain PyTorch has no such step, or can't run it here; the text is the reason."""


def check(model: SimpleNamespace):
    for what, kind, known in [("optimizer", model.optimizer.kind, OPTIMIZERS), ("loss", model.loss, LOSSES),
                              *(("layer", node.op, LAYERS) for node in model.nodes[:-1])]:
        if kind not in known:
            raise Skipped(f"the peers (bench/peers) don't have the {what} '{kind}'; they have {', '.join(known)}")


def make_optimizer(model: SimpleNamespace, parameters: list[nn.Parameter], fused: bool) -> torch.optim.Optimizer:
    """Unless `fused`, with the implementation that torch chooses by itself: on a CPU a loop over the parameters."""
    options = dict(vars(model.optimizer), fused=fused or None)
    kind = OPTIMIZERS[options.pop("kind")]
    if "beta1" in options:
        options["betas"] = options.pop("beta1"), options.pop("beta2")
    return kind(parameters, **options)


class Session:
    """One process, one device: the whole global batch by the module as it is."""

    settle = 0
    replica = 0
    optimizer = None
    resident_peak_bytes = None  # of its first steps

    def __init__(self, subject: SimpleNamespace, channels_last: bool, rank: int, devices: list, group):
        self.model, self.strategy, self.fused = subject.model, subject.strategy, subject.best
        self.channels_last, self.rank, self.group = channels_last, rank, group
        self.x_device, self.target_device = devices[0], devices[-1]
        self.x_rows = self.target_rows = range(self.model.global_batch)  # of the global batch: what this rank needs
        self.ranks = ranks_of(self.strategy)
        self.loss = LOSSES[self.model.loss]
        self.build(make_stages(self.model, self.strategy.stages, channels_last), devices)

    def build(self, stages: list[Stage], devices: list):
        stage, = stages
        self.layers = stage.layers
        self.module = stage.module.to_empty(device=devices[0])

    def layout(self, x):
        return x.to(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def settings(self) -> str:
        """What isn't PyTorch's default."""
        return ", ".join(["fused updates"] * self.fused + ["channels_last"] * self.channels_last)

    def begin(self):
        """Forgets all earlier steps."""
        parameters = list(self.module.parameters())
        if parameters:  # else there is nothing to update
            self.optimizer = make_optimizer(self.model, parameters, self.fused)

    def step(self, x, target):
        """The loss and what it is of; None on ranks that haven't got them."""
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        loss, output = self.forward_and_backward(x, target)
        if self.optimizer:
            self.optimizer.step()
        return loss, output

    def forward_and_backward(self, x, target):
        output = self.module(x)
        loss = self.loss(output, target)
        loss.backward()
        return loss.detach(), output

    @staticmethod
    @torch.no_grad()
    def read_result(loss, output, target):
        """The loss and the number of correct predictions, on the host."""
        classes = target if target.dim() == 1 else target.argmax(1)
        return loss.item(), (output.argmax(1) == classes).sum().item()


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


class DataParallel(Session):
    """DistributedDataParallel, a process per replica, each with its part of the global batch. Gradients are all-reduced
    bucket by bucket during the backward."""

    settle = 2  # buckets are rebuilt at the second forward, in the order in which gradients came

    def build(self, stages: list[Stage], devices: list):
        super().build(stages, devices)
        self.replica = self.rank
        rows = self.model.global_batch // self.strategy.replicas
        self.x_rows = self.target_rows = range(self.rank * rows, (self.rank + 1) * rows)
        buckets = self.strategy.buckets_MiB
        self.module = DistributedDataParallel(self.module, process_group=self.group,
                                              broadcast_buffers=self.strategy.broadcast_buffers,
                                              bucket_cap_mb_list=None if buckets == [1, 25] else buckets)


class Pipeline(Session):
    """A process per stage: isend and recv around the stage's passes, in the schedule's order; the loss is the mean over
    the microbatches. With one stage, gradient accumulation."""

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

    def wire(self, tensor):
        """The tensor as the other end has it in memory: transfers take contiguous ones."""
        if self.channels_last and tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        return tensor.contiguous()

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


def kind_of(strategy: SimpleNamespace) -> type[Session]:
    stages = strategy.stages[-1] + 1
    if strategy.replicas > 1:
        if stages > 1 or strategy.microbatches > 1:
            raise Skipped("these peers have no DistributedDataParallel of pipelines or microbatches")
        if not strategy.overlap:
            raise Skipped("plain PyTorch has no DDP that overlaps nothing; overlap=1 is its DistributedDataParallel")
        return DataParallel
    if strategy.microbatches > 1:
        return ForwardPipeline if strategy.one_loss else Pipeline
    return Session if stages == 1 else ModelParallel


def ranks_of(strategy: SimpleNamespace) -> int:
    """Processes that compute."""
    kind = kind_of(strategy)
    return strategy.replicas if kind is DataParallel else strategy.stages[-1] + 1 if kind is Pipeline else 1


def open_session(subject: SimpleNamespace, channels_last: bool, device: str, rank: int, group) -> Session:
    kind = kind_of(subject.strategy)
    count = torch.cuda.device_count() if device == "cuda" else 1
    places = subject.strategy.stages[-1] + 1 if kind in (ModelParallel, ForwardPipeline) else 1
    devices = [torch.device(device, stage % count if device == "cuda" else None) for stage in range(places)]
    return kind(subject, channels_last, rank, devices, group)
