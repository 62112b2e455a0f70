"""What the importer says of half precision: by PyTorch's dispatcher, by its own autocast, and what it leaves out.

    .venv/bin/python tests/bench/half_test.py [NAME…]        # exit status 0: all passed; 77: no torch here
"""

import copy
import json
import re
import sys
from unittest import mock

from importing import FILE, module, perceptron, run, same

import torch
import torch.nn.functional as F
import torchvision
from paragauge_import import import_model, models, spec
from paragauge_import.body import group
from paragauge_import.body.run_step import LEFT_OUT
from paragauge_import.graph.step import Value
from paragauge_import.half import autocast, check_half, half_bodies
from paragauge_import.refusal import Refusal
from run_functions import functions_of, run_functions
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map
from torchvision.models import convnext, mobilenetv3


def imported(m, inputs=("f32[B,3,8]",), loss="mse_loss", cut=False):
    """The file's content, what it was made of, and its notes; checked where it has half precision."""
    torch.manual_seed(0)
    inputs = [spec.read_input(text) for text in inputs]
    found = import_model.import_module(import_model.Request(m, inputs, loss), cut)
    file = json.loads(json.dumps(found.file))
    if isinstance(file["half"], dict):
        check_half.check_half(file, found.module, inputs).refuse_differences()
    return file, found, inputs


def body_of(file, name) -> dict:
    """A node's body in half precision."""
    node = next(n for n in file["nodes"] if n["name"] == name)
    return file["half"][node["half"]] if "half" in node else file["bodies"][node["body"]]


# -- what is cast ------------------------------------------------------------------------------------------------------------

def test_the_lists_are_the_dispatchers():
    listed = {f"aten::{name}" for name in autocast.policies()}
    registered = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    # No model calls these by itself, but with a loss that autocast forbids, or by a name by which nobody calls a dimension.
    same({name for name in registered - listed if name.startswith("aten::")},
         {"aten::_cudnn_rnn", "aten::binary_cross_entropy", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose",
          "aten::norm.names_ScalarOpt_dim"})
    same(listed - registered, set())


class Compared:
    """Plays each step by the dispatcher's own rules as well, on a GPU's tensors without values, and compares the dtypes."""

    def __init__(self):
        self.mode, self.calls, self.differ = FakeTensorMode(allow_non_fake_inputs=True), 0, []

    def __enter__(self):
        self.before = group.run_step
        group.run_step = self.run_step
        return self

    def __exit__(self, *_):
        group.run_step = self.before

    def run_step(self, step, which, lookup):
        found = self.before(step, which, lookup)
        if autocast.DTYPE is None or step.inplace or step.like is not None:
            return found
        def on_gpu(x):
            x = lookup(x) if isinstance(x, Value) else x
            return torch.empty(x.shape, dtype=x.dtype, device="cuda") if isinstance(x, torch.Tensor) else x
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", autocast.DTYPE)
        try:
            with self.mode, torch.no_grad():
                args, kwargs = tree_map(on_gpu, (step.args[which], step.kwargs[which]))
                theirs = step.target(*args, **{k: v for k, v in kwargs.items() if k not in LEFT_OUT})
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()
        dtypes = [[t.dtype for t in tree_leaves(r) if isinstance(t, torch.Tensor)] for r in (found, theirs)]
        self.calls += 1
        if dtypes[0][:1] != dtypes[1][:1]:
            self.differ.append((str(step.target), *dtypes))
        return found


