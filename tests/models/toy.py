"""What the toys of this folder are made of: `paragauge import tests/models/toy.py:gpt_toy -o tests/models/gpt_toy.json`."""

import torch
import torch.nn.functional as F
from paragauge_import.models import GPT, Llama, options
from torch import nn


@options(input=["i64[B,4]<7"], optimizer="adamw:lr=0.01", global_batch=8, description="GPT-2's architecture, tiny (tests)", half_parameters=True)
def gpt_toy():
    return GPT(7, 4, 2, 8, 4)


@options(input=["i64[B,4]<8"], optimizer="adamw:lr=0.01", global_batch=8, description="Llama's architecture, tiny (tests)", half_parameters=True)
def llama_toy():
    return Llama(8, 1, 8, 4, 4, 8, 10000)


class Quantised(nn.Module):
    """An autoencoder by the nearest of five codes (VQ-VAE, van den Oord et al. 2017), with a straight-through gradient and noise
    as wide as a detached branch and a draw say; samples that are centered together, complex numbers, a slice without an end."""

    def __init__(self):
        super().__init__()
        self.encode, self.code, self.decode = nn.Linear(6, 4), nn.Embedding(5, 4), nn.Linear(4, 3)
        self.phase = nn.Parameter(torch.linspace(0.1, 0.8, 4).view(2, 2))

    def forward(self, x):
        z = self.encode(x)
        z = z - z.mean(0, keepdim=True)
        nearest = self.code(torch.cdist(z, self.code.weight).argmin(1))
        straight = z + (nearest - z).detach()
        turned = torch.view_as_real(torch.view_as_complex(straight.view(-1, 2, 2)) * torch.view_as_complex(self.phase)).flatten(1)
        noise = z.detach().abs()[torch.randperm(len(z))] * (torch.randn_like(z) + 0.1 * torch.randint(1, 3, (len(z), 1)))
        return torch.cat([self.decode(turned + noise), (nearest - z.detach())[:, 1:]], 1)


@options(input=["f32[B,6]"], loss="mse_loss", optimizer="sgd:lr=0.1", global_batch=8, description="Detached branches, tiny (tests)")
def quantised_toy():
    return Quantised()


class Contrast(nn.Module):
    """Two views of a sample are alike and unlike all others' (SimCLR, Chen et al. 2020; CLIP's loss both ways), and their features
    uncorrelated (Barlow Twins, Zbontar et al. 2021): a loss of its own, for which samples are compared with each other."""

    def __init__(self):
        super().__init__()
        self.encode, self.project = nn.Linear(6, 6), nn.Linear(6, 4)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, one, other):
        a, b = (self.project(torch.tanh(self.encode(x))) for x in (one, other))
        alike = F.normalize(a) @ F.normalize(b).t() * self.temperature.exp()
        which = torch.arange(len(one))
        a, b = ((x - x.mean(0)) / (x.std(0) + 0.1) for x in (a, b))
        correlated = a.t() @ b / len(one)
        return F.cross_entropy(alike, which) + F.cross_entropy(alike.t(), which) + F.mse_loss(correlated, torch.eye(4, dtype=one.dtype))


@options(input=["f32[B,6]", "other=f32[B,6]"], optimizer="sgd:lr=0.1", global_batch=12, description="Samples compared with each other, tiny (tests)")
def contrast_toy():
    return Contrast()


class Mean(nn.Module):
    """A loss of its own, as a number: each part has that of its own samples, and what follows is of it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        return (self.second(torch.tanh(self.first(x))).square().mean() + 1).log()


@options(input=["f32[B,6]"], optimizer="sgd:lr=0.1", global_batch=12, description="A number as the loss, tiny (tests)")
def mean_toy():
    return Mean()


class Quantise(torch.autograd.Function):
    """To a few multiples of a step that is learned (Esser et al. 2020, Learned Step Size Quantization)."""

    @staticmethod
    def forward(ctx, x, step, low, high):
        ctx.save_for_backward(x / step)
        ctx.bounds = low, high
        return torch.round((x / step).clamp(low, high)) * step

    @staticmethod
    def backward(ctx, g):
        (x, ), (low, high) = ctx.saved_tensors, ctx.bounds
        inside = (x >= low) & (x <= high)
        return g * inside, (g * torch.where(inside, x.round() - x, x.clamp(low, high))).sum(0), None, None


class Reverse(torch.autograd.Function):
    """The gradient of an adversary (Ganin et al. 2016)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.5 * g


class Own(nn.Module):
    """Functions whose backward isn't the derivative of their forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.step = nn.Parameter(torch.full((6,), 0.1))

    def forward(self, x):
        x = Quantise.apply(self.first(x), self.step, -4, 3)
        return self.third(x) + Reverse.apply(self.third(torch.tanh(self.second(x))))


@options(input=["f32[B,6]"], loss="mse_loss", optimizer="sgd:lr=0.1", global_batch=12, description="Backwards of their own, tiny (tests)")
def own_toy():
    return Own()


@options(input=["i64[B,4]<8"])
def stubborn_llama():
    """A module that refuses to be played."""
    def refuse(*_):
        raise RuntimeError("not today")

    llama = llama_toy()
    llama.register_forward_pre_hook(refuse)
    return llama
