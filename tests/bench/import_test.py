"""The importer (bench/import): what modules become.

    .venv/bin/python tests/bench/import_test.py [NAME…]        # exit status 0: all passed; 77: no torch here
"""

import collections
import dataclasses
import json
import random
import sys
import types
import warnings
from pathlib import Path
from types import SimpleNamespace

from importing import FILE, ROOT, bodies_of, imported, module, perceptron, refused, run, same, whole

import numpy
import torch
import torch.nn.functional as F
import torchvision
from paragauge_import import check, import_model, models, spec
from paragauge_import.graph import reader
from paragauge_import.refusal import NOT_THE_USERS
from run_functions import functions_of, run_functions
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.utils.flop_counter import FlopCounterMode


def expanded(file: dict) -> list:
    """The nodes of a hand-written file, block by block, with their inputs."""
    nodes, ends = [], {}

    def add(items, prefix, arguments, last, first):
        for item in items:
            item = {k: arguments[v[1:]] if isinstance(v, str) and v.startswith("$") else v for k, v in item.items()}
            if "block" in item:
                start = item.get("first", 0)
                for i in range(start, start + item.get("repeat", 1)):
                    name = prefix + item["name"].replace("{i}", str(i))
                    last = ends[name] = add(file["blocks"][item["block"]]["nodes"], name + ".", item, last, last)
                continue
            inputs = [first if x == "in" else ends.get(x, prefix + x if prefix else x) for x in item.get("inputs", [])] or [last]
            nodes.append({**item, "name": prefix + item["name"], "inputs": inputs})
            last = nodes[-1]["name"]
        return last
    add(file["nodes"], "", {}, "input", "input")
    defaults = {"stride": 1, "padding": 0}
    return [{k: v for k, v in n.items() if n["op"] == "max_pool" or defaults.get(k) != v} for n in nodes]


def test_a_resnet_is_the_catalogs():
    for name in ("resnet18", "resnet50"):
        status, out, err = run("--torchvision", name, "--input", "f32[B,3,224,224]", "--no-check")
        assert status == 0, err
        same(json.loads(FILE.read_text())["nodes"], expanded(json.loads((ROOT / f"sim/catalog/models/{name}.json").read_text())))


def test_vgg_is_the_catalogs_with_dropout():
    status, out, err = run("--torchvision", "vgg11", "--input", "f32[B,3,224,224]", "--no-check")
    assert status == 0, err
    nodes = json.loads(FILE.read_text())["nodes"]
    dropouts = [n for n in nodes if n["op"] == "aten"]
    same([n["name"] for n in dropouts], ["classifier.2", "classifier.5"])
    before = {n["name"]: n["inputs"][0] for n in dropouts}
    rest = [{**n, "inputs": [before.get(x, x) for x in n["inputs"]]} for n in nodes if n["op"] != "aten"]
    same(rest, expanded(json.loads((ROOT / "sim/catalog/models/vgg11.json").read_text())))


def test_gpt_nano():
    made = models.gpt_nano()
    ids = torch.randint(0, 256, (8, 64))
    with FlopCounterMode(display=False) as counter:
        made(ids)
    products = counter.get_total_flops()  # without attention: the counter has no formula for the CPU's kernel
    same(sum(p.numel() for p in made.parameters()), 834_304)
    file, notes = imported(made, ["i64[B,64]<256"], "cross_entropy", global_batch=8)
    same(notes, ["26 nodes can be cut for tensor parallelism: tp must divide 4, 512; the vocabulary of 256 is cut, too"])
    same(file["inputs"], [{"name": "input", "dtype": "i64", "shape": ["B", 64], "below": 256}])
    same(file["target"], {"classes": 256, "shape": ["B", 64]})
    same(file["units"], ["h.0", "h.1", "h.2", "h.3"])
    same(file["parameters"]["wte.weight"]["also"], ["lm_head.weight"])
    same(sum(torch.Size(p["shape"]).numel() for p in file["parameters"].values()), 834_304)
    same(file["constants"], {"c0": {"dtype": "i64", "shape": [64], "values": {"arange": [0, 1]}}})
    flops = [0, 0]
    for node in file["nodes"]:
        if node.get("body", "").startswith("linear/"):
            forward, backward = whole(file["bodies"][node["body"]], "flops")
            flops = [flops[0] + forward[1], flops[1] + backward[1]]
            same(forward[0], 0)
    same([8 * f for f in flops], [products, 2 * products])
    attention, = bodies_of(file, "attention")
    same(whole(attention, "flops")[0], [0, 4 * 64 * 64 * 128 + 4 * 64])  # 4·T·S·h·D, and the copy of its logarithms
    same(attention["saved"], ["f32[B,T,64]"])
    same(attention["output"], "f32[B,64,32T]")
    same(bodies_of(file, "gelu")[0]["forward"], ["o=gelu(i0,approximate=tanh)"])
    same(bodies_of(file, "gelu")[0]["backward"], ["gi0=gelu_backward(g,i0,approximate=tanh)"])
    same(file["nodes"][-1], {"name": "lm_head", "op": "aten", "body": "linear/5", "inputs": ["ln_f"], "parameters": ["wte.weight"],
                             "half": "linear/half5"})
    assert all(body["rows"] for body in file["bodies"].values())
    same(len(file["bodies"]), 12)


