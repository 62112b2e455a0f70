"""The importer (bench/import): that the check finds what is wrong, what bad input says.

    .venv/bin/python tests/bench/import_refusals_test.py [NAME…]        # exit status 0: all passed; 77: no torch here
"""

import contextlib
import copy
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from importing import FILE, ROOT, bodies_of, imported, module, refused, run, same

import numpy
import torch
import torch.nn.functional as F
from paragauge_import import check, import_model, models, play, spec
from paragauge_import.refusal import Refusal
from run_functions import functions_of, run_functions
from torch import nn


def line_of(text: str) -> int:
    """Where this file has a text."""
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


# -- the check ---------------------------------------------------------------------------------------------------------------

def test_what_isnt_finite_can_not_be_compared():
    def entropy(p, weight):
        return -(p * weight * p.log()).sum(-1, keepdim=True)

    def made():
        return module(lambda own, x, weight: own.linear(entropy(x, weight)), linear=nn.Linear(1, 3))
    text = refused(made(), ["x=f32[B,6]", "weight=f32[B,6]"], "cross_entropy")
    same(text, "the module's own step isn't finite (its loss) with random inputs, so that the file can't be compared with it: those of f32 are "
               "normally distributed; one that must be positive lies between 0 and 1 as --input 'x=f32[B,6]<1'")
    file, _ = imported(made(), ["x=f32[B,6]<1", "weight=f32[B,6]"], "cross_entropy")
    same([given.get("below") for given in file["inputs"]], [1.0, None])


def test_a_wrong_file_is_found():
    made, inputs = models.mlp(), [spec.read_input("f32[B,3,64]")]
    found = import_model.import_module(import_model.Request(made, inputs, "mse_loss"))
    changes = [("gelu", "forward", "o=gelu(i0)", "o=gelu(i0,approximate=tanh)", "the output differs from PyTorch's by"),
               ("gelu", "backward", "gi0=gelu_backward(g,i0)", "gi0=gelu_backward(g,i0,approximate=tanh)", "the gradient of '"),
               ("layer_norm", "forward", "1e-05", "1e-06", "the output differs from PyTorch's by"),
               ("linear", "backward", "gp1=view(t3,[256])", "gp1=view(t3,[1,256])", "body 'linear/1': gp1 is torch.float64[1, 256], not f32[256]"),
               ("gelu", "backward", "gi0=gelu_backward(g,i0)", "gi0=alias(g)", "body 'gelu/1': gi0 lies in another tensor's memory")]
    for op, part, old, new, expected in changes:
        file = copy.deepcopy(found.file)
        body = bodies_of(file, op)[0]
        assert any(old in line for line in body[part]), body[part]
        body[part] = [line.replace(old, new) for line in body[part]]
        try:
            check.check(file, found.module, inputs).refuse_differences()
        except Refusal as refusal:
            assert expected in str(refusal), refusal
            continue
        raise AssertionError(f"{new} passed")


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        return layer(x)

    @staticmethod
    def backward(ctx, g):
        return g * 3, None


def own_function():
    return module(lambda self, x: Tripled.apply(self.a(x), lambda y: y * 2))


def test_no_file_is_left_where_the_check_fails():
    sys.modules["import_test"] = sys.modules[__name__]
    status, out, err = run("import_test:own_function", "--input", "f32[B,8]", "--loss", "mse_loss")
    same(status, 1)
    same(err, "import: 4 things can't be imported:\n"
              "  custom autograd.Function 'Tripled' is given more than tensors and numbers: its forward is imported, its own backward is not "
              "(write it of ops, as x + (f(x) - x).detach() for a gradient that goes straight through)\n"
              "  the gradient of 'a.bias' differs from PyTorch's by 0.33 of its norm\n"
              "  the gradient of 'a.weight' differs from PyTorch's by 0.33 of its norm\n"
              "  no file is left in place: the graph doesn't say what the module does\n")
    same(list(FILE.parent.iterdir()), [])


