"""The strategies as a PyTorch user writes them. Every session has

    layers              the (name, module) pairs whose parameters live in this process
    settle              steps after which its step takes as long as all later ones
    step(x, target)     one training step; the loss, or None where it isn't known
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import build, layers, stages
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

LOSSES = {"mse_loss": F.mse_loss, "cross_entropy": F.cross_entropy}


def make_optimizer(subject, parameters):
    """With the implementation that torch chooses by itself: on a CPU a loop over the parameters. paragauge's updates
    are those of fused=True."""
    options = dict(subject.options)
    if subject.optimizer == "sgd":
        return torch.optim.SGD(parameters, **options)
    betas = options.pop("beta1", 0.9), options.pop("beta2", 0.999)
    return torch.optim.Adam(parameters, betas=betas, **options)


class Session:
    """One process, one device: the whole global batch by the module as it is."""

    settle = 0
    replica = 0
    optimizer = None
    resident_peak_bytes = None  # of its first steps

    def __init__(self, subject, plan, rank, devices, group):
        self.subject, self.plan, self.rank, self.group = subject, plan, rank, group
        self.x_device, self.target_device = devices[0], devices[-1]
        self.x_rows = self.target_rows = range(subject.global_batch)  # of the global batch: what this rank needs
        self.loss = LOSSES[subject.loss]
        self.build(devices)

    def build(self, devices):
        self.module = build(self.subject).to_empty(device=devices[0])
        self.layers = layers(self.module)

    def parameters(self):
        return self.module.parameters()

    def begin(self):
        """Forgets all earlier steps."""
        self.optimizer = make_optimizer(self.subject, self.parameters())

    def step(self, x, target):
        """The loss and what it is of; None on ranks that haven't got them."""
        self.optimizer.zero_grad(set_to_none=True)
        output = self.module(x)
        loss = self.loss(output, target)
        loss.backward()
        self.optimizer.step()
        return loss.detach(), output

    @staticmethod
    @torch.no_grad()
    def read_result(loss, output, target):
        """R2: the loss and the number of correct predictions, on the host."""
        classes = target if target.dim() == 1 else target.argmax(1)
        return loss.item(), (output.argmax(1) == classes).sum().item()


class ModelParallel(Session):
    """R1: one process, the stages on different devices; one of them works at a time."""

    class Module(nn.Module):
        def __init__(self, parts, devices):
            super().__init__()
            self.devices = devices
            self.stages = nn.ModuleList(nn.Sequential(*(layer for _, layer in part)).to_empty(device=device)
                                        for part, device in zip(parts, devices))

        def forward(self, x):
            for stage, device in zip(self.stages, self.devices):
                x = stage(x.to(device))
            return x

    def build(self, devices):
        parts = stages(build(self.subject), self.plan.cut)
        self.layers = sum(parts, [])
        self.module = self.Module(parts, devices)


class ForwardPipeline(ModelParallel):
    """R1's and R2's pipelined class: one process; while a stage works on a split, the stage before works on the next
    one, because a GPU's kernels are only launched here. One loss and one backward over the concatenated outputs."""

    class Module(ModelParallel.Module):
        def forward(self, x):
            splits = x.split(len(x) // self.splits)
            outputs, waiting = [], {}  # waiting[s]: the input of stage s
            for tick in range(len(splits) + len(self.stages) - 1):
                if tick < len(splits):
                    waiting[0] = splits[tick]
                for s in sorted(waiting, reverse=True):
                    y = self.stages[s](waiting.pop(s))
                    if s + 1 < len(self.stages):
                        waiting[s + 1] = y.to(self.devices[s + 1])
                    else:
                        outputs.append(y)
            return torch.cat(outputs)

    def build(self, devices):
        super().build(devices)
        self.module.splits = self.plan.microbatches


class DataParallel(Session):
    """R5: DistributedDataParallel, a process per replica, each with its part of the global batch. Gradients are
    all-reduced bucket by bucket during the backward."""

    settle = 2  # buckets are rebuilt at the second forward, in the order in which gradients came

    def build(self, devices):
        super().build(devices)
        self.replica = self.rank
        rows = self.subject.global_batch // self.plan.ranks
        self.x_rows = self.target_rows = range(self.rank * rows, (self.rank + 1) * rows)
        buckets = [self.plan.first_bucket_MiB, self.plan.bucket_MiB]
        self.module = DistributedDataParallel(self.module, process_group=self.group,
                                              broadcast_buffers=self.plan.broadcast_buffers,
                                              bucket_cap_mb_list=None if buckets == [1, 25] else buckets)


class Pipeline(Session):
    """torch.distributed.pipelining: a process per stage; the loss is the mean over the microbatches."""

    settle = 1  # shapes are sent through the stages before the first forward

    SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}

    def build(self, devices):
        self.layers = stages(build(self.subject), self.plan.cut)[self.rank]
        self.first, self.last = self.rank == 0, self.rank == self.plan.stages - 1
        self.x_rows = self.x_rows if self.first else range(0)
        self.target_rows = self.target_rows if self.last else range(0)
        self.module = nn.Sequential(*(layer for _, layer in self.layers)).to_empty(device=devices[0])
        stage = PipelineStage(self.module, self.rank, self.plan.stages, devices[0], group=self.group)
        self.schedule = self.SCHEDULES[self.plan.schedule](stage, self.plan.microbatches, loss_fn=self.loss)

    def begin(self):
        if list(self.parameters()):  # else there is nothing to update
            super().begin()

    def step(self, x, target):
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        losses, output = [], None
        if self.last:
            output = self.schedule.step(target=target, losses=losses)
        else:
            self.schedule.step(*([x] if self.first else []))
        if self.optimizer:
            self.optimizer.step()
        return (torch.stack(losses).mean(), output) if self.last else (None, None)


def kind_of(plan):
    if plan.strategy == "pipeline":
        return ForwardPipeline if plan.schedule == "forward_only" else Pipeline
    return {"single": Session, "model_parallel": ModelParallel, "ddp": DataParallel}[plan.strategy]


def open_session(subject, plan, device, rank, group):
    kind = kind_of(plan)
    count = torch.cuda.device_count() if device == "cuda" else 1
    devices = [torch.device(device, stage % count if device == "cuda" else None)
               for stage in range(plan.stages if plan.ranks == 1 else 1)]
    return kind(subject, plan, rank, devices, group)


def group_of(ranks):
    """The first `ranks` processes; all processes ask for it at the same time. None: everyone, or nobody to talk to."""
    return None if ranks in (1, dist.get_world_size()) else dist.new_group(range(ranks))