def test_llama_nano():
    made = models.llama_nano()
    same(sum(p.numel() for p in made.parameters()), 803_968)
    file, _ = imported(made, ["i64[B,64]<256"], "cross_entropy")
    same(file["units"], [f"layers.{i}" for i in range(4)])
    assert "1e-05" in str(bodies_of(file, "rms_norm")[0]["forward"])  # not what a kernel rounded it to
    # But a number of the module's own stays, though it is one of f32's.
    file, _ = imported(module(lambda self, x: self.a(x) / 0.699999988079071))
    same(bodies_of(file, "div")[0]["forward"], ["o=div.Scalar(i0,0.699999988079071)"])


def test_large_tables_are_made_in_the_step():
    largest, reader.LARGEST_TABLE = reader.LARGEST_TABLE, 64
    try:
        file, _ = imported(models.Llama(16, 1, 16, 2, 1, 8, 10000.0), ["i64[B,32]<16"], "cross_entropy")
    finally:
        reader.LARGEST_TABLE = largest
    same([n["name"] for n in file["nodes"] if n["name"].startswith("rotary")],
         ["rotary.outer", "rotary.concat", "rotary.cos", "rotary.sin"])
    same([c["shape"] for c in file["constants"].values()], [[32], [4]])


def test_a_batch_norm_with_parts_of_its_own():
    class WithRelu(nn.BatchNorm2d):
        def __init__(self, channels):
            super().__init__(channels)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(super().forward(x))
    file, _ = imported(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), WithRelu(4)), ["f32[B,3,8,8]"])
    same([(n["name"], n["op"]) for n in file["nodes"]], [("0", "conv2d"), ("1", "batch_norm"), ("1.act", "relu")])


def test_masks_of_transformers_before_version_5():
    """Which makes them by torch.vmap of a function of sample, head, query and key, with an index of a tensor by these."""
    masks = types.ModuleType("transformers.masking_utils")

    def by_vmap(mask_function, bh_indices=True):
        dims = [(None, None, None, 0), (None, None, 0, None)] + [(None, 0, None, None), (0, None, None, None)] * bh_indices
        for each in dims:
            mask_function = torch.vmap(mask_function, in_dims=each, out_dims=0)
        return mask_function
    masks._vmap_for_bhqkv, masks.TransformGetItemToIndex = by_vmap, TransformGetItemToIndex

    def attended(self, x, seen):
        batch, places = torch.arange(len(x)), torch.arange(4)
        def padded(b, h, q, k):
            return (k <= q) & (seen[b, k] > 0)
        with masks.TransformGetItemToIndex():
            mask = masks._vmap_for_bhqkv(padded)(batch, torch.arange(1), places, places)
        causal = masks._vmap_for_bhqkv(lambda b, h, q, k: k <= q, bh_indices=False)(None, None, places, places)
        q, k, v = (layer(x).unsqueeze(1) for layer in (self.a, self.b, self.c))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask & causal)
    sys.modules[masks.__name__] = masks
    try:
        imported(module(attended), ["f32[B,4,8]", "i64[B,4]<5"])
    finally:
        del sys.modules[masks.__name__]
    assert "torch.func (vmap" in refused(module(attended), ["f32[B,4,8]", "i64[B,4]<5"])