def test_every_step_gives_the_dtype_that_it_gives_on_a_gpu():
    def many(self, x):
        y = self.a(x)
        z = (y.softmax(-1) + y.log_softmax(-1)) * y.sum(-1, keepdim=True) + y.exp().clamp(max=2).pow(2) + y.norm(dim=-1, keepdim=True)
        z = z + F.softplus(y) + F.silu(y) + torch.einsum("bij,bkj->bik", y, y).mean() + torch.cumsum(y, 1) + y.std(-1, keepdim=True)
        z = torch.addcmul(z, y, y) + torch.bmm(y, x.transpose(1, 2)).amax(-1, keepdim=True) + F.layer_norm(y, [8]) + F.rms_norm(y, [8])
        return torch.where(y > 0, z, y) + torch.cat([y[:, :1], x[:, 1:]], 1).sigmoid() + y.double().float().logsumexp(-1, keepdim=True)
    tried = [(module(many), ["f32[B,3,8]"], "mse_loss"), (models.gpt_nano(), ["i64[B,16]<256"], "cross_entropy"),
             (models.llama_nano(), ["i64[B,16]<256"], "cross_entropy"), (models.Bert(64, 32, 1, 32, 4), ["i64[B,16]<64"], "cross_entropy"),
             (models.unet(), ["f32[B,3,16,16]"], "cross_entropy"),
             (mobilenetv3.MobileNetV3([mobilenetv3.InvertedResidualConfig(16, 3, 16, 16, True, "HS", 2, 1, 1)], 32),
              ["f32[B,3,32,32]"], "cross_entropy"),
             (convnext.ConvNeXt([convnext.CNBlockConfig(8, 16, 1), convnext.CNBlockConfig(16, None, 1)]), ["f32[B,3,32,32]"],
              "cross_entropy")]
    def losses(self, x, classes):
        y, z, own = self.a(x), self.b(x), torch.arange(1., 9)
        return F.cross_entropy(y, classes) + F.cross_entropy(y, classes, own, label_smoothing=0.1) + F.cross_entropy(y, z.softmax(-1)) + \
            F.triplet_margin_loss(y, z, y + z) + F.cosine_embedding_loss(y, z, torch.ones(1)) + F.pairwise_distance(y, z).mean()
    tried.append((module(losses), ["f32[B,8]", "i64[B]<8"], "mean_loss"))
    for made, inputs, loss in tried:
        with Compared() as compared:
            found = import_model.import_module(import_model.Request(made, [spec.read_input(t) for t in inputs], loss), cut=False)
        assert isinstance(found.file["half"], dict), found.file["half"]
        assert compared.calls > 10
        same(compared.differ, [])


def test_gpt_nano():
    file, found, _ = imported(models.gpt_nano(), ["i64[B,64]<256"], "cross_entropy")
    linear = body_of(file, "h.0.attn.c_attn")
    same(linear["inputs"], ["f32[B,64,128]"])  # of a layer norm
    same(linear["parameters"], ["f32[384,128]", "f32[384]"])
    same(linear["output"], "bf16[B,64,384]")
    same(linear["saved"], ["bf16[B,64,128]", "bf16[384,128]"])
    same(linear["forward"][:3], ["s0=_to_copy(i0,dtype=bf16)", "s1=_to_copy(p0,dtype=bf16)", "t0=_to_copy(p1,dtype=bf16)"])
    same(sum(line.endswith("dtype=f32)") for line in linear["backward"]), 3)  # the gradients of input, weight and bias
    same(linear["products"], {"matmul bf16": [[0, 2 * 64 * 128 * 384], [0, 4 * 64 * 128 * 384]]})
    same(file["bodies"]["linear/1"]["products"], {"matmul f32": [[0, 2 * 64 * 128 * 384], [0, 4 * 64 * 128 * 384]]})
    same(body_of(file, "h.0.attn.attention")["products"], {"attention bf16": [[0, 4 * 64 * 64 * 128], [0, 10 * 64 * 64 * 128]]})
    same(body_of(file, "h.0.attn.attention")["saved"], ["f32[B,4,64]"])
    add = body_of(file, "h.0.add")  # f32 and bf16: an op that the reader knows, but not so
    same((add["inputs"], add["output"], add["rows"]), (["f32[B,64,128]", "bf16[B,64,128]"], "f32[B,64,128]", True))
    assert "half" not in next(n for n in file["nodes"] if n["name"] == "h.0.ln_1")  # of f32 as without autocast
    same(file["half"].keys() & file["bodies"].keys(), set())
    same({n["half"] for n in file["nodes"] if "half" in n}, set(file["half"]))


