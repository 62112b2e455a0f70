"""Small networks as people write them in papers and tutorials, one of each kind, for trying the importer:

    PYTHONPATH=bench/import .venv/bin/python -m paragauge_import.reach --models tests/models/research.py
"""

import math

import torch
import torch.nn.functional as F
from paragauge_import.models import options
from torch import nn
from torch.nn.utils import parametrizations, prune

vector, rows = options(input=["f32[B,16]"]), options(input=["f32[B,12,16]"])
image, points, words = options(input=["f32[B,3,32,32]"]), options(input=["f32[B,20,3]"]), options(input=["i64[B,12]<50"])


class Net(nn.Module):
    """A module of these parts whose forward is the function, which gets the module first."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = (function,)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.function[0](self, x)


def mlp(*sizes, between=nn.ReLU):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), between())]
    return nn.Sequential(*layers[:-1])


def weight(*shape):
    return nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1]))


# -- representations ------------------------------------------------------------------------------------------------------

@vector
def simsiam():
    """Chen and He 2020: two views by one encoder with batch norm, targets without a gradient."""
    def forward(self, x):
        a, b = self.encoder(x), self.encoder(x.flip(1))
        return torch.stack([F.cosine_similarity(self.head(a), b.detach()), F.cosine_similarity(self.head(b), a.detach())], 1)
    return Net(forward, encoder=nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)), head=nn.Linear(8, 8))


@vector
def byol():
    """Grill et al. 2020: the target network isn't trained."""
    target = mlp(16, 32, 8).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            z = self.target(x)
        return F.normalize(self.head(self.online(x)), dim=1) - F.normalize(z, dim=1)
    return Net(forward, online=mlp(16, 32, 8), target=target, head=nn.Linear(8, 8))


@vector
def variational_autoencoder():
    """Kingma and Welling 2013."""
    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance))
    return Net(forward, encoder=mlp(16, 32, 16), decoder=mlp(8, 32, 16))


@vector
def vector_quantised():
    """van den Oord et al. 2017: the nearest code, straight through."""
    def forward(self, x):
        z = self.encoder(x)
        code = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        return torch.cat([self.decoder(z + (code - z).detach()), code - z.detach()], 1)
    return Net(forward, encoder=mlp(16, 8), codes=nn.Embedding(20, 8), decoder=mlp(8, 16))


@vector
def gumbel_softmax():
    """Jang et al. 2016: a hard choice with a soft gradient."""
    return Net(lambda self, x: self.after(F.gumbel_softmax(self.before(x), tau=0.5, hard=True)), before=nn.Linear(16, 8), after=nn.Linear(8, 4))


@vector
def mixture_density():
    """Bishop 1994."""
    def forward(self, x):
        h = torch.tanh(self.hidden(x))
        spread = F.softplus(self.spread(h)) + 1e-3
        likelihood = F.log_softmax(self.share(h), -1) - 0.5 * ((x[:, :1] - self.mean(h)) / spread) ** 2 - torch.log(spread)
        return torch.logsumexp(likelihood, -1, keepdim=True)
    return Net(forward, hidden=nn.Linear(16, 32), share=nn.Linear(32, 5), mean=nn.Linear(32, 5), spread=nn.Linear(32, 5))


@vector
def coupling_flow():
    """Dinh et al. 2016 with a mixing matrix of Kingma and Dhariwal 2018."""
    def forward(self, x):
        a, b = (x @ self.mix).chunk(2, 1)
        scale = torch.tanh(self.scale(a))
        log_det = scale.sum(1, keepdim=True) + torch.slogdet(self.mix)[1]
        return torch.cat([a, b * scale.exp() + self.shift(a), log_det], 1)
    return Net(forward, mix=nn.Parameter(torch.linalg.qr(torch.randn(16, 16))[0]), scale=mlp(8, 8), shift=mlp(8, 8))


