"""The importer (bench/import): what becomes of values: written in place or through views, detached, constant, with a backward
of the module's own.

    .venv/bin/python tests/bench/import_values_test.py [NAME…]        # exit status 0: all passed; 77: no torch here
"""

import sys

from importing import bodies_of, imported, module, refused, same

import torch
import torch.nn.functional as F
from paragauge_import import spec
from run_functions import functions_of, run_functions
from torch import nn


def test_what_is_written_through_views():
    def forward(self, x):
        y = self.a(x)
        z = y.view(-1, 2, 4)
        z[:, 0] = z[:, 1] * 2
        z.mul_(3)
        y[:, 3:5].add_(1)
        return self.b(y)
    file, _ = imported(module(forward))
    same([n["name"] for n in file["nodes"]], ["a", "mul", "select_scatter", "mul_2", "add", "slice_scatter", "b"])

    def read_before_and_after(self, x):
        y = self.a(x)
        z = y.view(-1, 2, 4)
        before = z.sum(1)
        y.mul_(2)
        return before * z[:, 0]
    file, _ = imported(module(read_before_and_after))
    same([(n["name"], n["inputs"]) for n in file["nodes"]], [("a", ["input"]), ("sum", ["a"]), ("mul", ["a"]), ("mul_2", ["sum", "mul"])])


def test_frozen_and_detached():
    frozen = module(lambda self, x: self.b(self.a(x)))
    frozen.a.requires_grad_(False)
    file, notes = imported(frozen)
    same([c["frozen"] for c in file["constants"].values()], ["a.weight", "a.bias"])
    assert "2 parameters are frozen: a.bias, a.weight" in notes, notes
    file, notes = imported(module(lambda self, x: self.b(self.a(x).sin().detach()) + self.c(x)))
    assert "2 parameters get no gradient (detach, no_grad, integers) and count as frozen: a.bias, a.weight" in notes, notes

    def forward(self, x):
        with torch.no_grad():
            y = self.a(x)
        return self.b(y)
    file, notes = imported(module(forward))
    assert "2 parameters get no gradient (detach, no_grad, integers) and count as frozen: a.bias, a.weight" in notes, notes
    same(file["bodies"]["linear/1"]["backward"], [])

    # Of what has another way to the loss only that branch is without a gradient.
    def forward(self, x):
        y = self.a(x)
        return self.b(y) - 2 * y.sin().detach() + y * y.detach()
    file, notes = imported(module(forward))
    same(notes, ["2 parameters aren't read: c.bias, c.weight"])
    same([file["bodies"][n["body"]]["backward"] for n in file["nodes"] if n["name"] == "sin"], [[]])
    own = [b for b in file["bodies"].values() if "t0=detach(i0)" in b["forward"] and b["backward"]]
    same([(b["inputs"], b["backward"]) for b in own], [(["f32[B,8]"], ["gi0=mul.Tensor(g,i0)"])])


def test_buffers_that_a_step_writes():
    normal = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    _, notes = imported(module(lambda self, x: self.b(self.normal(x)), normal=normal))
    assert any(n.startswith("2 buffers are written: normal.parametrizations.weight.0._u, ") and
               n.endswith("; here every step begins with their first values") for n in notes), notes


def test_what_data_is_written_to():
    """.data: what it holds is changed, the gradient's way doesn't see it."""
    def masked(self, x):
        y = self.a(x)
        y.data.masked_fill_(torch.arange(8) > 5, -2.0)
        return self.b(y).softmax(1)
    imported(module(masked))

    def normalized(self, x):  # as spectral norms of GANs do
        self.v.data = F.normalize(self.b.weight.t().data.mv(self.u.data), dim=0)
        self.u.data = F.normalize(self.b.weight.data.mv(self.v.data), dim=0)
        return self.a(x) @ (self.b.weight / self.u.dot(self.b.weight.mv(self.v)))
    fixed = {name: nn.Parameter(torch.linspace(0.1, 1, 8), requires_grad=False) for name in "uv"}
    _, notes = imported(module(normalized, **fixed))
    assert "2 buffers are written: u, v; here every step begins with their first values" in notes, notes


