"""Pipelines whose ranks have several stages each, or whose backwards are in two: torch.distributed.pipelining's own schedules."""

from types import SimpleNamespace

import torch
from models import MODEL_INPUT, Stage
from session import Session, Skipped
from torch import nn
from torch.distributed import pipelining

SCHEDULES = {"interleaved": "ScheduleInterleaved1F1B", "zb_h1": "ScheduleInterleavedZeroBubble",
             "interleaved_zb": "ScheduleInterleavedZeroBubble", "zbv": "ScheduleZBVZeroBubble"}


class ConnectedStage(pipelining.PipelineStage):
    def _get_init_p2p_neighbors_ops(self):
        return []  # torch 2.11: a first message to each neighbour; in zbv one is the rank itself, to which gloo can't send


class Pipelining(Session):
    """A process per rank; the loss is the mean over the microbatches."""

    takes_channels_last = False
    settle = 1  # the first step finds out what the stages send each other, and connects them

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        return len(strategy.stages_of_ranks)

    def stages(self) -> list[int]:
        return self.strategy.stages

    def build(self, stages: list[Stage], devices: list):
        schedule = getattr(pipelining, SCHEDULES[self.strategy.schedule], None)
        if schedule is None:
            raise Skipped(f"torch {torch.__version__} has no {SCHEDULES[self.strategy.schedule]}")
        microbatches, ranks = self.strategy.microbatches, len(self.strategy.stages_of_ranks)
        if self.strategy.schedule != "zbv" and microbatches % max(1, microbatches // ranks):
            raise Skipped(f"torch's schedule takes no {microbatches} microbatches on {ranks} ranks")
        for before, stage in zip([None, *stages], stages):
            if stage.takes != (before.gives if before else [MODEL_INPUT]):
                raise Skipped("torch.distributed.pipelining hands a stage's output to the next stage only")
        own = self.strategy.stages_of_ranks[self.rank]
        self.has_first, self.has_last = 0 in own, len(stages) - 1 in own
        if not self.has_first:
            self.x_rows = range(0)
        if not self.has_last:
            self.target_rows = range(0)
        self.layers = sum((stages[s].layers for s in own), [])
        self.module = nn.ModuleList(stages[s].module.to_empty(device=devices[0]) for s in own)
        parts = [ConnectedStage(module, s, len(stages), devices[0], group=self.group) for s, module in zip(own, self.module)]
        self.schedule = schedule(parts, microbatches, self.loss)

    def forward_and_backward(self, x, target):
        losses = []
        output = self.schedule.step(*[x] * self.has_first, target=target if self.has_last else None, losses=losses,
                                    return_outputs=self.model.timing == "epoch")
        return (torch.stack(losses).mean().detach(), output) if self.has_last else (None, None)