@vector
def fake_quantised():
    """Jacob et al. 2017: weights and activations of eight bits in training."""
    def forward(self, x):
        h = self.first(x)
        step = h.detach().abs().max() / 127
        h = h + (torch.round(h / step) * step - h).detach()
        binary = self.weight + (self.weight.sign() * self.weight.abs().mean() - self.weight).detach()
        return F.linear(h, binary)
    return Net(forward, first=nn.Linear(16, 16), weight=weight(4, 16))


@vector
def spectral_and_weight_norm():
    """Miyato et al. 2018, Salimans and Kingma 2016, and a pruned layer."""
    net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(16, 32)), nn.LeakyReLU(0.2),
                        parametrizations.weight_norm(nn.Linear(32, 32)), nn.ELU(), nn.Linear(32, 4))
    prune.random_unstructured(net[4], "weight", 0.5)
    return net


@vector
def equilibrium():
    """Bai et al. 2019 in its simplest form: steps without a gradient, one with."""
    def forward(self, x):
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(5):
                z = torch.tanh(self.map(z) + x)
        return torch.tanh(self.map(z) + x)
    return Net(forward, map=nn.Linear(16, 16))


@vector
def neural_ode():
    """Chen et al. 2018, by fixed steps of Runge and Kutta."""
    def forward(self, x):
        for _ in range(3):
            k1 = self.field(x)
            k2 = self.field(x + 0.05 * k1)
            k3 = self.field(x + 0.05 * k2)
            x = x + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + self.field(x + 0.1 * k3))
        return x
    return Net(forward, field=mlp(16, 32, 16, between=nn.Tanh))


@vector
def hypernetwork():
    """Ha et al. 2016: each sample's own weights."""
    def forward(self, x):
        return torch.baddbmm(self.bias(x).unsqueeze(-1), self.weights(x).view(-1, 4, 16), x.unsqueeze(-1)).squeeze(-1)
    return Net(forward, weights=nn.Linear(16, 64), bias=nn.Linear(16, 4))


@vector
def kolmogorov_arnold():
    """Liu et al. 2024, with radial functions."""
    def forward(self, x):
        near = torch.exp(-((x.unsqueeze(-1) - torch.linspace(-2, 2, 8)) ** 2))
        return torch.einsum("big,oig->bo", near, self.curves) + self.base(F.silu(x))
    return Net(forward, curves=weight(4, 16, 8), base=nn.Linear(16, 4))


# -- sequences ------------------------------------------------------------------------------------------------------------

@rows
def torch_encoder():
    """PyTorch's own layers with the dropout that they have by default."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)


@words
def torch_translation():
    """PyTorch's nn.Transformer with a causal mask that isn't said to be one, and masks of padding."""
    def forward(self, ids):
        x, mask, padding = self.embedding(ids), self.model.generate_square_subsequent_mask(12), ids == 0
        return self.head(self.model(x, x, tgt_mask=mask, src_key_padding_mask=padding, tgt_key_padding_mask=padding))
    return Net(forward, embedding=nn.Embedding(50, 16), model=nn.Transformer(16, 2, 1, 1, 32, batch_first=True), head=nn.Linear(16, 50))


@words
def grouped_heads_with_slopes():
    """Press et al. 2021 (positions as slopes), Ainslie et al. 2023 (grouped heads), Zhang and Sennrich 2019 (RMS norm)."""
    def forward(self, ids):
        x = self.embedding(ids)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        q = self.q(y).view(-1, 12, 4, 4).transpose(1, 2)
        k, v = (t.view(-1, 12, 2, 4).transpose(1, 2).repeat_interleave(2, 1) for t in self.kv(y).chunk(2, -1))
        place = torch.arange(12)
        bias = -(place[:, None] - place).abs() * torch.tensor([0.5, 0.25, 0.125, 0.0625]).view(4, 1, 1)
        bias = bias.masked_fill(torch.ones(12, 12).triu(1).bool(), float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        return self.head(x + self.out(y))
    return Net(forward, embedding=nn.Embedding(50, 16), scale=nn.Parameter(torch.ones(16)), q=nn.Linear(16, 16), kv=nn.Linear(16, 16),
               out=nn.Linear(16, 16), head=nn.Linear(16, 50))


@rows
def rotated_by_complex_numbers():
    """Su et al. 2021 as Meta's Llama has it."""
    def forward(self, x):
        q = torch.view_as_complex(self.q(x).view(-1, 12, 4, 2, 2))
        angle = torch.outer(torch.arange(12).float(), torch.tensor([1.0, 0.01]))
        return self.out(torch.view_as_real(q * torch.polar(torch.ones_like(angle), angle).view(1, 12, 1, 2)).flatten(2))
    return Net(forward, q=nn.Linear(16, 16), out=nn.Linear(16, 16))