def test_writes_that_are_copies_or_through_a_diagonal():
    file, _ = imported(nn.Sequential(nn.Linear(8, 8), nn.Conv1d(4, 8, 3, padding=1, padding_mode="circular")), ["f32[B,4,8]"])
    for body in bodies_of(file, "pad"):
        assert not any("=copy(" in line for line in body["forward"] + body["backward"]), body  # which has no derivative
    def decorrelated(self, x):  # Barlow Twins
        c = self.a(x).t() @ self.b(x)
        return torch.diagonal(c).add_(-1).pow_(2).sum()
    imported(module(decorrelated), loss="mean_loss")


def test_what_is_written_is_a_copy():
    """Of a parameter, a buffer or a constant: nothing is lost."""
    def forward(self, x):
        w, table = self.b.weight.clone(), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
        w[:, 0], table[0] = 0, 3
        return self.a(x) @ w * table
    _, notes = imported(module(forward))
    same(notes, ["3 parameters aren't read: b.bias, c.bias, c.weight"])
    expanded = module(lambda self, x: self.a(x).masked_fill(self.mask, 0))
    expanded.register_buffer("mask", torch.zeros(1, dtype=torch.bool).expand(8))
    imported(expanded)

    def forward(self, x):
        with torch.no_grad():
            self.b.weight.mul_(0.9)
        return self.b(x)
    same(refused(module(forward)).split(" at ")[0], "a write into the parameter 'b.weight' (change what is read of it instead)")


def test_what_is_written_without_gradients():
    """The value changes, the gradient goes on to what was there before."""
    def clamped(self, x):
        h = self.a(x)
        with torch.no_grad():
            h.clamp_(-0.5, 0.5)
            h[:, :2] = 0
        return self.b(h)
    _, notes = imported(module(clamped))
    same(notes, ["2 parameters aren't read: c.bias, c.weight"])


def test_copies_and_permuted_views_that_are_written():
    def shuffled(self, x):
        y = x.view(len(x), 2, 4, 4).transpose(1, 2).reshape(len(x), 8, 4)  # a copy
        return self.a((x + F.relu(y, inplace=True)).flatten(1)[:, :8])
    imported(module(shuffled), ["f32[B,8,4]"])

    def contiguous(self, x):
        y = x.unflatten(1, (2, 4)).transpose(1, 2).contiguous()
        y += 1
        return self.a(x + y.flatten(1))
    imported(module(contiguous))

    def moved(self, x):
        y = self.a(x).unflatten(1, (2, 4))
        y.movedim(1, -1)[..., 0] = 0
        y.swapaxes(1, 2)[:, 1] *= 2
        return self.b(y.flatten(1))
    imported(module(moved))


def test_frozen_masks_and_indices_have_their_values():
    def forward(self, x):
        return (x @ self.mask.softmax(-1))[:, self.index] + self.a(x)[:, :4]
    mask, index = (nn.Parameter(t, requires_grad=False) for t in (nn.Transformer.generate_square_subsequent_mask(8), torch.tensor([0, 0, 0, 7])))
    file, _ = imported(module(forward, mask=mask, index=index))
    same(file["constants"]["c1"]["values"], {"list": [0, 0, 0, 7]})
    same(file["constants"]["c0"]["values"]["runs"][:2], [[0, 1], ["-inf", 7]])