def test_what_is_cut_for_tensor_parallelism_is_cut_in_half_precision():
    file, _, _ = imported(models.gpt_nano(), ["i64[B,64]<256"], "cross_entropy", cut=True)
    nodes = {n["name"]: n for n in file["nodes"]}
    cut = [n for n in file["nodes"] if "units" in file["bodies"].get(n.get("body"), {})]
    same(len(cut), 25)
    for node in cut:
        first, second = file["bodies"][node["body"]], file["half"][node["half"]]
        same(second["units"], first["units"])
        same(second["sums"], first["sums"])
        same([re.sub("bf16", "f32", s) for s in second["inputs"] + second["parameters"]], first["inputs"] + first["parameters"])
        # A part has its share of the products, and all of them where the units are all.
        for key, amounts in second.get("products", {}).items():
            same([[0, 0, 0], [0, 0, 0]], [a[:3] for a in amounts])
            same(amounts, first["products"][key.replace("bf16", "f32")])
    column = file["half"][nodes["h.0.attn.c_attn"]["half"]]
    same(column["parameters"], ["f32[3x32T,128]", "f32[3x32T]"])
    same(column["saved"], ["bf16[B,64,128]", "bf16[3x32T,128]"])
    assert "units" not in body_of(file, "h.0.add")
    same({n["half"] for n in file["nodes"] if "half" in n}, set(file["half"]))


# -- parameters in half precision --------------------------------------------------------------------------------------------

def with_half_parameters(m, inputs=("f32[B,3,8]",), loss="mse_loss", cut=False, check=True):
    """The file's content, what it was made of, its inputs; checked where it has these bodies."""
    torch.manual_seed(0)
    inputs = [spec.read_input(text) for text in inputs]
    found = import_model.import_module(import_model.Request(m, inputs, loss, half_parameters=True), cut)
    file = json.loads(json.dumps(found.file))
    if check and isinstance(file["half_parameters"], dict):
        check_half.check_half(file, found.module, inputs, key="half_parameters").refuse_differences()
    return file, found, inputs


def halved_body(file, name) -> dict:
    node = next(n for n in file["nodes"] if n["name"] == name)
    return file["half_parameters"][node["half_parameters"]]


def test_gpt_nano_with_half_parameters():
    file, found, _ = with_half_parameters(models.gpt_nano(), ["i64[B,64]<256"], "cross_entropy")
    linear = halved_body(file, "h.0.attn.c_attn")
    same((linear["inputs"], linear["parameters"], linear["output"], linear["saved"]),
         (["bf16[B,64,128]"], ["bf16[384,128]", "bf16[384]"], "bf16[B,64,384]", []))
    assert not any("_to_copy" in line for line in linear["forward"] + linear["backward"]), linear
    same(halved_body(file, "h.0.ln_1")["inputs"], ["bf16[B,64,128]"])
    same(halved_body(file, "wte")["output"], "bf16[B,64,128]")
    assert "half_parameters" not in next(n for n in file["nodes"] if n["name"] == "h.0.add")  # the reader's own op, of bf16
    same({n["half_parameters"] for n in file["nodes"] if "half_parameters" in n}, set(file["half_parameters"]))
    assert all(p.dtype == torch.float32 for p in found.module.parameters())
    same(list(file)[-1], "nodes")