def test_recomputation_is_noticed():
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(lambda y: F.relu(self.a(y)), x, use_reentrant=False)
    _, notes = imported(module(forward))
    assert "torch.utils.checkpoint: recomputation is left out; recompute= of a strategy brings it back" in notes, notes

    # Reentrant checkpoints run their part without gradients: torch's own, and that of OpenAI's diffusion models.
    class CheckpointFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, run, length, *args):
            ctx.run, ctx.inputs, ctx.parameters = run, args[:length], args[length:]
            with torch.no_grad():
                return run(*ctx.inputs)

        @staticmethod
        def backward(ctx, *gradients):
            inputs = [x.detach().requires_grad_(True) for x in ctx.inputs]
            with torch.enable_grad():
                y = ctx.run(*[x.view_as(x) for x in inputs])
            return None, None, *torch.autograd.grad(y, [*inputs, *ctx.parameters], gradients)

    for forward in (lambda self, x: torch.utils.checkpoint.checkpoint(self.b, self.a(x), use_reentrant=True),
                    lambda self, x: CheckpointFunction.apply(self.b, 1, self.a(x), *self.b.parameters())):
        _, notes = imported(module(forward))
        assert "torch.utils.checkpoint: recomputation is left out; recompute= of a strategy brings it back" in notes, notes


def test_users_modules_may_be_named_as_ours():
    net = "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(8, 8)\n"
    files = {"graph.py": net, "models/mine.py": net, "net.py": "from graph import Net as build\nfrom models.mine import Net\n"}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(text)
        program = subprocess.run([sys.executable, ROOT / "bench/import", f"{folder}/net.py:build", "--input", "f32[B,8]", "--loss", "mse_loss",
                                  "-o", FILE], capture_output=True, text=True, check=False)
    same((program.returncode, program.stderr), (0, ""))


def test_regions_of_autocast_are_left_out():
    half = torch.autocast("cpu", torch.bfloat16)

    def forward(self, x):
        with half:
            y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            return self.b(y.float())
    file, notes = imported(module(forward))
    assert "torch.autocast: a region is left out; precision= of a strategy brings it back, for all of the model" in notes, notes
    same([body["output"] for body in file["bodies"].values()], [])
    same([n["op"] for n in file["nodes"]], ["linear", "linear"])
    # Of all the model under autocast, as precision= has it, the second layer wouldn't be.
    assert file["half"].startswith("autocast is switched off for op 'linear', which then stays in float32, at "), file["half"]

    def angles(self, x):  # of what is constant it changes nothing
        with torch.autocast("cpu", enabled=False):
            table = torch.arange(8.0)[:, None] @ torch.ones(1, 8)
        return self.a(x) @ table
    assert isinstance(imported(module(angles))[0]["half"], dict)


# -- bad input ----------------------------------------------------------------------------------------------------------------

def test_what_depends_on_the_data():
    def forward(self, x):
        y = self.a(x)
        if y.sum() > 0:
            y = self.b(y)
        return y
    same(refused(module(forward)), "control flow asks for a tensor's values, which an export hasn't (decide it by sizes, or when the "
         f"module is made): import_refusals_test.py:{line_of('if y.sum() > 0:')}: if y.sum() > 0:")

    def forward(self, x):
        table = x.new_zeros(8, 8)
        table[self.c.weight[:, 0] > 0] = self.b.weight[:3]
        return self.a(x) @ table
    found = refused(module(forward))
    assert found.startswith("op 'nonzero' asks for a tensor's values (an index by a mask does: take its indices when the module is made) "
                            f"at module '(top)' (Own), import_refusals_test.py:{line_of('table[self.c.weight[:, 0] > 0] = self.b.weight[:3]')}: "), found

    def forward(self, x):
        return self.a(x[x[:, 0] > 0])
    same(refused(module(forward)), "op 'index' gives a size that depends on the data (torch.where and masked_fill do without) at module '(top)' (Own), "
                                  f"import_refusals_test.py:{line_of('return self.a(x[x[:, 0] > 0])')}: return self.a(x[x[:, 0] > 0])")

    def forward(self, x):
        return self.a(x) * x.max().item()
    same(refused(module(forward)), "op 'item' depends on the data at module '(top)' (Own), "
                                  f"import_refusals_test.py:{line_of('return self.a(x) * x.max().item()')}: return self.a(x) * x.max().item()")