def test_complex_numbers_inside_a_body():
    def forward(self, x):
        spectrum = torch.fft.rfft(self.a(x))
        kept = torch.zeros_like(spectrum)
        kept[:, :3] = spectrum[:, :3] * torch.view_as_complex(self.w)
        return torch.fft.irfft(kept, n=8) + self.b(x)
    file, notes = imported(module(forward, w=nn.Parameter(torch.randn(3, 2))))
    assert any(n.startswith("no half precision: Unsupported dtype BFloat16 at module '(top)' (Own)") for n in notes), notes
    same([n["name"] for n in file["nodes"]], ["a", "fft_irfft", "b", "add"])
    assert all("c64" not in spec for b in file["bodies"].values() for spec in (*b["inputs"], b["output"], *b["saved"]))
    turn = imported(module(lambda self, x: torch.view_as_real(
        torch.view_as_complex(self.a(x).view(-1, 4, 2)) * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(1)))[0]
    same([c["shape"] for c in turn["constants"].values()], [[4, 2]])
    own = module(lambda self, x: torch.fft.fft(self.a(x) * self.turn).real)
    own.register_buffer("turn", torch.polar(torch.ones(8), torch.arange(8.0)))
    same([c["shape"] for c in imported(own)[0]["constants"].values()], [[8, 2]])

    def forward(self, x):
        spectrum = torch.fft.rfft(self.a(x))
        kept = torch.zeros_like(spectrum)
        kept[:, 0] = spectrum[:, 0]
        kept[:, -2:] = spectrum[:, 1:3]
        return torch.fft.irfft(kept, n=8)
    imported(module(forward))

    def forward(self, x):
        spectrum = torch.fft.rfft(self.a(x))
        kept = torch.zeros_like(spectrum)
        kept[:, ::2] = spectrum[:, :3]
        return torch.fft.irfft(kept, n=8)
    same(refused(module(forward)).split(" at ")[0], "a write through slice of complex numbers")
    same(refused(module(lambda self, x: (self.a(x) * 1j).real)).split(" at ")[0],
         "a complex number 1j: torch.view_as_complex makes it of two real ones")


def test_a_part_of_what_a_layer_gives():
    """The last step of a recurrent layer's output lies in the memory of all."""
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(8, 4, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0][:, -1]
    imported(Last(), ["f32[B,3,8]"])


def test_of_parameters_and_constants():
    def standardised(self, x):
        w = self.a.weight
        return F.linear(x, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5), self.a.bias)
    file, _ = imported(module(standardised))
    same([n["inputs"] for n in file["nodes"]][0], [])
    assert all(body["rows"] for body in file["bodies"].values())
    # A mask whose rows are alike is written once; what runs with the batch is made in the body, which can't be cut.
    mask = imported(module(lambda self, x: self.a(x).masked_fill(torch.ones(x.shape[0], 8, dtype=torch.bool).triu(20), float("-inf")).exp()))[0]
    same(mask["constants"], {"c0": {"dtype": "bool", "shape": [1, 8], "values": {"full": 0}}})
    same([b["rows"] for b in mask["bodies"].values()], [True, True])
    # Runs of numbers that f32 doesn't have.
    runs = imported(module(lambda self, x: self.a(x) * torch.arange(1, 3, dtype=torch.float32).div(10).repeat_interleave(4)))[0]
    same(runs["constants"]["c0"]["values"], {"runs": [[0.1, 4], [0.2, 4]]})
    place = imported(module(lambda self, x: self.a(x) * torch.arange(x.shape[0])[:, None]))[0]
    same([b["rows"] for b in place["bodies"].values()], [False])
    same(bodies_of(place, "mul")[0]["forward"], ["t0=arange(B)", "t1=unsqueeze(t0,1)", "o=mul.Tensor(i0,t1)"])
    # Without statistics of its own it isn't the op batch_norm, and sees samples together.
    norm = imported(module(lambda self, x: self.b(self.norm(self.a(x))), norm=nn.BatchNorm1d(8, track_running_stats=False)))[0]
    same(norm["nodes"][1]["inputs"], ["a"])
    same(norm["bodies"]["batch_norm/1"]["rows"], False)


def test_what_a_run_gives_otherwise_than_its_trace_is_copied():
    # im2col's backward is a part of a larger tensor, a convolution's gradient lies as its permuted input did.
    file, _ = imported(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Unfold(3, padding=1)), ["f32[B,3,8,8]"])
    assert bodies_of(file, "im2col")[0]["backward"][-1].startswith("gi0=clone("), bodies_of(file, "im2col")
    file, _ = imported(module(lambda self, x: self.conv(self.a(x).permute(0, 3, 1, 2)), conv=nn.Conv2d(8, 4, 3, padding=1)), ["f32[B,4,4,8]"])
    # A view of what a kernel gives, where its strides don't allow one: a batch norm of transposed positions.
    file, _ = imported(module(lambda self, x: self.c(self.norm(self.a(x).view(-1, 5, 8).transpose(1, 2)).transpose(1, 2).reshape(len(x), 3, -1)),
                              norm=nn.BatchNorm1d(8), c=nn.Linear(40, 4)), ["f32[B,15,8]"])
    assert any("=reshape(" in line for body in file["bodies"].values() for line in body["forward"]), file["bodies"]


def test_views_that_are_read_without_gradients():
    """Made where gradients are on, read first where they are off: they keep theirs."""
    def forward(self, x):
        part = self.a(x)[:, :4]
        with torch.no_grad():
            largest = part.abs().amax(1, keepdim=True)
        return part / (largest + 1)
    _, notes = imported(module(forward))
    assert not [n for n in notes if "get no gradient" in n and "a.weight" in n], notes


