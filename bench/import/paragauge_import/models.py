"""Models in plain PyTorch that the catalog has by the importer: `catalog:gpt_nano`."""

import torch
import torch.nn.functional as F
from torch import nn


def options(**given):
    """What the importer takes where its command line doesn't say otherwise. small: a builder of the same model with small
    sizes, on which is measured what is measured; large: not for a quick try."""
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
         description="GPT-2's architecture, small: 256 tokens, 64 positions, 4 layers of width 128, 4 heads", half_parameters=True)
def gpt_nano():
    return GPT(256, 64, 4, 128, 4)


@options(input=["f32[B,16,64]"], loss="mse_loss", optimizer="sgd:lr=0.01", global_batch=16, description="a perceptron on [batch, positions, features]")
def mlp():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


@options(input=["i64[B,16]<64"])
def gpt2_small():
    return GPT(64, 16, 12, 32, 4)


@options(input=["i64[B,1024]<50257"], optimizer="adamw:lr=0.0006", global_batch=32, large=True, small=gpt2_small,
         description="GPT-2 of 124,439,808 parameters (Radford et al. 2019), without dropout", half_parameters=True)
def gpt2():
    return GPT(50257, 1024, 12, 768, 12)


# -- Llama -----------------------------------------------------------------------------------------------------------------

class Rotary(nn.Module):
    """Angles of positions and frequencies (Su et al. 2021): their cosines and sines, [length, size of a head]."""

    def __init__(self, size, base):
        super().__init__()
        self.register_buffer("frequencies", base ** (-torch.arange(0, size, 2, device="cpu") / size), persistent=False)

    def forward(self, length):
        angles = torch.outer(torch.arange(length, device="cpu", dtype=torch.float32), self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.size = width // heads
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = (p(x).view(batch, length, -1, self.size).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, inner):
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(width, 1e-5), LlamaAttention(width, heads, kv_heads)
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(width, 1e-5), SwiGLU(width, inner)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Llama (Touvron et al. 2023; Llama 3: 2024): rotary positions, grouped heads, SwiGLU, a head of its own."""

    def __init__(self, vocabulary, layers, width, heads, kv_heads, inner, base):
        super().__init__()
        self.embed_tokens, self.rotary = nn.Embedding(vocabulary, width), Rotary(width // heads, base)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, kv_heads, inner) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width, 1e-5), nn.Linear(width, vocabulary, bias=False)
        for p in self.parameters():  # Llama's: normal, 0.02; norms begin as ones
            p.initial = (0, 0.02 * 3**0.5) if p.dim() == 2 else (1, 0)
            if p.dim() == 2 and not p.is_meta:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        cos, sin = (t.to(x.dtype) for t in self.rotary(ids.shape[1]))
        for block in self.layers:
            x = block(x, cos, sin)
        return self.lm_head(self.norm(x))


@options(input=["i64[B,64]<256"], optimizer="adamw:lr=0.001", global_batch=8,
         description="Llama's architecture, small: 256 tokens, 64 positions, 4 layers of width 128, 4 heads in 2 groups", half_parameters=True)
def llama_nano():
    return Llama(256, 4, 128, 4, 2, 352, 10000.0)


@options(input=["i64[B,16]<64"])
def llama3_8b_small():
    return Llama(64, 32, 32, 4, 2, 48, 500000.0)


@options(input=["i64[B,8192]<128256"], optimizer="adamw:lr=0.0003", global_batch=64, large=True, small=llama3_8b_small,
         description="Llama 3 8B: 8,030,261,248 parameters", half_parameters=True)
def llama3_8b():
    with torch.device("meta"):
        return Llama(128256, 32, 4096, 32, 8, 14336, 500000.0)


# -- BERT ------------------------------------------------------------------------------------------------------------------

class BertLayer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.output_norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.intermediate, self.act, self.output = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (p(x).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm(x + self.dense(y))
        return self.output_norm(x + self.output(self.act(self.intermediate(x))))


class Bert(nn.Module):
    """BERT's encoder with its masked language model's head (Devlin et al. 2018), without dropout and segments: every
    position is predicted."""

    def __init__(self, vocabulary, length, layers, width, heads):
        super().__init__()
        self.word, self.position, self.norm = nn.Embedding(vocabulary, width), nn.Embedding(length, width), nn.LayerNorm(width, 1e-12)
        self.layer = nn.ModuleList(BertLayer(width, heads, 4 * width) for _ in range(layers))
        self.transform, self.act, self.transform_norm = nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, 1e-12)
        self.decoder = nn.Linear(width, vocabulary)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        self.decoder.weight = self.word.weight

    def forward(self, ids):
        x = self.norm(self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layer:
            x = layer(x)
        return self.decoder(self.transform_norm(self.act(self.transform(x))))


@options(input=["i64[B,16]<64"])
def bert_base_small():
    return Bert(64, 32, 12, 32, 4)


@options(input=["i64[B,128]<30522"], optimizer="adamw:lr=0.0001", global_batch=32, large=True, small=bert_base_small,
         description="BERT-base, masked language model (Devlin et al. 2018)", half_parameters=True)
def bert_base():
    return Bert(30522, 512, 12, 768, 12)


# -- images and text ---------------------------------------------------------------------------------------------------------

class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) of two levels, with batch norm: a class for every pixel."""

    def __init__(self, width, classes):
        super().__init__()
        def pair(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                                 nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
        self.down1, self.down2, self.bottom, self.pool = pair(3, width), pair(width, 2 * width), pair(2 * width, 4 * width), nn.MaxPool2d(2)
        self.up2, self.right2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), pair(4 * width, 2 * width)
        self.up1, self.right1 = nn.ConvTranspose2d(2 * width, width, 2, 2), pair(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        y = self.right2(torch.cat([self.up2(self.bottom(self.pool(b))), b], 1))
        return self.head(self.right1(torch.cat([self.up1(y), a], 1)))


@options(input=["f32[B,3,64,64]"], optimizer="adam:lr=0.001", global_batch=8, description="a U-Net of two levels on images of 64: 4 classes of pixels")
def unet():
    return UNet(16, 4)


class TextClassifier(nn.Module):
    """Embedding, a bidirectional LSTM of two layers, the mean of its outputs, a linear layer."""

    def __init__(self, vocabulary, width, classes):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm, self.fc = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True), nn.Linear(2 * width, classes)

    def forward(self, ids):
        return self.fc(self.lstm(self.embedding(ids))[0].mean(dim=1))


@options(input=["i64[B,32]<1000"], optimizer="adam:lr=0.001", global_batch=16, description="a text classifier: 1000 words, 32 positions, an LSTM of width 64, 4 classes")
def lstm_classifier():
    return TextClassifier(1000, 64, 4)