def test_what_is_cut_for_tensor_parallelism_is_cut_with_half_parameters():
    file, _, _ = with_half_parameters(models.gpt_nano(), ["i64[B,64]<256"], "cross_entropy", cut=True, check=False)
    cut = [n for n in file["nodes"] if "units" in file["bodies"].get(n.get("body"), {})]
    same(len(cut), 25)
    for node in cut:
        first, second = file["bodies"][node["body"]], file["half_parameters"][node["half_parameters"]]
        same((second["units"], second["sums"]), (first["units"], first["sums"]))
        same([re.sub("bf16", "f32", s) for s in second["inputs"] + second["parameters"]], first["inputs"] + first["parameters"])


def test_casts_of_the_modules_own_are_in_the_bodies():
    """Llama's norms compute in float32 and give what they were given; its rotations, too."""
    file, _, _ = with_half_parameters(models.llama_nano(), ["i64[B,64]<256"], "cross_entropy")
    outputs = {n["name"]: (file["half_parameters"][n["half_parameters"]] if "half_parameters" in n else file["bodies"].get(n.get("body"), {})).get("output", "")
               for n in file["nodes"]}
    same({text.split("[")[0] for text in outputs.values()} - {""}, {"bf16"})

    def norm(self, x):
        y = self.a(x)
        wide = y.float()
        return self.b((wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(y.dtype))
    file, _, _ = with_half_parameters(module(norm))
    first, last = halved_body(file, "a"), halved_body(file, "mul")
    same((first["output"], last["inputs"][0], last["output"]), ("f32[B,3,8]", "f32[B,3,8]", "bf16[B,3,8]"))  # cast once, by who makes it
    same([n["name"] for n in file["nodes"] if "half_parameters" not in n], ["pow", "mean", "add", "rsqrt"])
    same(halved_body(file, "b")["saved"], [])

    def two(self, x):  # the same op, read in bf16 and in f32
        return self.b(self.a(x).exp()).exp().float() * 2
    file, _, _ = with_half_parameters(module(two))
    same([halved_body(file, name)["output"] for name in ("exp", "exp_2")], ["bf16[B,3,8]", "f32[B,3,8]"])

    def norm_and_more(self, x):
        wide = self.a(x).float().exp()
        return self.b(wide.to(x.dtype)) + wide
    file, _, _ = with_half_parameters(module(norm_and_more))
    same((halved_body(file, "b")["inputs"], halved_body(file, "b")["saved"]), (["f32[B,3,8]"], ["bf16[B,3,8]"]))  # another one reads it in f32


def test_convolutions_with_half_parameters():
    """Known ops know half precision by themselves; what is given in float32 is cast by who reads it."""
    file, _, _ = with_half_parameters(torchvision.models.resnet18(), ["f32[B,3,64,64]"], "cross_entropy")
    same(file["half_parameters"], {})
    file, _, _ = with_half_parameters(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)))
    same((halved_body(file, "0")["inputs"], halved_body(file, "0")["forward"][0]), (["f32[B,3,8]"], "s0=_to_copy(i0,dtype=bf16)"))


def test_constants_and_frozen_parameters_are_halved():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.base = nn.Linear(8, 8), nn.Linear(8, 8)
            self.base.requires_grad_(False)
            self.register_buffer("table", torch.rand(8))

        def forward(self, x):
            return self.base(self.a(x)) * self.table
    file, found, _ = with_half_parameters(Scaled())
    same({c.get("frozen", "table") for c in file["constants"].values() if c.get("halved")}, {"base.weight", "base.bias", "table"})
    assert "where parameters are in half precision, buffers are, too, as DeepSpeed has them and FSDP2 hasn't: table" in found.notes, found.notes
    file, _, _ = with_half_parameters(module(lambda self, x: self.b(self.a(x) + torch.tensor([1.0, 2.0] * 4, dtype=torch.float16))))
    assert not any("halved" in c for c in file["constants"].values()), file["constants"]