def test_names_of_constants():
    """That no module and no parameter has."""
    class Taken(nn.Module):
        def __init__(self):
            super().__init__()
            self.c0, self.c1 = nn.Parameter(torch.ones(8)), nn.Linear(8, 8)

        def forward(self, x):
            return self.c1(x * self.c0) * torch.tensor([0.1, 0.5, 0.9, 1, 2, 3, 4, 5]) + torch.tensor([2.5, 0.5, 0.9, 1, 2, 3, 4, 5])
    file, _ = imported(Taken())
    same(sorted(file["constants"]), ["c2", "c3"])
    made = module(lambda self, x: self.a(x) * self.target, target=nn.Parameter(torch.ones(8)))
    same(refused(made), "a parameter is called 'target', which is what the batch is called here: it needs another name")


def test_what_only_a_run_knows():
    """The sizes of lazy layers, and whether a distribution's arguments may be so."""
    imported(nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)))

    def forward(self, x):
        noise = torch.distributions.Normal(self.a(x), F.softplus(self.b(x)))
        return self.c(noise.rsample()) + noise.log_prob(x) + torch.multinomial(self.a(x).softmax(-1), 1)
    imported(module(forward))


def test_values_that_constants_have():
    def asks(self, x):
        mask = torch.ones(x.shape[0], 8, dtype=torch.bool)
        mask[:, 2:4] = False
        self.seen += 1  # a buffer, whose first value every step begins with
        y = self.a(x) if mask.any() and not mask.all() and self.seen == 1 else x
        assert torch.equal(mask, torch.ones_like(mask).logical_and(mask)) and int(self.table[3]) == 3, "never"
        return self.b(y).masked_fill(~mask, self.table.max().item())
    made = module(asks, table=torch.arange(8))
    made.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    file, notes = imported(made)
    same(["1 buffer is written: seen; here every step begins with its first values" in notes, bodies_of(file, "masked_fill")[0]["forward"][-1]],
         [True, "o=masked_fill.Scalar(i0,t0,7)"])

    def by_masks(self, x):  # of a buffer, of what is computed; read and written
        chosen = torch.zeros(8, dtype=torch.bool)
        chosen.view(2, 4)[1] = True
        y = self.a(x)
        z = torch.zeros(x.shape[0], 8, dtype=x.dtype)
        z[:, self.every_second] = y[:, chosen]
        return self.b(z[:, self.every_second.nonzero().squeeze(-1).repeat(2)[:self.every_second.sum() * 2]])
    imported(module(by_masks, every_second=torch.tensor([True, False] * 4)))

    def sizes(self, x):  # of a table of them, as of several maps of features
        parts = self.a(x).split([h * w for h, w in torch.tensor([[2, 2], [1, 4]])], 1)
        return torch.cat([parts[1], parts[0].repeat_interleave(torch.tensor([1, 2, 1, 2]), 1), parts[1][:, torch.tensor([1, 0], dtype=torch.uint8)
                          .repeat(2)]], 1)[:, torch.where(torch.arange(12) > 3)[0]]
    imported(module(sizes))

    def of_frozen(self, x):  # a parameter that isn't trained; a condition of bytes
        y = self.a(x)[:, self.kept > 0]
        bytes = torch.tensor([[1, 0, 0, 1]], dtype=torch.uint8)
        return torch.where(bytes, y, -y) @ F.one_hot(torch.tensor([1, 0, 3, 2])).to(x.dtype)
    kept = nn.Parameter(torch.tensor([1., -1.]).repeat(4), requires_grad=False)
    imported(module(of_frozen, kept=kept))

    # What is written with what isn't known: through a view, .data, out=; and what is drawn.
    def through_a_view(self, x, mask):
        mask.view(-1).copy_(x[:1].reshape(-1))

    def through_data(self, x, mask):
        mask.data.copy_(x[:1])

    def out(self, x, mask):
        torch.add(x[:1], 1, out=mask)

    def drawn(self, x, mask):
        mask.copy_(F.rrelu(mask - 2, training=True))

    def statistics(self, x, mask):
        F.batch_norm(self.a(x), mask[0], torch.ones(8), training=True)

    for write in (through_a_view, through_data, out, drawn, statistics):
        def forward(self, x, write=write):
            mask = torch.ones(1, 8)
            with torch.no_grad():
                write(self, x, mask)
            return self.a(x) if mask.sum() > -3 else self.b(x)
        assert refused(module(forward)).startswith("control flow asks for a tensor's values"), write