def test_a_small_twin_stands_for_a_model_without_values():
    vectors = [spec.read_input("f32[B,5,8]")]
    small = import_model.Request(perceptron(4, "cpu"), vectors, "mse_loss")
    file = import_model.import_module(import_model.Request(perceptron(10**7, "meta"), vectors, "mse_loss", small=small)).file
    same(file["parameters"]["0.weight"], {"shape": [10**7, 8], "center": 0, "bound": 0.1})
    same([b["rows"] for b in file["bodies"].values()], [True, True, True])
    same(refused(perceptron(4, "meta"), ["f32[B,5,8]"]),
         "parameters on the device 'meta' have no values to check with: the builder's import_options need \"small\", a builder of the same model, small")
    # What a run finds to be copied isn't found for the large one, so not for the small one either, and the check says so.
    def unfolds(width, device):
        with torch.device(device):
            m = nn.Sequential(nn.Conv2d(3, width, 3), nn.Unfold(3, padding=1))
        for p in m.parameters():
            p.initial = (0, 0.1)
        return m
    images = [spec.read_input("f32[B,3,8,8]")]
    small = import_model.Request(unfolds(4, "cpu"), images, "mse_loss")
    import_model.import_module(import_model.Request(unfolds(4000, "meta"), images, "mse_loss", small=small))
    other = import_model.Request(nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8)), vectors, "mse_loss")
    same(refused(perceptron(4, "cpu"), ["f32[B,5,8]"], small=other), "the small model isn't the same: node '1'")


def test_a_model_without_values_may_have_tables():
    class Scaled(nn.Module):
        def __init__(self, width, device):
            super().__init__()
            self.layer = nn.Linear(8, width, device=device)
            self.register_buffer("steps", torch.arange(8.0))
            for p in self.parameters():
                p.initial = (0, 0.1)

        def forward(self, x):
            return self.layer(x * self.steps)
    vectors = [spec.read_input("f32[B,8]")]
    request = import_model.Request(Scaled(10**7, "meta"), vectors, "mse_loss", small=import_model.Request(Scaled(4, "cpu"), vectors, "mse_loss"))
    file = import_model.import_module(request).file
    same([c["values"] for c in file["constants"].values()], [{"arange": [0.0, 1.0]}])


def test_images_with_a_class_per_pixel():
    file, _ = imported(models.unet(), ["f32[B,3,16,16]"], "cross_entropy")
    same(file["target"], {"classes": 4, "shape": ["B", 16, 16]})
    same(file["nodes"][-1]["name"], "head.permute")
    same([n["op"] for n in file["nodes"]].count("conv2d"), 11)
    up = bodies_of(file, "conv_transpose2d")[0]
    product = 2 * 64 * 32 * 2 * 2 * 4 * 4  # channels in and out, kernel, image of the input
    same([f[1] for f in up["flops"]], [product, 2 * product])


def test_several_outputs_are_merged():
    def forward(self, x):
        best, where = self.a(x).topk(3)
        return (self.b(x).gather(1, where) * F.softmax(best, -1)).sum(1, keepdim=True)
    file, _ = imported(module(forward))
    same([(n["name"], n["inputs"]) for n in file["nodes"]], [("a", ["input"]), ("b", ["input"]), ("topk", ["b", "a"]), ("sum", ["topk"])])


def test_products_inside_other_ops_are_counted():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.bilinear, self.codes = nn.Bilinear(16, 32, 4), nn.Parameter(torch.randn(64, 16))

        def forward(self, a, b):
            return self.bilinear(a, b) + torch.cdist(a, self.codes)[:, :4]
    file, _ = imported(Pair(), ["f32[B,16]", "f32[B,32]"])
    of = {name: whole(body, "flops")[0] for op in ("bilinear", "cdist") for name, body in file["bodies"].items() if op in name}
    flops = sum(amount[1] for amount in of.values())
    assert flops >= 2 * (16 * 32 * 4 + 64 * 16), of


