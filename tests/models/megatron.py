"""Layers of GPTs as Megatron has them, with dropout, whose activation memory is published (tests/sim/program/published_memory_test.cpp).

    paragauge import tests/models/megatron.py:eager_22b -o tests/models/eager_22b.json
"""

import torch
import torch.nn.functional as F
from paragauge_import.models import options
from torch import nn


class Layer(nn.Module):
    """Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", figure 2. fused: attention is
    one kernel, which keeps no probabilities; there without dropout, as the CPU's has none."""

    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc_1, self.act, self.fc_2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.drop_1, self.drop_2 = nn.Dropout(0.1), nn.Dropout(0.1)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(2, 3) * (self.heads / width) ** 0.5).masked_fill(future, -10000.0)
            y = F.dropout(torch.softmax(scores, -1), 0.1, self.training) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.drop_1(self.attention(self.ln_1(x)))
        return x + self.drop_2(self.fc_2(self.act(self.fc_1(self.ln_2(x)))))


class Megatron(nn.Module):
    def __init__(self, vocabulary, layers, width, heads, fused):
        super().__init__()
        self.words, self.layers = nn.Embedding(vocabulary, width), nn.ModuleList(Layer(width, heads, fused) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight
        for p in self.parameters():
            p.initial = (0, 0.02 * 3**0.5) if p.dim() == 2 else (1, 0)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@options(input=["i64[B,12]<64"])
def eager_small():
    return Megatron(64, 3, 64, 8, False)


@options(input=["i64[B,12]<64"])
def fused_small():
    return Megatron(64, 3, 64, 8, True)


@options(input=["i64[B,2048]<51200"], optimizer="adam:lr=0.0001", small=eager_small, description="three layers of Megatron's 22 B (tests)")
def eager_22b():
    with torch.device("meta"):
        return Megatron(51200, 3, 6144, 64, False)


@options(input=["i64[B,2048]<50304"], optimizer="adam:lr=0.0001", small=fused_small,
         description="three layers of Galvatron's gpt_hf, hidden4096_head32_seqlen2048 (tests)")
def fused_7b():
    with torch.device("meta"):
        return Megatron(50304, 3, 4096, 32, True)
