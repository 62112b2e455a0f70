"""What the strategies' sessions have in common. Every session has

    layers                  the (node, module) pairs whose parameters live in this process
    storages                the memory of what lives in it between steps, and the bytes of each
    reaches_on              its steps reach into each other: those of a request are played without a common start each
    period                  of so many steps, which differ, the mean counts
    settle                  steps after which its step takes as long as all later ones
    share                   how much of the global batch its loss is of
    draws                   its module draws random numbers, which aren't ours: its losses aren't, either
    initialise(seed)        gives its parameters and buffers their first values
    inputs, targets(seed)   its part of the batch
    begin(), end()          around the steps of a request: nothing of earlier ones stays
    step(x, target)         one training step; the loss and what it is of, or None where they aren't known
"""

from functools import partial
from types import SimpleNamespace

import imported
import initial
import torch
import torch.nn.functional as F
from models import DTYPES, LAYERS, OneRanksNorm, Stage, make_stages
from torch import nn

LOSSES = {"mse_loss": F.mse_loss, "cross_entropy": F.cross_entropy,
          "mean_loss": lambda prediction, _: prediction.mean(), "sum_loss": lambda prediction, _: prediction.sum()}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Skipped(Exception):
    """Plain PyTorch has no such step, or can't run it here; the text is the reason."""


def check(model: SimpleNamespace):
    layers = [("layer", node.op, LAYERS) for node in model.nodes[:-1]]
    if imported.is_imported(model):
        layers = []  # its module has its own
        try:
            imported.check(model.file)
        except imported.NoModule as reason:
            raise Skipped(str(reason)) from None
    for what, kind, known in [("optimizer", model.optimizer.kind, OPTIMIZERS), ("loss", model.loss, LOSSES), *layers]:
        if kind not in known:
            raise Skipped(f"the peers (bench/peers) don't have the {what} '{kind}'; they have {', '.join(known)}")


def optimizer_kind(model: SimpleNamespace, faster: str) -> partial:
    """Its class with all but the parameters. `faster`: fused or foreach; if empty the implementation that torch chooses by
    itself: on a CPU a loop over the parameters."""
    options = {**vars(model.optimizer), **({faster: True} if faster else {})}
    kind = OPTIMIZERS[options.pop("kind")]
    if "beta1" in options:
        options["betas"] = options.pop("beta1"), options.pop("beta2")
    return partial(kind, **options)


def loss_of_batch(model: SimpleNamespace, losses: list[tuple]):
    """Of (share, loss) pairs: a mean, weighted by how many samples each is of; or a sum, if the model's loss is one."""
    return (sum(loss if model.loss == "sum_loss" else share * loss for share, loss in losses) /
            sum(share for share, _ in losses))