def test_masks_are_as_large_as_their_dtype():
    """float32's least number isn't infinite in bfloat16: a row without a word is no NaN."""
    def forward(self, x):
        y = self.a(x)
        mask = torch.zeros(3, 3, dtype=y.dtype).masked_fill(torch.tensor([[True] * 3, [False, True, True], [False] * 3]), torch.finfo(y.dtype).min)
        return F.scaled_dot_product_attention(y, self.b(x), self.c(x), attn_mask=mask)
    with_half_parameters(module(forward))


def test_what_is_drawn_is_drawn_in_its_dtype():
    file, _, _ = with_half_parameters(module(lambda self, x: self.b((y := self.a(x)) * torch.empty(y.shape, dtype=y.dtype).bernoulli_(0.5))))
    drawn = halved_body(file, "bernoulli")
    assert drawn["output"].startswith("bf16[") and not any("_to_copy" in line for line in drawn["forward"]), drawn


def test_one_view_of_what_is_read_in_two_dtypes():
    def forward(self, x):
        wide = self.a(x).float().exp()
        q, _ = wide.to(x.dtype).split(4, -1)
        r, _ = wide.split(4, -1)
        return self.b(torch.cat([q, q], -1)) + r.sum()
    file, _, _ = with_half_parameters(module(forward))
    assert "half_parameters" not in next(n for n in file["nodes"] if n["name"] == "sum"), file["half_parameters"]  # in f32, as the other


def test_known_ops_stay_where_their_readers_cast():
    file, _, _ = with_half_parameters(module(lambda self, x: self.b(self.a(x).float().exp().to(x.dtype))), ["f32[B,8]"])
    same([(n["op"], "half_parameters" in n) for n in file["nodes"]], [("linear", False), ("aten", True), ("linear", False)])
    file, _, _ = with_half_parameters(nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)), ["f32[B,8]"])
    same(list(file["half_parameters"]), ["relu/halved1"])  # the norm is float32's, as sim's are
    file, _, _ = with_half_parameters(nn.Sequential(nn.ReLU(), nn.Linear(8, 4)), ["f32[B,8]"])
    same([file["half_parameters"][n["half_parameters"]]["output"] for n in file["nodes"] if "half_parameters" in n], ["bf16[B,8]"])


def test_a_small_model_stands_for_a_large_one_with_half_parameters():
    vectors = [spec.read_input("f32[B,5,8]")]
    small = import_model.Request(perceptron(4, "cpu"), vectors, "mse_loss", half_parameters=True)
    file = import_model.import_module(import_model.Request(perceptron(10**7, "meta"), vectors, "mse_loss", small=small, half_parameters=True), False).file
    same(halved_body(file, "0")["parameters"], [f"bf16[{10**7},8]", f"bf16[{10**7}]"])
    same({body["rows"] for body in file["half_parameters"].values()}, {True})


def test_modules_that_fail_or_differ_with_half_parameters():
    def forward(self, x):
        y = self.a(x)
        return self.b(F.scaled_dot_product_attention(y.float(), y.float(), y))
    file, found, _ = with_half_parameters(module(forward))
    assert file["half_parameters"].startswith("with its parameters in bfloat16 torch.export (batch 2) fails: RuntimeError: Expected query, key, "), file
    assert not any("half_parameters" in n for n in file["nodes"])
    assert f"no parameters in half precision: {file['half_parameters']}" in found.notes, found.notes
    def products(self, x):
        return self.b(F.linear(self.a(x).float(), torch.eye(8)))
    try:  # an export doesn't see it
        with_half_parameters(module(products))
    except Refusal as refusal:
        assert re.match(r"with its parameters in bfloat16 the module fails: mat1 and mat2 must have the same dtype, .* at .*half_test.py:\d+", str(refusal)), refusal
    else:
        raise AssertionError("passed")
    def by_dtype(self, x):
        y = self.a(x)
        return self.b(y.exp() if y.dtype == torch.float32 else y.sigmoid())
    file, _, _ = with_half_parameters(module(by_dtype))
    assert file["half_parameters"].startswith("with its parameters in bfloat16 the module does something else at "), file["half_parameters"]
    bn = nn.BatchNorm1d(8)
    file, _, _ = with_half_parameters(module(lambda self, x: self.b(self.bn(self.a(x))) * self.bn.weight.abs().sum(), bn=bn), ["f32[B,8]"])
    same(file["half_parameters"], "with its parameters in bfloat16 a batch norm's 'bn.weight', which stays in float32 here, is read by others, too")
    def own_half(self, x):
        return self.b(self.a(x).to(torch.bfloat16).float())
    file, _, _ = with_half_parameters(module(own_half))
    same(file["half_parameters"], file["half"])