def test_what_depends_on_the_batch():
    def forward(self, x):
        return self.a(torch.cat([self.b.weight[:1], x], 0))
    same(refused(module(forward)), "size 3 (batch 2) and 4 (batch 3) is no multiple of the batch: cat at module '(top)' (Own), "
                                f"import_refusals_test.py:{line_of('return self.a(torch.cat([self.b.weight[:1], x], 0))')}: "
                                "return self.a(torch.cat([self.b.weight[:1], x], 0))")

    def forward(self, x):
        return self.a(x) * (torch.arange(x.shape[0]) < 2).nonzero().sum()
    assert imported(module(forward))

    def forward(self, x):
        return self.a(x)[torch.arange(x.shape[0]).roll(1).nonzero().squeeze(-1)]
    line = "return self.a(x)[torch.arange(x.shape[0]).roll(1).nonzero().squeeze(-1)]"
    same(refused(module(forward)), "a constant tensor of [1, 1] depends on the batch size: [0]… and [0, 2]… (make it of sizes, by torch.full or "
         f"arange; masked_fill in the place of an index by a mask) at module '(top)' (Own), import_refusals_test.py:{line_of(line)}: {line}")

    def forward(self, x):
        return torch.stack([self.a(x[i]) for i in range(x.shape[0])])
    text = refused(module(forward))
    assert text.startswith("the graph depends on the batch size: 13 and 15 nodes, first difference stack and select at module '(top)'"), text
    assert text.endswith("a loop over samples?"), text


def test_parameters_that_are_replaced():
    def forward(self, x):
        self.w = nn.Parameter(self.w * 0.9)
        return self.a(x) * self.w
    same(refused(module(forward, w=nn.Parameter(torch.ones(8)))),
         "the forward replaces the parameter 'w' by another one: make it a buffer, or write into it under no_grad")


def test_assertions_on_the_batch():
    def forward(self, x):
        assert 64 % len(x) == 0, "no even parts"
        return self.a(x)
    line = 'assert 64 % len(x) == 0, "no even parts"'
    same(refused(module(forward)), f"an assertion fails with 3 samples (import exports with 2 and 3): import_refusals_test.py:{line_of(line)}: "
         f"{line} (no even parts)")


def test_choices_by_pythons_random_numbers():
    def forward(self, x):
        return self.b(self.a(x)) if random.random() < 2 and len(x) == 2 else self.a(x)
    assert refused(module(forward)).endswith("a choice by Python's or NumPy's random numbers?")

    def mixed(self, x):
        share = numpy.random.beta(1, 1)
        return self.a(x if random.random() < 0.5 else self.b(x)) * share + self.c(x) * (1 - share)
    before = random.getstate()
    _, notes = imported(module(mixed))
    assert "Python's or NumPy's random numbers are drawn in the forward: every step here has the same" in notes, notes
    assert random.getstate() == before


def test_gradients_inside_the_forward():
    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.a(x).sum(), x, create_graph=True)[0]
    same(refused(module(forward)), "torch.export finds a tensor that isn't there yet: is a gradient taken inside the forward "
                                 "(torch.autograd.grad), or a .data assigned?")


def test_sparse_tables():
    table = torch.eye(8).to_sparse()
    same(refused(module(lambda self, x: torch.sparse.mm(self.table, self.a(x).t()).t(), table=table)),
         "a constant 'table' is sparse: keep it dense (to_dense())")


def test_samples_in_groups_of_a_fixed_size():
    """The check's five samples make none; of those that do the graph of two or three says something else."""
    def forward(self, x):
        groups = min(4, len(x))
        return self.a(x) - self.a(x).view(groups, -1, 8).mean(0).repeat(groups, 1)
    assert refused(module(forward)).startswith("the output differs from PyTorch's by ")

    def not_five(self, x):
        assert len(x) != 5
        return self.a(x)
    imported(module(not_five))


def test_all_that_is_refused_is_said_at_once():
    def forward(self, x):
        y = self.a(x)
        return self.b(y[y.sum(1).argsort()[: int(y.shape[0] > 1)].nonzero()]) * x.max().item()
    lines = refused(module(forward)).splitlines()
    assert any(line.startswith("op 'nonzero' depends on the data at module '(top)' (Own), import_refusals_test.py:") for line in lines), lines
    assert any(line.startswith("op 'item' depends on the data at module '(top)' (Own), import_refusals_test.py:") for line in lines), lines


class Opaque:
    def __init__(self, y):
        self.y = y


def test_draws_that_cant_be_compared():
    for draw in (lambda x: torch.poisson(x.relu()), lambda x: torch.distributions.Gamma(x.exp(), torch.ones(8)).rsample()):
        said = refused(module(lambda self, x, draw=draw: self.b(draw(self.a(x)))))
        assert "draws what can't be compared with PyTorch's at " in said, said


