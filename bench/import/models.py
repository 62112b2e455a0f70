"""Models in plain PyTorch that the catalog has by the importer: `catalog:gpt_nano`."""

import torch
import torch.nn.functional as F
from torch import nn


def options(**given):
    """What the importer takes where its command line doesn't say otherwise."""
    def mark(build):
        build.import_options = given
        return build
    return mark


class Attention(nn.Module):
    """GPT-2's causal attention: one projection to queries, keys and values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.act, self.c_proj = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width), MLP(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019) without dropout: the head's weight is the embedding's."""

    def __init__(self, vocabulary, length, layers, width, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():  # GPT-2's: normal, 0.02; residual projections less
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if name.endswith("c_proj.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@options(input=["i64[B,64]<256"], optimizer="adamw:lr=0.001", global_batch=8,
         description="GPT-2's architecture, small: 256 tokens, 64 positions, 4 layers of width 128, 4 heads")
def gpt_nano():
    return GPT(256, 64, 4, 128, 4)


@options(input=["f32[B,16,64]"], loss="mse_loss", optimizer="sgd:lr=0.01", global_batch=16, description="a perceptron on [batch, positions, features]")
def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