def memory_of(tensor):
    """A dense tensor's values as they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


class Session:
    """One process, one device: the whole global batch by the module as it is."""

    reaches_on = False
    period = 1
    settle = 0
    takes_channels_last = True
    faster_updates = "fused"  # than PyTorch's default
    replica = 0
    share = 1
    optimizer = scaler = None
    resident_peak_bytes = None  # of its first steps

    def __init__(self, subject: SimpleNamespace, channels_last: bool, rank: int, devices: list, groups: dict,
                 cores: list[int]):
        self.model, self.strategy, self.faster = subject.model, subject.strategy, self.faster_updates * subject.best
        self.channels_last, self.rank, self.groups, self.cores = channels_last, rank, groups, cores
        self.x_device, self.target_device = devices[0], devices[-1]
        self.x_rows = self.target_rows = range(self.model.global_batch)  # of the global batch: what this rank needs
        self.ranks = self.processes(self.strategy)
        self.group = groups.get(tuple(range(self.ranks)))
        self.data, self.loss, self.draws = initial, LOSSES[self.model.loss], False
        if imported.is_imported(self.model):
            self.data, self.loss, self.draws = imported, imported.loss_of(self.model), imported.draws(self.model)
        stages = make_stages(self.model, self.stages(), channels_last)
        self.find_group([part for stage in stages for part in stage.module.modules() if isinstance(part, nn.SyncBatchNorm)])
        self.build(stages, devices)
        self.storages = [(tensor.untyped_storage(), tensor.untyped_storage().nbytes()) for tensor in self.tensors()]

    @classmethod
    def processes(cls, strategy: SimpleNamespace) -> int:
        """Those that compute."""
        return 1

    @classmethod
    def lines(cls, strategy: SimpleNamespace) -> list[tuple[int, ...]]:
        """Those that talk to each other: all processes, and maybe some of them."""
        return [tuple(range(cls.processes(strategy)))]

    @classmethod
    def places(cls, strategy: SimpleNamespace) -> int:
        """Of how many devices, or cores, a process has modules."""
        return 1

    def stages(self) -> list[int]:
        """Of every node."""
        return [0] * len(self.model.nodes)

    def find_group(self, norms: list[nn.SyncBatchNorm]):
        """Of the ranks whose samples they see."""
        for norm in norms:
            if getattr(self.strategy, "replicas", 1) == 1:
                norm.__class__ = OneRanksNorm
            elif self.x_device.type == "cpu":
                raise Skipped("torch.nn.SyncBatchNorm runs on GPUs only")
            else:
                norm.process_group = self.group

    def build(self, stages: list[Stage], devices: list):
        stage, = stages
        self.layers = stage.layers
        self.module = stage.module.to_empty(device=devices[0])

    def tensors(self):
        """What lives between steps; of DTensors this rank's part."""
        return [getattr(tensor, "_local_tensor", tensor) for tensor in (*self.module.parameters(), *self.module.buffers())]

    def initialise(self, seed: int):
        initial.initialise(self.layers, seed)

    def inputs(self, seed: int):
        return self.layout(self.data.inputs(self.model, self.x_rows, seed, self.x_device))

    def targets(self, seed: int):
        return self.data.targets(self.model, self.target_rows, seed, self.target_device)

    def make_batch(self, x, target, seed: int, step: int):
        """In the place of what there was: the host's work where timing=tutorial."""
        data_seed = initial.data_seed(seed, step, self.replica)
        if self.x_rows:
            x = self.layout(initial.make_input(self.model, len(self.x_rows), data_seed, self.x_device))
        if self.target_rows:
            target = initial.make_target(self.model, len(self.target_rows), data_seed, self.target_device)
        return x, target

    def layout(self, x):
        if isinstance(x, tuple):
            return tuple(self.layout(tensor) for tensor in x)
        return x.to(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def wire(self, tensor):
        """The tensor as another process has it in memory: transfers take contiguous ones."""
        if self.channels_last and tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        return tensor.contiguous()

    def unwire(self, tensor):
        return tensor.permute(0, 3, 1, 2) if self.channels_last and tensor.dim() == 4 else tensor

    def settings(self) -> str:
        """What isn't PyTorch's default."""
        return ", ".join([f"{self.faster} updates"] * bool(self.faster) + ["channels_last"] * self.channels_last)

    def begin(self):
        parameters = list(self.module.parameters())
        if parameters:  # else there is nothing to update
            self.optimizer = self.make_optimizer(parameters)
        if self.model.loss_scale:
            self.scaler = torch.amp.GradScaler(self.x_device.type, init_scale=self.model.loss_scale)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return optimizer_kind(self.model, self.faster)(parameters)

    def end(self):
        self.module.zero_grad(set_to_none=True)
        self.optimizer = self.scaler = None

    def step(self, x, target):
        """The loss and what it is of; None on ranks that haven't got them."""
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        loss, output = self.forward_and_backward(x, target)
        if self.optimizer:
            self.update()
        return loss, output

    def update(self):
        if self.model.max_grad_norm:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.module.parameters(), self.model.max_grad_norm)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def forward_and_backward(self, x, target):
        half = self.model.half
        casts = half and not hasattr(self.strategy, "half_parameters")  # else its parameters are in half precision
        with torch.autocast(self.x_device.type, DTYPES[half] if casts else None, enabled=bool(casts)):
            output = self.module(x)
        loss = self.loss(output.float() if half else output, target)  # as autocast has losses; on GPUs not cross_entropy (loss.cpp)
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return loss.detach(), output

    @torch.no_grad()
    def read_result(self, loss, output, target):
        """The loss and the number of correct predictions, on the host."""
        classes = target if target.dim() == 1 else target.argmax(1)
        return loss.item(), (output.argmax(1) == classes).sum().item()