@rows
def linear_attention():
    """Katharopoulos et al. 2020: prefix sums."""
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        return torch.einsum("btd,btde,bt->bte", q, sums, 1 / torch.einsum("btd,btd->bt", q, k.cumsum(1)))
    return Net(forward, qkv=nn.Linear(16, 48))


@rows
def sliding_window():
    """Beltagy et al. 2020: five neighbours."""
    def forward(self, x):
        k, v = (F.pad(part(x), (0, 0, 2, 2)).unfold(1, 5, 1) for part in (self.k, self.v))
        return torch.einsum("btw,btdw->btd", torch.einsum("btd,btdw->btw", self.q(x), k).softmax(-1), v)
    return Net(forward, q=nn.Linear(16, 16), k=nn.Linear(16, 16), v=nn.Linear(16, 16))


@rows
def state_space():
    """Gu and Dao 2023: a selective scan, step by step."""
    def forward(self, x):
        step, (b, c), h, found = F.softplus(self.step(x)), self.bc(x).chunk(2, -1), x.new_zeros(x.shape[0], 16, 4), []
        for t in range(12):
            h = torch.exp(step[:, t, :, None] * -torch.exp(self.a)) * h + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
            found.append((h * c[:, t, None]).sum(-1))
        return torch.stack(found, 1) * F.silu(self.gate(x))
    return Net(forward, a=weight(16, 4), step=nn.Linear(16, 16), bc=nn.Linear(16, 8), gate=nn.Linear(16, 16))


@rows
def long_convolution():
    """Gu et al. 2021: a kernel as long as the sequence, by Fourier transforms."""
    def forward(self, x):
        u = x.transpose(1, 2)
        y = torch.fft.irfft(torch.fft.rfft(u, n=24) * torch.fft.rfft(self.kernel, n=24), n=24)[..., :12]
        return (y + u * self.skip[:, None]).transpose(1, 2)
    return Net(forward, kernel=weight(16, 12), skip=weight(16))


@rows
def experts():
    """Shazeer et al. 2017: the best two of four, all of them played."""
    def forward(self, x):
        shares, best = self.gate(x).softmax(-1).topk(2, -1)
        return sum((shares * (best == k)).sum(-1, keepdim=True) * expert(x) for k, expert in enumerate(self.experts))
    return Net(forward, gate=nn.Linear(16, 4), experts=nn.ModuleList(mlp(16, 32, 16, between=nn.SiLU) for _ in range(4)))


@rows
def attentive_decoder():
    """Bahdanau et al. 2014: an LSTM, and a cell that looks back at its states."""
    def forward(self, x):
        states, (h, c) = self.encoder(x)
        h, c, y, found = h[0], c[0], x[:, -1], []
        for _ in range(4):
            h, c = self.cell(y, (h, c))
            share = F.softmax((states @ self.key(h).unsqueeze(-1)).squeeze(-1), -1)
            y = self.out(torch.cat([h, (share.unsqueeze(1) @ states).squeeze(1)], -1))
            found.append(y)
        return torch.stack(found, 1)
    return Net(forward, encoder=nn.LSTM(16, 8, batch_first=True), cell=nn.LSTMCell(16, 8), key=nn.Linear(8, 8), out=nn.Linear(16, 16))


@rows
def recurrent_layers():
    """PyTorch's recurrent layers: both ways, stacked with dropout, plain."""
    def forward(self, x):
        y = self.plain(self.stacked(x)[0])[0]
        return self.out(torch.cat([y[:, -1], *self.both(x)[1][-2:]], -1))
    return Net(forward, stacked=nn.LSTM(16, 8, 2, dropout=0.5, batch_first=True), plain=nn.RNN(8, 8, batch_first=True),
               both=nn.GRU(16, 8, bidirectional=True, batch_first=True), out=nn.Linear(24, 4))