def test_lookups_read_what_they_look_up():
    file, _ = imported(nn.Sequential(nn.Embedding(1000, 16), nn.Flatten(), nn.Linear(64, 8)), ["i64[B,4]<1000"])
    body, = bodies_of(file, "embedding")
    same(whole(body, "bytes"), [[0, 4 * 8 + 2 * 4 * 16 * 4], [1000 * 16 * 4, 4 * 8 + 4 * 16 * 4]])


def test_parts_in_eval_stay_so():
    m = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8))
    m[1].eval(), m[2].eval()
    _, notes = imported(m)
    assert "parts in eval() stay so, without dropout and with the averages of their batch norms: 1, 2" in notes, notes
    _, notes = imported(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval())
    assert not any("eval" in note for note in notes), notes


def test_dropout_that_keeps_the_mean():
    imported(nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.AlphaDropout(0.5), nn.Linear(8, 4)))


def test_parameters_without_elements_or_values():
    idle = module(lambda self, x: self.a(x), dummy=nn.Parameter(torch.empty(0)))  # for its device
    imported(idle)
    unset = module(lambda self, x: self.a(x) @ self.w, w=nn.Parameter(torch.full((8, 8), float("nan"))))
    same(refused(unset), "parameter 'w' has values that aren't numbers: it isn't initialised")


def test_tables_in_lists():
    def forward(self, x):
        for adjacency in self.supports:
            x = self.a(torch.einsum("bi,ij->bj", x, adjacency))
        return x
    imported(module(forward, supports=[torch.rand(8, 8), torch.rand(8, 8)]))


def test_hashed_embeddings():
    made = module(lambda self, ids: self.c(self.table(ids % self.sizes).flatten(1)), table=nn.Embedding(100, 8), c=nn.Linear(24, 8))
    made.register_buffer("sizes", torch.tensor([7, 11, 13]))
    imported(made, ["i64[B,3]<1000"])


def test_many_are_concatenated():
    def forward(self, x):
        return self.b(torch.cat([self.a(x) * k for k in range(33)], 1)[:, 60:68])
    file, notes = imported(module(forward))
    assert "what is concatenated of more than 30 tensors is so in two goes, and copied once more" in notes, notes
    assert max(len(n.get("inputs", [])) for n in file["nodes"]) == 30


def test_what_gpus_fuse_is_noted():
    norm = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8))
    assert any(note.startswith("rms_norm is written out, as CPUs have it") for note in imported(norm)[1])
    for p, expected in ((0.0, False), (0.1, True)):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=p, batch_first=True)
        notes = imported(layer, ["f32[B,4,8]"])[1]
        same(any(note.startswith("attention with dropout is products") for note in notes), expected)


def test_bags_of_one_size():
    class Bags(nn.Module):
        def __init__(self, mode):
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 8, mode=mode)

        def forward(self, x):
            return self.bag(x)
    for mode in ("sum", "mean", "max"):
        imported(Bags(mode), ["i64[B,3]<9"])


def test_layers_that_are_called_as_what_a_file_has():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.target, self.x, self.loss = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.loss(self.x(self.target(self.input(x))).view(-1, 2, 2).flatten(1))
    file, _ = imported(Named(), ["x=f32[B,8]"])
    same([(n["name"], n["op"]) for n in file["nodes"]], [("input_2", "aten"), ("target_2", "aten"), ("x", "linear"), ("loss_2", "aten")])


def test_batch_norms_of_any_rank():
    for layer, norm, sizes in ((nn.Linear(3, 4), nn.BatchNorm1d(4), "3"), (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), "3,8"),
                               (nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), "3,4,4,4")):
        file, _ = imported(nn.Sequential(layer, norm), [f"f32[B,{sizes}]"])
        same([n["op"] for n in file["nodes"] if n["name"] == "1"], ["batch_norm"])


def test_batch_norms_that_see_all_ranks_samples():
    made = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4, affine=False)))
    file, notes = imported(made, ["f32[B,3,8,8]"])
    same([n.get("sync") for n in file["nodes"]], [None, True, None, None])
    assert ("SyncBatchNorm 3: each rank sees its own samples here (called twice, frozen, or without weights or running statistics)") in notes, notes