def test_a_wrong_body_with_half_parameters_is_found():
    file, found, inputs = with_half_parameters(models.mlp(), ["f32[B,3,64]"])
    name = next(n for n in file["half_parameters"] if n.startswith("linear/"))
    spoiled = copy.deepcopy(file)
    body_ = spoiled["half_parameters"][name]
    body_["forward"] = [line.replace(")", ",beta=2)") if "=addmm(" in line else line for line in body_["forward"]]
    try:
        check_half.check_half(spoiled, found.module, inputs, key="half_parameters").refuse_differences()
    except Refusal as refusal:
        assert str(refusal).startswith("the output differs from PyTorch's by "), refusal
    else:
        raise AssertionError("passed")


def test_networks_of_known_ops():
    """Convolutions and what follows them know half precision by themselves; sums of one dtype, too."""
    file, _, _ = imported(torchvision.models.resnet18(), ["f32[B,3,64,64]"], "cross_entropy")
    same(file["half"], {})
    # Of what is f32 and what is bf16: the pool's input and what a convolution gives.
    mixed = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
    mixed.forward = lambda x: F.relu(F.max_pool2d(x, 2) + F.max_pool2d(nn.Sequential.forward(mixed, x), 2))
    file, _, _ = imported(mixed, ["f32[B,3,8,8]"])
    same([n["name"] for n in file["nodes"] if "half" in n], ["add"])
    same(body_of(file, "add")["inputs"], ["f32[B,3,4,4]", "bf16[B,3,4,4]"])
    same(body_of(file, "add")["backward"], ["gi1=_to_copy(g,dtype=bf16)"])  # the image needs no gradient


def test_what_is_written_in_place_keeps_its_dtype():
    def forward(self, x):
        y = self.a(x)
        y += x
        y.exp_()
        return self.b(y) * 2
    file, _, _ = imported(module(forward))
    same([body_of(file, name)["output"] for name in ("add", "exp")], ["bf16[B,3,8]", "bf16[B,3,8]"])


def test_stochastic_depth_draws_in_its_tensors_dtype():
    depth = torchvision.ops.StochasticDepth(0.25, "row")
    file, _, _ = imported(module(lambda self, x: self.b(depth(self.a(x)))))
    same([n["name"] for n in file["nodes"]], ["a", "bernoulli", "div", "mul", "b"])
    same(body_of(file, "mul")["output"], "bf16[B,3,8]")


# -- what is compared --------------------------------------------------------------------------------------------------------

def test_a_norm_without_weights_keeps_its_statistics_in_f32():
    file, _, _ = imported(nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)), ["f32[B,3,8,8]"])
    same(body_of(file, "1")["saved"], ["f32[4B]", "f32[4B]"])


class Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight).softmax(-1)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g.float() @ weight.float(), g.float().t() @ x.float()