def test_dtypes_that_nobody_here_knows():
    same(refused(module(lambda self, x: self.a(x.to(torch.float8_e4m3fn).to(x.dtype)))).split(" at ")[0], "dtype float8_e4m3fn isn't known here")

    def picky(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32, please")
        return self.a(x)
    assert "float32, please" in refused(module(picky))


def test_gpus_regions_of_autocast_are_no_regions_without():
    def forward(self, x):
        with torch.autocast("cuda", torch.float16):
            return self.a(x)
    file, notes = imported(module(forward))
    assert isinstance(file["half"], dict) and any(note.startswith("torch.autocast: a region is left out") for note in notes), notes


def test_what_a_model_returns():
    same(refused(module(lambda self, x: (self.a(x), self.b(x)))),
         "the model returns 2 tensors, the loss takes one: --prediction NAME takes one of 0, 1")
    file, notes = imported(module(lambda self, x: {"loss": self.b(x).square().mean(), "y": self.a(x)}))
    same([n["name"] for n in file["nodes"]], ["a"])
    assert "1 of what the model returns are left out: single numbers, its own losses perhaps: --loss mean_loss takes one" in notes, notes
    same(refused(module(lambda self, x: {"y": self.a(x), "of": [self.b(x)]}), prediction="z"),
         "--prediction z: not what the model returns; known: y, of.0")
    same(refused(module(lambda self, x: Opaque(self.a(x)))),
         "the model returns an object of class Opaque: return tensors, or a tuple, a dictionary or a dataclass of them, or take one of its attributes by --prediction NAME")
    same(refused(module(lambda self, x: Opaque(self.a(x))), prediction="z"), "--prediction z: not what the model returns; known: none: it returns an object of class Opaque")
    same(refused(module(lambda self, x: None)), "the model returns 0 tensors, the loss takes one")
    same(refused(module(lambda self, x: self.a(x).argmax(-1))), "the model returns i64['B']: a loss needs f32")
    same(refused(module(lambda self, x: self.a(x).sum())),
         "the model returns a single number: --loss mean_loss takes that as its loss, mse_loss takes a prediction")
    same(refused(module(lambda self, x: self.a(x) @ self.b(x).t())),
         "the model returns ['B', 'B']: each sample is compared with all others; a loss takes the batch first, and only there")
    same(refused(module(lambda self, x: (self.a(x).sum(), self.b(x).sum())), loss="mean_loss"),
         "the model returns 2 tensors, the loss takes one: --prediction NAME takes one of 0, 1")
    same(refused(module(lambda self, x: torch.fft.fft(self.a(x)))), "the model returns c64['B', 8]: a loss needs f32")
    same(refused(module(lambda self, x: self.a(x) * self.w.abs(), w=nn.Parameter(torch.randn(8, dtype=torch.cfloat)))),
         "parameter 'w' is complex: keep its real and imaginary parts, f32[…,2], and read them by torch.view_as_complex")
    same(refused(module(lambda self, x: self.a(x)[:, 0]), loss="cross_entropy"),
         "the model returns ['B']: cross_entropy needs [batch, …, classes]; --loss mse_loss and mean_loss take any shape")
    same(refused(module(lambda self, x: self.a(x)), loss="cross_entropy", classes=10),
         "--classes 10: the model returns ['B', 8], whose last size must be that")


def test_the_loss_of_the_module_itself():
    def with_target(self, x, y):
        return F.mse_loss(self.a(x), y, reduction="sum") / len(x)
    for loss in (None, "mean_loss"):
        file, notes = imported(module(with_target), ["f32[B,8]", "f32[B,8]"], loss)
        same([file["loss"], file["target"], file["nodes"][-1]["body"]], ["mean_loss", {"shape": ["B", 1]}, "expand/1"])
        same("the module returns its loss: mean_loss" in notes, loss is None)
    both = module(lambda self, x, y: (self.a(x), with_target(self, x, y)))
    file, notes = imported(both, ["f32[B,8]", "f32[B,8]"], "mean_loss")
    same(file["loss"], "mean_loss")
    assert "1 of what the model returns are left out: no loss" in notes, notes
    file, _ = imported(both, ["f32[B,8]", "f32[B,8]"], None, classes=8)
    same([file["loss"], file["target"]], ["cross_entropy", {"classes": 8, "shape": ["B"]}])
    file, _ = imported(module(lambda self, x, y: (self.a(x) - y).square().mean(1)), ["f32[B,8]", "f32[B,8]"], "mean_loss")
    same([file["loss"], file["target"]], ["mean_loss", {"shape": ["B", 1]}])  # one for each sample
    same(imported(module(lambda self, x: self.a(x)), loss="mean_loss")[0]["target"], {"shape": ["B", 8]})


def test_every_loss_of_pytorch():
    """Those whose kernel leaves a sum in all losses' memory, that take probabilities, or integers where others have numbers."""
    x, y, classes = "f32[B,8]", "f32[B,8]", "i64[B]<8"
    of_two = [F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.poisson_nll_loss, F.binary_cross_entropy_with_logits,
              lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), lambda x, y: F.soft_margin_loss(x, y.sign()),
              lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), lambda x, y: F.cross_entropy(x, y.softmax(-1)),
              lambda x, y: F.gaussian_nll_loss(x, y, y.exp()), lambda x, y: F.triplet_margin_loss(x, y, x * y), lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(len(x)))]
    of_classes = [F.cross_entropy, F.multi_margin_loss, lambda x, c: F.nll_loss(x.log_softmax(-1), c, reduction="sum"),
                  lambda x, c: F.cross_entropy(x, c, torch.arange(1., 9), label_smoothing=0.1),
                  lambda x, c: F.cross_entropy(30 * (F.normalize(x) - 0.3 * F.one_hot(c, 8)), c),
                  lambda x, c: F.cross_entropy(x, torch.where(c > 5, -100, c)) + (x[:, 0] * (c / 3)).mean()]
    for inputs, losses in [((x, y), of_two), ((x, classes), of_classes)]:
        for loss in losses:
            same(imported(module(lambda self, x, y, loss=loss: loss(self.a(x), y)), inputs, None)[0]["loss"], "mean_loss")