def test_a_norm_whose_eps_is_its_dtypes():
    imported(nn.Sequential(nn.Linear(8, 4), nn.RMSNorm(4)))  # eps=None


def test_classes_on_the_second_dimension():
    for layer, size, loss_rows in ((nn.Conv1d(3, 4, 3), "3,10", ["B", 8]), (nn.Conv3d(3, 4, 1), "3,2,5,6", ["B", 2, 5, 6]),
                                   (nn.Conv1d(3, 4, 1), "3,4", ["B", 4]), (nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), "3,10", ["B", 8])):
        file, _ = imported(layer, [f"f32[B,{size}]"], "cross_entropy")
        same(file["target"], {"classes": 4, "shape": loss_rows})
    words = nn.Sequential(nn.Linear(3, 5))  # [batch, positions, classes], unless it is said otherwise
    same(imported(words, ["f32[B,7,3]"], "cross_entropy")[0]["target"], {"classes": 5, "shape": ["B", 7]})
    same(imported(words, ["f32[B,7,3]"], "cross_entropy", classes=7)[0]["target"], {"classes": 7, "shape": ["B", 5]})


def test_sparse_gradients_are_dense():
    file, notes = imported(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 4)), ["i64[B,3]<9"])
    assert "sparse=True of an embedding is off: its gradient is dense here" in notes, notes


def test_who_sees_nobody():
    """Of a causal mask and a padding mask together: PyTorch's attention gives zeros, with dropout, too."""
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(4, 8, padding_idx=0)
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, 0.1, batch_first=True)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))

        def forward(self, x):
            return self.layer(self.words(x), src_mask=self.mask, src_key_padding_mask=torch.zeros_like(x, dtype=torch.float).masked_fill(x == 0, -torch.inf))
    file, _ = imported(Masked(), ["i64[B,3]<4"], "mse_loss")
    same([c["values"] for c in file["constants"].values() if "-inf" in str(c["values"])],
         [{"list": [0.0, "-inf", "-inf", 0.0, 0.0, "-inf", 0.0, 0.0, 0.0]}])