def test_functions_of_their_own():
    file, _, _ = imported(module(lambda self, x: self.b(Attended.apply(self.a(x), self.c.weight))), ["f32[B,8]"])
    own = body_of(file, "own_Attended")
    same(own["forward"], ["t0=_to_copy(p0,dtype=bf16)", "t1=t(t0)", "t2=mm(i0,t1)", "t3=_to_copy(t2,dtype=f32)", "o=_softmax(t3,-1,false)"])
    same((own["inputs"], own["output"], own["own_backward"]), (["bf16[B,8]"], "f32[B,8]", True))
    same(own["backward"][-1], "gi0=_to_copy(t0,dtype=bf16)")

    class Wrapped(Attended):
        forward = staticmethod(torch.amp.custom_fwd(Attended.forward, device_type="cpu", cast_inputs=torch.float32))
    file, _, _ = imported(module(lambda self, x: self.b(Wrapped.apply(self.a(x), self.c.weight))), ["f32[B,8]"])
    assert file["half"].startswith("custom autograd.Function 'Wrapped' says by a decorator (custom_fwd?) what autocast does inside"), file["half"]


def test_the_least_number_is_the_dtypes():
    def forward(self, x):
        scores = self.a(x)
        scores = scores.masked_fill(x > 0, torch.finfo(scores.dtype).min)
        return self.b(scores.softmax(-1))
    file, _, _ = imported(module(forward), ["f32[B,8]"])
    same(body_of(file, "masked_fill")["forward"][-1], f"o=masked_fill.Scalar(i0,i1,{torch.finfo(torch.bfloat16).min})")


def test_parameters_and_tables_as_they_lie():
    """A parameter that isn't contiguous, and angles that the module has computed once."""
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.angles = nn.Parameter(torch.linalg.qr(torch.randn(8, 8))[0]), None
            assert not self.w.is_contiguous()

        def forward(self, x):
            if self.angles is None or self.angles.device != x.device:
                self.angles = torch.arange(8, dtype=x.dtype).cos()
            return F.scaled_dot_product_attention(x @ self.w * self.angles, x * self.angles, x * self.angles)
    file, _, _ = imported(Turned())
    assert isinstance(file["half"], dict), file["half"]


def test_float16_is_the_same_text():
    made = models.gpt_nano()
    file, found, inputs = imported(made, ["i64[B,64]<256"], "cross_entropy")
    result = check_half.check_half(file, found.module, inputs, torch.float16)
    result.refuse_differences()
    # Three bits of the mantissa more: an eighth of bfloat16's error.
    bf16 = check_half.check_half(file, found.module, inputs)
    for name in ("output", "gradients"):
        assert 4 < bf16.ours[name] / result.ours[name] < 16, (bf16.text(), result.text())
    before, half_bodies.DTYPE = half_bodies.DTYPE, torch.float16
    try:
        again = import_model.import_module(import_model.Request(models.gpt_nano(), inputs, "cross_entropy"), False).file["half"]
    finally:
        half_bodies.DTYPE = before
    same(again, json.loads(re.sub(r"\bbf16\b", "f16", json.dumps(file["half"]))))


def test_a_wrong_body_is_found():
    file, found, inputs = imported(models.mlp(), ["f32[B,3,64]"])
    name = next(n for n in file["half"] if n.startswith("linear/"))
    def refused(spoil):
        spoiled = copy.deepcopy(file)
        spoil(spoiled["half"][name])
        try:
            check_half.check_half(spoiled, found.module, inputs).refuse_differences()
        except Refusal as refusal:
            return str(refusal).splitlines()[0]
        raise AssertionError("passed")
    def forget_a_cast(text):  # a copy in float64, where it isn't missed
        text["backward"] = [line.replace("dtype=f32", "dtype=bf16") if line.startswith("gp0") else line for line in text["backward"]]
    def wrong_call(text):
        text["forward"] = [line.replace(")", ",beta=2)") if "=addmm(" in line else line for line in text["forward"]]
    same(refused(forget_a_cast), f"body '{name}': gp0 is torch.bfloat16[256, 64], not f32[256,64]")
    assert refused(wrong_call).startswith("the output differs from PyTorch's by "), refused(wrong_call)