def test_what_is_made_of_no_tensor_has_a_dtype():
    file, _ = imported(module(lambda self, x: self.a(x) * torch.rand(len(x), 1) + torch.randn(len(x), 1)))
    same([bodies_of(file, op)[0]["forward"] for op in ("rand", "randn")], [["o=rand([B,1],dtype=f32)"], ["o=randn([B,1],dtype=f32)"]])


def test_what_sees_samples_together_does_so_on_all_numbers():
    """Though not on those that a trial may have: labels that are never 1 or -1, a largest class that every half has."""
    def cosine(self, x, y):
        return F.cosine_embedding_loss(self.a(x), self.b(x), y[:, 0], reduction="sum")
    file, _ = imported(module(cosine), ["f32[B,8]", "f32[B,8]"], None)
    assert not any(b["rows"] for b in file["bodies"].values() if b["output"] == "f32[]" and any("B" in s for s in b["inputs"])), file["bodies"]
    file, _ = imported(module(lambda self, x, c: self.a(x) * (c.float() / c.max())[:, None]), ["f32[B,8]", "i64[B]<9"])
    same([b["rows"] for b in bodies_of(file, "max")], [False])


def test_no_gradient_is_none_too_much():
    """All gradients are zero: nothing is to be compared but that."""
    imported(module(lambda self, x: (self.a(x) * (x > 9)).mean()), loss=None)