@options(input=["f32[B,1,64]"])
def wavenet():
    """van den Oord et al. 2016."""
    def forward(self, x):
        x, skip = self.first(x), 0
        for i, (wide, narrow) in enumerate(zip(self.wide, self.narrow)):
            a, b = wide(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = torch.tanh(a) * torch.sigmoid(b)
            skip, x = skip + h, x + narrow(h)
        return self.last(F.relu(skip))
    return Net(forward, first=nn.Conv1d(1, 8, 1), wide=nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4)),
               narrow=nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4)), last=nn.Conv1d(8, 1, 1))


@options(input=["f32[B,24,3]"])
def patched_series():
    """Nie et al. 2022: patches of a series, scaled by what it was."""
    def forward(self, x):
        mean, spread = x.mean(1, keepdim=True).detach(), (x.var(1, keepdim=True) + 1e-5).sqrt().detach()
        z = self.embed(((x - mean) / spread).permute(0, 2, 1).unfold(-1, 8, 4)) + self.places
        return self.head(self.encoder(z.flatten(0, 1)).reshape(-1, 3, 80)).permute(0, 2, 1) * spread + mean
    return Net(forward, embed=nn.Linear(8, 16), places=weight(5, 16), head=nn.Linear(80, 6),
               encoder=nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))


# -- images, points, graphs, tables ---------------------------------------------------------------------------------------