def test_rounding_more_than_pytorch_does_is_found():
    """Three bits more of a mantissa are gone where all that the second linear gives is shifted up and down again."""
    file, found, inputs = imported(models.mlp(), ["f32[B,3,64]"])
    name = [n for n in file["half"] if n.startswith("linear/")][1]
    lines = file["half"][name]["forward"]
    i = next(i for i, line in enumerate(lines) if "=addmm(" in line)
    out, call = lines[i].split("=", 1)
    lines[i:i + 1] = [f"q0={call}", "q1=add.Scalar(q0,64)", f"{out}=sub.Scalar(q1,64)"]
    result = check_half.check_half(file, found.module, inputs)
    assert result.exact.output < 1e-9, result.text()  # in float64 nothing is to be seen of it
    try:
        result.refuse_differences()
    except Refusal as refusal:
        assert str(refusal).startswith("half precision: output differs from float64's by 0."), refusal
        return
    raise AssertionError(result.text())


# -- what is left out --------------------------------------------------------------------------------------------------------

def test_recurrent_layers_are_in_half_precision():
    """As on a GPU, where each is one kernel, which is on a list."""
    for layer in (nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), nn.GRU(4, 6, batch_first=True), nn.RNN(4, 6, batch_first=True)):
        made = module(lambda self, x: self.b(self.rnn(x)[0][:, -1]), rnn=layer, b=nn.Linear(12 if layer.bidirectional else 6, 3))
        file, _, _ = imported(made, ["f32[B,5,4]"])
        body = body_of(file, "rnn")
        same(body["output"].split("[")[0], "bf16")
        assert body["products"].keys() == {"matmul bf16"}, body["products"]


def test_what_cant_be_said_is_left_out():
    known = autocast.policy_of
    with mock.patch.object(autocast, "policy_of", lambda target: None if "lstm" in target._schema.name else known(target)):
        file, found, _ = imported(models.TextClassifier(50, 4, 3), ["i64[B,3]<50"], "cross_entropy")
    assert file["half"].startswith("what autocast does inside op 'lstm' isn't known, at module 'lstm' (LSTM), "), file["half"]
    assert f"no half precision: {file['half']}" in found.notes
    assert not any("half" in n for n in file["nodes"])
    def own(self, x):
        return self.b(self.a(x).to(torch.bfloat16).float())
    file, _, _ = imported(module(own))
    same(file["half"], "the module itself uses half precision, in 'linear/2'")


def test_casts_that_depend_on_the_dtype_are_noted():
    def forward(self, x):
        y = self.a(x)
        return self.b(y.float() * torch.ones_like(y))
    _, found, _ = imported(module(forward, c=None))
    same([re.sub(r"half_test.py:\d+", "HERE", n).split(" at module")[0] for n in found.notes],
         ["1 casts to the dtype that a tensor has in float32 are none in half precision, either; the first",
          "1 constants with a tensor's dtype are float32 in half precision, too; the first"])


def test_a_file_whose_half_differs_has_none():
    def forward(self, x):
        return self.b(self.a(x))
    made = module(forward)
    sys.modules["half_test"] = sys.modules[__name__]
    globals()["made_for_the_command"] = lambda: made
    def written():
        status, said, error = run("half_test:made_for_the_command", "--input", "f32[B,3,8]", "--loss", "mse_loss")
        same((status, error), (0, ""))
        return said, json.loads(FILE.read_text())
    said, file = written()
    assert "  checked in bfloat16: with casts as copies: output 0.0e+00, " in said, said
    same(len(file["half"]), 2)
    before, check_half.STEP, check_half.FARTHER = (check_half.STEP, check_half.FARTHER), -1, 0
    try:
        said, file = written()
    finally:
        check_half.STEP, check_half.FARTHER = before
    assert "note: no half precision: half precision: output differs from float64's by 0.00" in said, said
    assert file["half"].startswith("half precision: output differs from float64's by "), file["half"]
    assert not any("half" in n for n in file["nodes"])


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