def test_groups_that_more_samples_make():
    made = module(lambda self, x: torch.cat([self.norm(c) for c in self.a(x).chunk(-(-len(x) // 64))]), norm=nn.BatchNorm1d(8))
    found = import_model.import_module(request := import_model.Request(made, [spec.read_input("f32[B,8]")], "mse_loss"))
    note = import_model.other_with_more_samples(found, request)
    assert note.startswith("with 128 samples on a rank the module does something else than this file says, first at module '"), note
    assert note.endswith("; forecasts hold up to 64"), note
    made = module(lambda self, x: self.a(x) * (2.0 if len(x) > 6 else 1.0))  # the same calls, with another number
    found = import_model.import_module(request := import_model.Request(made, [spec.read_input("f32[B,8]")], "mse_loss"))
    assert import_model.other_with_more_samples(found, request).endswith("; forecasts hold up to 4"), found.notes
    table = module(lambda self, x: self.a(x) + self.rows[:len(x)], rows=nn.Parameter(torch.randn(64, 8)))
    found = import_model.import_module(request := import_model.Request(table, [spec.read_input("f32[B,8]")], "mse_loss"))
    assert import_model.other_with_more_samples(found, request).startswith("with 128 samples on a rank the module fails: "), found.notes
    found = import_model.import_module(request := import_model.Request(models.mlp(), [spec.read_input("f32[B,3,64]")], "mse_loss"))
    same(import_model.other_with_more_samples(found, request), None)


def test_random_numbers():
    depth = torchvision.ops.StochasticDepth(0.25, "row")
    made = module(lambda self, x: self.b(depth(F.dropout(self.a(x), 0.5)) + self.a(x)))
    file, _ = imported(made)
    same(bodies_of(file, "dropout")[0]["forward"], ["o,s0=native_dropout(i0,0.5,true)"])
    same(bodies_of(file, "dropout")[0]["backward"], ["gi0=native_dropout_backward(g,s0,2.0)"])
    assert any("bernoulli.p(t0,0.75)" in line for body in file["bodies"].values() for line in body["forward"]), file["bodies"]


    # An exact play has one value of each, whatever draws it.
    imported(module(lambda self, x: self.b(F.gumbel_softmax(self.a(x))) + torch.normal(self.a(x).detach(), 1.0) +
                    torch.normal(self.c.bias.detach(), self.a(x).detach().abs()) + torch.normal(0.0, 1.0, (8,))))


def test_diffusion():
    """A step's noise is of a time that is drawn; samples are mixed with others."""
    def forward(self, x):
        t = torch.randint(1, 20, (len(x),))
        y = self.a(x + torch.randn_like(x) * t[:, None] / 20 + torch.rand(len(x), 1)) + self.b(x[torch.randperm(len(x))])
        return y * torch.randint_like(t, 5).unsqueeze(1).exp()
    file, _ = imported(module(forward, c=None))
    imported(module(lambda self, x: self.a(x)[torch.randperm(len(x), dtype=torch.int32)]))
    same([bodies_of(file, op)[0]["forward"][0] for op in ("randint", "randperm", "randint_like")],
         ["o=randint.low(1,20,[B])", "o=randperm(B)", "o=randint_like(i0,5)"])


def test_no_keys_are_kept_for_later_words():
    made = module(lambda self, x: (self.a(x), {"kept": x}) if self.config.use_cache else self.a(x), config=SimpleNamespace(use_cache=True))
    assert "config.use_cache is off: a step of training keeps no keys and values for later words" in imported(made)[1]


def test_pytorchs_own_layers_with_dropout():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    file, _ = imported(nn.TransformerEncoder(layer, 2), ["f32[B,3,8]"])
    same({body["units"] for body in file["bodies"].values() if "units" in body}, {2, 16})


def test_a_recurrent_network():
    made = models.TextClassifier(50, 4, 3)
    file, _ = imported(made, ["i64[B,3]<50"], "cross_entropy")
    same([n["name"] for n in file["nodes"]], ["embedding", "lstm", "mean", "fc"])
    assert all(body["rows"] for body in file["bodies"].values())


def test_wrappers_and_names():
    file, notes = imported(nn.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))), loss="cross_entropy")
    same([n["name"] for n in file["nodes"]], ["0", "1", "2"])
    assert "DataParallel is left out: a strategy brings it" in notes
    file, _ = imported(module(lambda self, x: self.act(self.b(self.act(self.a(x)))), act=nn.ReLU()))
    same([n["name"] for n in file["nodes"]], ["a", "act1", "b", "act2"])


@dataclasses.dataclass
class Returned:
    logits: torch.Tensor
    more: dict
    loss: torch.Tensor = None


def test_one_of_what_is_returned():
    def nodes(returned, prediction=""):
        file, _ = imported(module(returned), prediction=prediction)
        return [n["name"] for n in file["nodes"]]
    same(nodes(lambda self, x: Returned(self.a(x), {"n": 3})), ["a"])
    both = module(lambda self, x: Returned(y := self.a(x), {"hidden": (x, self.b(y))}))
    for prediction, expected in (("logits", ["a"]), ("more.hidden.1", ["a", "b"])):  # of one module, after each other
        file, _ = imported(both, prediction=prediction)
        same([n["name"] for n in file["nodes"]], expected)
    same(nodes(lambda self, x: (self.a(x), self.b(x)), "1"), ["b"])
    Named = collections.namedtuple("Named", "first second")
    same(nodes(lambda self, x: Named(self.a(x), self.b(x)), "second"), ["b"])
    same(nodes(lambda self, x: Named(self.a(x), self.b(x)), "1"), ["b"])

    class Own:
        def __init__(self, y):
            self.y = y
    same(nodes(lambda self, x: Own({"z": self.b(x)}), "y.z"), ["b"])


def test_every_step_is_the_first():
    def counting(self, x):
        self.hist.append(len(self.hist))
        self.kept[x.shape[0]] = x
        return self.a(x) / len(self.hist) * self.kept.setdefault("scale", 1.0)

    def logging(self, x):
        self.hist.append(x.shape[0])
        self.on, self.kept["last"], self.last = True, x, x
        return self.a(x)

    def remembering(self, x):
        y = self.a(x) if self.last is None else self.a(x) + self.last
        self.last, self.new = y.detach(), 1
        return y

    def drawing(self, x):
        return self.a(x) if self.hist[0].random() < 2 and self.numpys.random() < 0.6 and self.pythons.random() < 2 else self.b(x)

    def scheduled(self, x):
        self.step += 1
        return self.a(x) if self.step < 3 else self.b(x)
    for forward, moved, nodes in ((counting, ["hist", "kept"], 3), (logging, [], 1), (remembering, ["last", "new"], 1),
                                  (drawing, ["numpys", "pythons"], 1), (scheduled, ["step"], 1)):
        numpys, pythons = numpy.random.default_rng(1), random.Random(1)
        own = module(forward, hist=[] if forward is not drawing else [random.Random(1)], kept={}, on=False, last=None, step=0, numpys=numpys, pythons=pythons)
        file, _ = imported(own)
        same((len(own.hist), own.kept, own.on, own.last, own.step, hasattr(own, "new")), (forward is drawing, {}, False, None, 0, False))
        same(check.check(file, own, [spec.read_input("f32[B,8]")]).moved, moved)
        same((numpys.random(), pythons.random()), (numpy.random.default_rng(1).random(), random.Random(1).random()))
        same(len(file["nodes"]), nodes)


def test_what_an_export_does_not_see_is_noted():
    def notes_of(forward, **more):
        return [n for n in imported(module(forward, **more))[1] if "aren't read" not in n]

    def seeded(self, x):
        torch.manual_seed(3)
        return self.a(x) + torch.randn(8, 8)[0]
    same(notes_of(seeded), ["torch.manual_seed in the forward is left out: what is drawn after it is drawn anew in each step"])

    def hooked(self, x):
        y = self.a(x)
        y.register_hook(lambda g: g.clamp(-1e-3, 1e-3)).remove()
        return y
    same(notes_of(hooked), ["register_hook: what hooks do to gradients is left out"])
    own = module(lambda self, x: self.a(x))
    own.a.weight.register_hook(lambda g: g * 0)
    same(imported(own)[1][0], "register_hook: what hooks do to gradients is left out: of a.weight")
    same(notes_of(lambda self, x: self.a(x) + torch.rand(8, generator=self.g), g=torch.Generator()), [])


def test_checks_of_values_pass():
    def forward(self, x):
        y = self.a(x)
        assert torch.isfinite(y).all() and not (y > 1e9).any(), "large"
        if not (x < 1e9).all() or torch.isnan(x).any():
            y = y * 2
            raise ValueError("x")
        elif (y > 1e8).any():
            warnings.warn("large")
        if torch.isnan(y).any() and (x < 0).any():  # the second isn't asked for
            y = torch.nan_to_num(y)
        torch._assert((y < 1e7).all(), "large")
        torch._assert(y.dim() == 2, "of no tensor's values")
        return y
    file, notes = imported(module(forward))
    same([n["name"] for n in file["nodes"]], ["a"])
    checks = [n.split(": ", 2)[2] for n in notes if n.startswith("a check of values is left out, as if it had passed: import_test.py:")]
    same(checks, ['assert torch.isfinite(y).all() and not (y > 1e9).any(), "large"', "if not (x < 1e9).all() or torch.isnan(x).any():",
                  "elif (y > 1e8).any():", "if torch.isnan(y).any() and (x < 0).any():  # the second isn't asked for",
                  'torch._assert((y < 1e7).all(), "large")'])
    same([n for n in notes if "of no tensor's values" in n], [])


def test_lines_of_packages_beside_torch_are_named():
    same([str(Path(package.__file__)).startswith(NOT_THE_USERS) for package in (torch, torch.nn, import_model, torchvision)],
         [True, True, True, False])


def test_two_inputs_by_name():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.a = nn.Embedding(9, 4), nn.Linear(8, 4)

        def forward(self, ids, x=None):
            return self.table(ids) * self.a(x)
    file, _ = imported(Pair(), ["x=f32[B,8]", "i64[B]<9"])
    same([x["name"] for x in file["inputs"]], ["input", "input_2"])
    same(next(n["inputs"] for n in file["nodes"] if n["name"] == "table"), ["input_2"])


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