def test_in_place_operators():
    def forward(self, x):
        y = self.a(x)
        mask = y > 0
        mask &= y < 1
        mask |= y < -1
        y[mask] = 0.5
        y += 1
        return self.b(y.clamp_(min=0))
    imported(module(forward))


def test_columns_that_read_the_input_and_others():
    """Two layers alike but for the gradient of what they read: the first reads the model's input."""
    mlp = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    file, _ = imported(module(lambda self, x: self.mlp(self.mlp(x)), mlp=mlp))
    grads = [sorted(c.split("=")[0] for c in file["bodies"][n["body"]]["backward"] if c.startswith("gi")) for n in file["nodes"]]
    same(grads, [[], ["gi0"], ["gi0"], ["gi0"], ["gi0"], ["gi0"]])


class Reversed(torch.autograd.Function):
    """Of adversarial domain adaptation."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.alpha, None


class Sign(torch.autograd.Function):
    """Of binary networks: the gradient goes straight through where it isn't clipped."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return torch.sign(x.data)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        g = g.clone()
        g[x.gt(1)] = 0
        g[x < -1] = 0
        return g.data


class Normalized(torch.autograd.Function):
    """A layer norm over channels, whose parameters get gradients, too."""

    @staticmethod
    def forward(ctx, x, weight, eps=1e-6):
        variance = (x - x.mean(1, keepdim=True)).pow(2).mean(1, keepdim=True)
        y = (x - x.mean(1, keepdim=True)) / (variance + eps).sqrt()
        ctx.eps = eps
        ctx.save_for_backward(y, variance, weight)
        return y * weight

    @staticmethod
    def backward(ctx, g):
        y, variance, weight = ctx.saved_tensors
        inner = g * weight
        inner = inner - y * (inner * y).mean(1, keepdim=True) - inner.mean(1, keepdim=True)
        return inner / torch.sqrt(variance + ctx.eps), (g * y).sum(0), None


class Largest(torch.autograd.Function):
    """Two results, one of them without a gradient."""

    @staticmethod
    def forward(x, factor):
        return x * factor, x.argmax(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.factor * torch.tensor(0.5), None


def test_functions_with_a_backward_of_their_own():
    half = {}
    for forward, bodies in ((lambda self, x: self.b(Reversed.apply(self.a(x), 0.25)), ["own_Reversed/1"]),
                            (lambda self, x: self.b(Sign.apply(self.a(x))), ["own_Sign/1"]),
                            (lambda self, x: Normalized.apply(Normalized.apply(self.a(x), self.b.bias), self.c.bias), ["own_Normalized/1"]),
                            (lambda self, x: Reversed.apply(Reversed.apply(self.a(x), 2), 3), ["own_Reversed_2/1", "own_Reversed_2/2"]),
                            (lambda self, x: (lambda y, at: self.b(y) * at.unsqueeze(-1))(*Largest.apply(self.a(x), 3)), ["own_Largest/1"])):
        file, notes = imported(module(forward))
        same(list(file["bodies"]), bodies)
        assert not any("autograd.Function" in n for n in notes), notes
        half[bodies[0]] = file.get("half")
    same({name: of for name, of in half.items() if isinstance(of, str)}, {})

    # By a name that was taken before; with sizes of the batch.
    reverse = Reversed.apply

    class Repeated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, shape):
            return x.sum(1, keepdim=True).expand(shape).contiguous(), None

        @staticmethod
        def backward(ctx, g, _):
            return g.sum(1, keepdim=True).expand(g.shape) * 2, None
    imported(module(lambda self, x: self.b(reverse(Repeated.apply(self.a(x), x.shape)[0], 0.5))))

    class Normed(torch.autograd.Function):
        """Whose backward sees samples together, though its forward doesn't."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g / g.norm()
    file, _ = imported(module(lambda self, x: self.b(Normed.apply(reverse(self.a(x), 0.5)))))
    same({name.split("/")[0]: body["rows"] for name, body in file["bodies"].items()}, {"own_Reversed": True, "own_Normed": False})


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