def test_samples_that_are_compared():
    """What has two samples in one number stays inside a body; amounts and numbers grow with the batch's square, or are one less."""
    def contrast(self, x):
        z = self.a(x)
        return (z @ z.t()).softmax(-1).mean() + z.std(0).sum() + z.var(0, correction=0).sum()
    file, _ = imported(module(contrast), loss=None)
    body, = bodies_of(file, "matmul")
    same([body["inputs"], body["output"], body["saved"]], [["f32[B,8]"], "f32[]", ["f32[B,B]"]])
    assert any(line.endswith("div.Scalar(t0,BB)") for line in body["backward"]), body
    # Forward: a product of 2 · 8 FLOPs for each pair, and softmax and mean.
    same([body["products"], body["flops"][0]], [{"matmul f32": [[0, 0, 16], [0, 0, 32]]}, [1, 0, 17]])
    same(body["bytes"][0], [4, 4 * 2 * 8, 4 * (1 + 2 + 1)])
    same([[line.split("(")[1] for line in b["forward"] if "=div" in line] for op in ("std", "var") for b in bodies_of(file, op)],
         [["t2,B-1)"], ["t2,B)"]])
    same(body["rows"], False)
    file, _ = imported(module(lambda self, x: ((self.a(x) @ x.t()) * (1 - torch.eye(len(x)))).mean()), loss=None)
    assert "t2=eye(B,dtype=f32)" in bodies_of(file, "matmul")[0]["forward"], file["bodies"]
    # Constant features, as PyTorch's: no gradient. What is read twice is copied inside, too. A number from the end.
    imported(module(lambda self, x: (self.a(x) + x.std(0) + (self.a(x) * 0).std(0)).mean() + sum(torch.var_mean(self.b(x), 0)).mean()), loss=None)
    def repeated(self, x):
        z = self.a(x).unsqueeze(0).expand(len(x), -1, -1).reshape(-1, 8)
        return (z.tanh() * self.b(z)).mean() + z.mean()
    file, _ = imported(module(repeated, c=None), loss=None)
    assert not any(spec.count("B") > 1 for b in file["bodies"].values() for spec in (*b["inputs"], b["output"])), file["bodies"]
    imported(module(lambda self, x: ((y := self.a(x)) @ y.t()).flatten()[-len(x) - 1]), loss=None)
    same(imported(module(lambda self, x: (self.a(x) @ self.b(x).t()).diagonal()), loss="mean_loss")[0]["target"], {"shape": ["B", 1]})
    same(refused(module(lambda self, x: (self.a(x)[1:] - x[:-1]).square().mean()), loss=None).split(" at module")[0],
         "size 1 (batch 2) and 2 (batch 3) is no multiple of the batch: slice")
    assert refused(module(lambda self, x: (self.a(x) @ x.t()).mean() / (len(x) + 1)), loss=None).startswith(
        "a number 3 (batch 2) and 4 (batch 3) is no multiple of the batch or of its square, nor one less"), "the refusal"


def test_the_command_line():
    def said(*arguments):
        status, out, err = run(*arguments)
        same(status, 1)
        assert not FILE.exists()
        return err.removeprefix("import: ").rstrip("\n")
    mlp = "catalog:mlp"
    same(said(mlp, "--input", "f16[B,8]"), "--input 'f16[B,8]': expected [name=]f32[B,3,224,224], [name=]f32[B,80]<1 or [name=]i64[B,64]<256")
    same(said(mlp, "--input", "f32[B,-1]"), "--input 'f32[B,-1]': size '-1' is neither a positive number nor a multiple of the batch (B, 12B)")
    same(said(mlp, "--input", "f32[8,B]"), "--input 'f32[8,B]': the first size must be the batch, B")
    same(said(mlp, "--input", "f32[4B,8]"),
         "--input 'f32[4B,8]': the first size must be the batch, B; let it be [B,4,8], and flatten it in the module")
    for numbers in ("i64[B,8]", "i64[B,8]<1.5"):
        same(said(mlp, "--input", numbers), f"--input '{numbers}': integers need a whole bound: i64[B,64]<256")
    same(said(mlp, "--input", "i64[B,8]<0"), "--input 'i64[B,8]<0': the bound must be at least 1")
    for bound in ("0", "1000000001"):
        same(said(mlp, "--input", f"f32[B,8]<{bound}"), f"--input 'f32[B,8]<{bound}': the bound must be above 0, 1e9 at most")
    same(said(mlp, "--optimizer", "lion"), "--optimizer 'lion': unknown optimizer 'lion'; there are sgd, adam, adamw")
    same(said(mlp, "--optimizer", "adamw:lr"), "--optimizer 'adamw:lr': 'lr' isn't name=number")
    same(said(mlp, "--optimizer", "sgd:beta1=1"), "--optimizer 'sgd:beta1=1': 'sgd' has no 'beta1'; it has lr, momentum, weight_decay")
    same(said(mlp, "--global-batch", "-1"), "--global-batch -1: must be at least 1")
    same(said(mlp, "--optimizer", "sgd:lr=nan"), "--optimizer 'sgd:lr=nan': 'lr=nan' isn't name=number")
    same(said("gpt_nano"), "'gpt_nano': expected package.module:function, file.py:function or catalog:name")
    same(said("no_such_module:build"), "'no_such_module:build': No module named 'no_such_module'")
    same(said("/no/such.py:build"), "'/no/such.py:build': there is no file /no/such.py")
    assert said("catalog:gpt3").startswith("'catalog:gpt3': 'catalog' has no 'gpt3'; it has Attention, Bert, "), said("catalog:gpt3")
    assert said("--torchvision", "resnet19", "--input", "f32[B,3,64,64]").startswith("torchvision has no model 'resnet19'; it has alexnet, ")
    same(said("--torchvision", "resnet18"), "no --input: expected one for each tensor that forward takes, as [name=]f32[B,3,224,224], [name=]f32[B,80]<1 or [name=]i64[B,64]<256")
    same(said(mlp, "--timm", "vit"), "expected one of: package.module:function, --torchvision NAME, --timm NAME, --transformers CONFIG")
    for package in ("timm", "transformers"):
        with contextlib.suppress(ImportError):
            __import__(package)
            continue
        same(said(f"--{package}", "vit", "--input", "f32[B,3,64,64]"),
             f"package '{package}' isn't installed in {sys.prefix}: pip install {package}, or use a Python that has it")