@image
def spatial_transformer():
    """Jaderberg et al. 2015."""
    def forward(self, x):
        turned = F.affine_grid(self.turn(F.adaptive_avg_pool2d(x, 4).flatten(1)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.head(F.max_pool2d(F.relu(self.conv(F.grid_sample(x, turned, align_corners=False))), 2).flatten(1))
    return Net(forward, turn=nn.Linear(48, 6), conv=nn.Conv2d(3, 4, 3), head=nn.Linear(900, 10))


@image
def fourier_operator():
    """Li et al. 2020: the lowest frequencies by weights, written into zeros."""
    def forward(self, x):
        x = self.lift(x)
        seen = torch.fft.rfft2(x)
        kept = torch.zeros_like(seen)
        kept[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", seen[:, :, :4, :4], torch.view_as_complex(self.weight))
        return self.project(F.gelu(torch.fft.irfft2(kept, s=(32, 32)) + x))
    return Net(forward, lift=nn.Conv2d(3, 8, 1), weight=weight(8, 8, 4, 4, 2), project=nn.Conv2d(8, 1, 1))


@image
def modulated_convolution():
    """Karras et al. 2019: each sample's own kernels, as groups."""
    def forward(self, x):
        kernels = self.weight * self.style(x.mean((2, 3))).view(-1, 1, 3, 1, 1)
        kernels = kernels * torch.rsqrt(kernels.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        y = F.conv2d(x.reshape(1, -1, 32, 32), kernels.flatten(0, 1), padding=1, groups=x.shape[0])
        return y.reshape(-1, 8, 32, 32)
    return Net(forward, weight=weight(8, 3, 3, 3), style=nn.Linear(3, 3))


@image
def denoising_unet():
    """Ho et al. 2020: group norms, attention at the bottom, a skip."""
    def forward(self, x):
        a = F.silu(self.norm1(self.conv1(x)))
        b = F.silu(self.norm2(self.conv2(F.avg_pool2d(a, 2))))
        t = b.flatten(2).transpose(1, 2)
        t = t + self.attention(t, t, t)[0]
        up = F.interpolate(t.transpose(1, 2).unflatten(2, (16, 16)), scale_factor=2)
        return self.last(torch.cat([a, up], 1))
    return Net(forward, conv1=nn.Conv2d(3, 8, 3, padding=1), norm1=nn.GroupNorm(4, 8), conv2=nn.Conv2d(8, 16, 3, padding=1),
               norm2=nn.GroupNorm(4, 16), attention=nn.MultiheadAttention(16, 2, batch_first=True), last=nn.Conv2d(24, 3, 1))


@image
def capsules():
    """Sabour et al. 2017: routing by agreement, which isn't differentiated."""
    def squash(s):
        square = s.pow(2).sum(-1, keepdim=True)
        return square / (1 + square) * s / (square.sqrt() + 1e-8)

    def forward(self, x):
        votes = torch.einsum("bnd,nkde->bnke", squash(self.conv(x).view(-1, 144, 8)[:, :32]), self.weight)
        logits = votes.new_zeros(x.shape[0], 32, 10)
        for last in (False, False, True):
            v = squash((logits.softmax(2).unsqueeze(-1) * votes).sum(1))
            if not last:
                logits = logits + (votes.detach() * v.unsqueeze(1).detach()).sum(-1)
        return v.norm(dim=-1)
    return Net(forward, conv=nn.Conv2d(3, 8, 9, 2), weight=weight(32, 10, 8, 4))


@image
def padded_and_pooled():
    """Every padding, poolings and activations that are seldom."""
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Hardswish(), nn.LocalResponseNorm(5),
                         nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect"), nn.Softplus(), nn.ReplicationPad2d(2),
                         nn.AvgPool2d(2, ceil_mode=True), nn.InstanceNorm2d(4, affine=True), nn.PReLU(4), nn.PixelUnshuffle(2))


@points
def point_net():
    """Qi et al. 2016."""
    def forward(self, x):
        x = x @ (self.turn(x.max(1)[0]).view(-1, 3, 3) + torch.eye(3))
        return self.head(self.features(x.transpose(1, 2)).amax(2))
    return Net(forward, turn=nn.Linear(3, 9), features=nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1)),
               head=nn.Linear(64, 5))


@points
def edge_convolution():
    """Wang et al. 2018: the four nearest points of each."""
    def forward(self, x):
        nearest = torch.cdist(x, x).topk(4, largest=False)[1]
        found = torch.gather(x.unsqueeze(1).expand(-1, 20, -1, -1), 2, nearest.unsqueeze(-1).expand(-1, -1, -1, 3))
        edges = torch.cat([x.unsqueeze(2).expand_as(found), found - x.unsqueeze(2)], -1)
        return self.head(F.relu(self.edge(edges)).amax(2).amax(1))
    return Net(forward, edge=nn.Linear(6, 16), head=nn.Linear(16, 5))


@points
def messages():
    """Gilmer et al. 2017 on a graph that is always the same: messages along edges, summed where they end."""
    def forward(self, x):
        sent = F.relu(self.message(torch.cat([x[:, self.edges[0]], x[:, self.edges[1]]], -1)))
        return self.update(torch.cat([x, torch.zeros(x.shape[0], 20, 16).index_add(1, self.edges[1], sent)], -1))
    return Net(forward, edges=torch.randint(0, 20, (2, 50)), message=nn.Linear(6, 16), update=nn.Linear(19, 4))


@options(input=["f32[B,6]"])
def radiance_field():
    """Mildenhall et al. 2020."""
    def forward(self, x):
        angles = x[..., None] * 2.0 ** torch.arange(4)
        encoded = torch.cat([angles.sin(), angles.cos()], -1).flatten(1)
        h = F.relu(self.second(torch.cat([self.first(encoded), encoded], -1)))
        return torch.cat([torch.sigmoid(self.color(h)), F.relu(self.density(h))], -1)
    return Net(forward, first=mlp(48, 64), second=nn.Linear(112, 64), color=nn.Linear(64, 3), density=nn.Linear(64, 1))


@options(input=["i64[B,8]<100"])
def factorisation_machine():
    """Guo et al. 2017, and Naumov et al. 2019's bags of rows: one number per sample."""
    def forward(self, ids):
        rows = self.factors(ids)
        pairs = 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.first(ids) + pairs + self.deep(rows.flatten(1))).squeeze(1)
    return Net(forward, factors=nn.Embedding(100, 8), first=nn.EmbeddingBag(100, 1, mode="sum"), deep=mlp(64, 16, 1))