def test_errors_in_the_users_file_say_where():
    def said(name: str, text: str):
        path = FILE.with_name(name)
        path.write_text(text)
        try:
            status, out, err = run(f"{path}:build", "--input", "f32[B,8]")
        finally:
            path.unlink()
        same([status, FILE.exists()], [1, False])
        return err.replace(str(path), name)
    same(said("unknown_name.py", "build = made\n"), "import: 'unknown_name.py:build': NameError: name 'made' is not defined (unknown_name.py, line 1)\n")
    same(said("half_a_line.py", "from torch import nn\nbuild = nn.Linear(\n"),
         "import: 'half_a_line.py:build': SyntaxError: '(' was never closed (half_a_line.py, line 2)\n")
    same(said("wrong_size.py", "from torch import nn\ndef build():\n    return nn.Sequential(nn.Linear(8, 4),\n                         nn.Conv2d(3, 4, 1, groups=2))\n"),
         "import: 'wrong_size.py:build': ValueError: in_channels must be divisible by groups (wrong_size.py, line 4)\n")
    same(said("lacks_a_package.py", "import no_such_package\n"), "import: 'lacks_a_package.py:build': No module named 'no_such_package'\n")


def test_who_stops_reading_gets_the_file():
    """paragauge import … | head -1"""
    process = subprocess.Popen([sys.executable, ROOT / "bench/import", "catalog:mlp", "-o", FILE],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    same([process.stderr.read(), process.wait()], [b"", 0])
    same([json.loads(FILE.read_text())["name"], [path.name for path in FILE.parent.iterdir()]], ["mlp", [FILE.name]])


def test_the_command_that_made_it_can_be_typed():
    status, _, err = run("catalog:gpt_nano", "--input", "i64[B,8]<256", "--description", "eight words", "--no-check")
    same([status, err], [0, ""])
    file = json.loads(FILE.read_text())
    same(file["description"], "eight words")
    same(file["made_by"], f"paragauge import catalog:gpt_nano --input 'i64[B,8]<256' --description 'eight words' --no-check; torch {torch.__version__.split('+')[0]}")


def test_lines_of_a_file():
    text = import_model.json_text
    same(text({"a": [1, {"b": None}], "ü": []}), '{"a": [1, {"b": null}], "ü": []}')
    long = "x" * import_model.WIDTH
    same(text({"a": long, "b": [long, "y"], "c": 1}), f'{{\n "a": "{long}",\n "b": [\n  "{long}",\n  "y"],\n "c": 1}}')
    node = {"name": long, "op": "add"}
    same(text([node, {"name": long * 2, "op": "add"}]), f'[\n {json.dumps(node)},\n {{\n  "name": "{long * 2}",\n  "op": "add"}}]')
    numbers = {"numbers": list(range(100_000, 100_100))}
    lines = text(numbers).splitlines()
    same([len(lines), max(map(len, lines)) <= import_model.WIDTH, json.loads("".join(lines))], [2 + 5, True, numbers])


def test_a_line_of_text():
    x = torch.randn(4, 3, dtype=torch.float64)
    values = play.play_lines(["t0=view(i0,[B,3,1])", "t1,_=max.dim(t0,-1)", "o=add.Tensor(t1,i0,alpha=0.5)"], {"i0": x}, 4)
    assert torch.equal(values["o"], 1.5 * x)


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
