"""The importer (bench/import): what modules become, that the check finds what is wrong, what bad input says.

    .venv/bin/python tests/bench/import_test.py [NAME…]        # exit status 0: all passed; 77: no torch here
"""

import contextlib
import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from importing import FILE, ROOT, module, run, same

import check
import graph
import import_model
import models
import parts
import play
import spec
import torch
import torch.nn.functional as F
import torchvision
import vocabulary
from refusal import Refusal
from run_functions import functions_of, run_functions
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

VECTOR = ["f32[B,8]"]


def imported(m, inputs=VECTOR, loss="mse_loss", **more):
    """Imported, written, read and checked: the file and its notes."""
    torch.manual_seed(0)
    inputs = [spec.read_input(text) for text in inputs]
    found = import_model.import_module(import_model.Request(m, inputs, loss, **more))
    import_model.write(found, FILE)
    file = json.loads(FILE.read_text())
    check.check(file, found.module, inputs).refuse_differences()
    return file, found.notes


def refused(m, inputs=VECTOR, loss="mse_loss", **more) -> str:
    try:
        imported(m, inputs, loss, **more)
    except Refusal as refusal:
        return str(refusal)
    raise AssertionError("was imported")


def line_of(text: str) -> int:
    """Where this file has a text."""
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def bodies_of(file, op) -> list:
    return [body for name, body in file["bodies"].items() if name.split("/")[0] == op]


def whole(body, key) -> list:
    """A body's FLOPs or bytes of forward and backward, with all units: [fixed, per sample] each."""
    units = body.get("units", 0)
    return [[a + c * units, b + d * units] for a, b, c, d in (amount + [0, 0] * (len(amount) == 2) for amount in body[key])]


# -- what modules become -------------------------------------------------------------------------------------------------

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


# -- what is cut for tensor parallelism ----------------------------------------------------------------------------------

def cuts_of(m, inputs, loss="mse_loss") -> dict:
    """How many units each node has that can be cut."""
    file, _ = imported(m, inputs, loss)
    units = {n["name"]: file["bodies"][n["body"]].get("units") for n in file["nodes"] if n["op"] == "aten"}
    return {name: n for name, n in units.items() if n}


WORDS = ["f32[B,6,8]"]


def test_columns_and_rows_are_found():
    same(cuts_of(module(lambda self, x: self.b(F.gelu(self.a(x)))), WORDS), {"a": 8, "gelu": 8, "b": 8})
    same(cuts_of(module(lambda self, x: self.c(F.silu(self.a(x)) * self.b(x))), WORDS), {"a": 8, "silu": 8, "b": 8, "mul": 8, "c": 8})
    # Two pairs, with what all play between them; the last column has no row.
    both = module(lambda self, x: self.a(x + self.c(torch.tanh(self.b(F.layer_norm(x, (8,)))))))
    same(cuts_of(both, WORDS), {"b": 8, "tanh": 8, "c": 8})
    two_rows = module(lambda self, x: (y := torch.tanh(self.a(x)), self.b(y) + self.c(y))[1])
    same(cuts_of(two_rows, WORDS), {"a": 8, "tanh": 8, "b": 8, "c": 8})


def language_model(vocabulary=9, tied=True, head=lambda y: y, **more):
    """An embedding, a pair of layers and a head."""
    norm = lambda x: F.layer_norm(x, (8,))  # noqa: E731
    made = module(lambda self, ids: head(self.out(norm((x := self.words(ids)) + self.b(torch.tanh(self.a(norm(x))))))),
                  words=nn.Embedding(vocabulary, 8, **more), out=nn.Linear(8, vocabulary, bias=False), c=None)
    if tied:
        made.out.weight = made.words.weight
    return made


def test_a_vocabulary_is_cut():
    ids = ["i64[B,6]<9"]
    for tied in (True, False):
        file, notes = imported(language_model(tied=tied), ids, "cross_entropy")
        same(notes[-1], "5 nodes can be cut for tensor parallelism: tp must divide 8; the vocabulary of 9 is cut, too")
        words, out = file["nodes"][0], file["nodes"][-1]
        head, whole_words, part = (file["bodies"][x] for x in (out["body"], words["body"], words["in_parts"]))
        same([head["parameters"], head["output"], head["sums"]], [["f32[T,8]"], "f32[B,6,T]", ["gi0"]])
        same(whole_words["forward"], ["o=embedding(p0,i0)"])  # what one device plays
        same([part["parameters"], part["output"], part["sums"], part["units"]], [["f32[T,8]"], "f32[B,6,8]", ["o"], 9])
        # For each position: sub; lt, ge; or; masked_fill; the lookup, which also reads the part's table; masked_fill.
        same(part["bytes"][0], [8, 6 * (2 * 8 + 2 * (8 + 1) + 3 + (8 + 1 + 8) + (8 + 32) + (32 + 1 + 32)), 32, 0])  # and F
        del words["in_parts"]
    _, notes = imported(module(lambda self, ids: self.out(self.words(ids)), a=None, b=None, c=None, words=nn.Embedding(9, 8), out=nn.Linear(8, 9)),
                        ids, "cross_entropy")
    same(notes[-1], "2 nodes can be cut for tensor parallelism: the vocabulary of 9 is cut")
    # What follows the head goes with it; what takes all words doesn't.
    same(cuts_of(language_model(head=lambda y: 30 * torch.tanh(y / 30)), ids, "cross_entropy"),
         {"a": 8, "tanh": 8, "b": 8, "out": 9, "div": 9, "tanh_2": 9, "mul": 9})
    same(cuts_of(language_model(head=lambda y: y.log_softmax(-1)), ids, "cross_entropy"), {"a": 8, "tanh": 8, "b": 8})
    same(cuts_of(language_model(head=lambda y: y.sum(1)), ids, "cross_entropy"), {"a": 8, "tanh": 8, "b": 8})
    same(cuts_of(language_model(head=lambda y: y.transpose(1, 2).contiguous()), ["i64[B,9]<9"], "cross_entropy"), {"a": 8, "tanh": 8, "b": 8})
    same(cuts_of(language_model(), ids, "mse_loss"), {"a": 8, "tanh": 8, "b": 8})
    # A lookup that isn't the plain one stays whole; and the head with it, whose table it is.
    same(cuts_of(language_model(padding_idx=0), ids, "cross_entropy"), {"a": 8, "tanh": 8, "b": 8})
    file, _ = imported(language_model(padding_idx=0, tied=False), ids, "cross_entropy")
    assert "in_parts" not in file["nodes"][0] and file["bodies"][file["nodes"][-1]["body"]]["units"] == 9


def test_parts_of_a_vocabulary_that_are_wrong_are_found():
    file, _ = imported(language_model(), ["i64[B,6]<9"], "cross_entropy")
    body = file["bodies"][file["nodes"][0]["in_parts"]]
    right = lambda **more: parts.parts_are_the_whole({**body, **more}, below=9, plain=vocabulary.plain(9))  # noqa: E731
    assert right()
    for which in ("forward", "backward"):
        assert not right(**{which: [line.replace(",F)", ",0)") for line in body[which]]})
        assert not right(**{which: [line.replace("lt.Scalar(t0,0)", "lt.Scalar(t0,1)") for line in body[which]]})


def test_heads_are_units():
    def grouped(self, x):
        q, k, v = self.a(x).view(-1, 6, 4, 2), self.b(x)[..., :4].reshape(-1, 6, 2, 2), self.b(x)[..., 4:].reshape(-1, 6, 2, 2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return self.c(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(-1, 6, 8))
    same(cuts_of(module(grouped), WORDS), {})  # what is taken out of b's features by hand isn't blocks of one size behind each other

    def packed(self, x):
        q, k, v = (t.view(-1, 6, 4, 2).transpose(1, 2) for t in self.wide(x).chunk(3, dim=-1))
        return self.c(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 6, 8))
    file, notes = imported(module(packed, wide=nn.Linear(8, 24), a=None, b=None), WORDS)
    same(notes, ["3 nodes can be cut for tensor parallelism: tp must divide 4"])
    column, row = bodies_of(file, "linear")
    same(column["parameters"], ["f32[3x2T,8]", "f32[3x2T]"])
    same([column["output"], column["sums"], row["parameters"], row["sums"]],
         ["f32[B,6,3x2T]", [], ["f32[8,2T]", "f32[8]"], ["o"]])
    assert any("beta=L" in line for line in row["forward"])
    same(file["parameters"]["wide.weight"]["shape"], [24, 8])

    def by_hand(self, x):
        q, k, v = (f(x).view(-1, 6, 4, 2).transpose(1, 2) for f in (self.a, self.b, self.c))
        y = torch.softmax(q @ k.transpose(2, 3) / 2**0.5, -1) @ v
        return self.last(y.transpose(1, 2).reshape(-1, 6, 8))
    cuts = cuts_of(module(by_hand, last=nn.Linear(8, 8)), WORDS)
    same([set(cuts.values()), "last" in cuts, len(cuts)], [{4}, True, 8])
    assert set(cuts_of(models.llama_nano(), ["i64[B,64]<256"], "cross_entropy").values()) == {2, 352, 256}
    vit = torchvision.models.VisionTransformer(16, 8, 1, 4, 16, 32, num_classes=5)
    assert set(cuts_of(vit, ["f32[B,3,16,16]"], "cross_entropy").values()) == {4, 32}


def test_what_treats_positions_alike_is_cut_by_them():
    def cut(m, inputs=WORDS, loss="mse_loss"):
        file, _ = imported(m, inputs, loss)
        return {n["name"]: file["bodies"][n["body"]] for n in file["nodes"] if "positions" in file["bodies"].get(n.get("body"), {})}
    between = lambda f: module(lambda self, x: self.c(torch.tanh(self.b(f(x)))))  # noqa: E731
    found = cut(language_model(), ["i64[B,6]<9"], "cross_entropy")
    same({name: body["positions"] for name, body in found.items()}, {"layer_norm": 6, "layer_norm_2": 6})
    norm, = cut(module(lambda self, x: self.c(torch.tanh(self.b(self.norm(x)))), norm=nn.LayerNorm(8))).values()
    same([norm["inputs"], norm["parameters"], norm["saved"][0], norm["sums"]], [["f32[B,T,8]"], ["f32[8]"] * 2, "f32[B,T,1]", ["gp0", "gp1"]])
    # Constants of the positions go with them, and what is looked up for them.
    scaled, = cut(between(lambda x: x * torch.arange(1.0, 7)[:, None])).values()
    same(scaled["inputs"], ["f32[B,T,8]", "f32[T,1]"])
    found = cut(module(lambda self, x: self.c(torch.tanh(self.b(x + self.where(torch.arange(6))))), where=nn.Embedding(6, 8)))
    same([body["sums"] for body in found.values()], [["gp0"], []])
    # What sees others than its own isn't; sizes would allow it.
    for f in (lambda x: torch.softmax(x, 1), lambda x: torch.cumsum(x, 1), lambda x: x.roll(1, 1), lambda x: x.flip(1),
              lambda x: F.layer_norm(x, (6, 8)), lambda x: x[:, torch.arange(5, -1, -1)]):
        same(cut(between(f)), {})
    same(cut(module(lambda self, x: torch.tanh(self.b(F.layer_norm(x, (8,)))))), {})  # nothing to lie between
    # In half precision the same: a sum of f32 and bf16.
    file, _ = imported(module(lambda self, x: x + self.c(torch.tanh(self.b(F.layer_norm(x, (8,)))))), WORDS)
    add = file["nodes"][-1]
    same([add["op"], file["half"][add["half"]]["inputs"]], ["add", ["f32[B,T,8]", "bf16[B,T,8]"]])


def test_what_cant_be_played_in_parts_isnt():
    # Sizes would allow it, numbers don't: a maximum over all features, a sum of them, a shift along them.
    for between in (lambda y: torch.softmax(y, -1), lambda y: y / y.norm(dim=-1, keepdim=True), lambda y: torch.cumsum(y, -1),
                    lambda y: y.roll(1, -1), lambda y: y.flip(-1), lambda y: F.layer_norm(y, (8,))):
        same(cuts_of(module(lambda self, x, f=between: self.b(f(self.a(x)))), WORDS), {})
    same(cuts_of(module(lambda self, x: self.b(torch.tanh(self.a(x))) + self.a(x)), WORDS), {})  # a part is read whole, too
    same(cuts_of(module(lambda self, x: self.a(torch.tanh(self.a(x)))), WORDS), {})  # one weight, cut in two ways
    same(cuts_of(module(lambda self, x: torch.tanh(self.a(x))), WORDS), {})  # no row


def test_wrong_parts_are_found_by_their_numbers():
    file, _ = imported(module(lambda self, x: self.b(F.gelu(self.a(x)))), WORDS)
    for name, body in file["bodies"].items():
        assert parts.parts_are_the_whole(body), name
    wrong = 0
    for body in file["bodies"].values():
        for spoiled in ({"sums": []} if body["sums"] else None,
                        {"forward": [line.replace("beta=L", "beta=1") for line in body["forward"]]},
                        {"forward": [line.replace("gelu(i0)", "softmax.int(i0,2)") for line in body["forward"]]}):
            if spoiled and any(body[k] != v for k, v in spoiled.items()):
                assert not parts.parts_are_the_whole(body | spoiled), spoiled
                wrong += 1
    same(wrong, 3)


# -- what modules become, on --------------------------------------------------------------------------------------------

def test_large_tables_are_made_in_the_step():
    largest, graph.LARGEST_TABLE = graph.LARGEST_TABLE, 64
    try:
        file, _ = imported(models.Llama(16, 1, 16, 2, 1, 8, 10000.0), ["i64[B,32]<16"], "cross_entropy")
    finally:
        graph.LARGEST_TABLE = largest
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


def test_a_small_twin_stands_for_a_model_without_values():
    def made(width, device):
        with torch.device(device):
            m = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 8))
        for p in m.parameters():
            p.initial = (0, 0.1)
        return m
    vectors = [spec.read_input("f32[B,5,8]")]
    small = import_model.Request(made(4, "cpu"), vectors, "mse_loss")
    file = import_model.import_module(import_model.Request(made(10**7, "meta"), vectors, "mse_loss", small=small)).file
    same(file["parameters"]["0.weight"], {"shape": [10**7, 8], "center": 0, "bound": 0.1})
    same([b["rows"] for b in file["bodies"].values()], [True, True, True])
    same(refused(made(4, "meta"), ["f32[B,5,8]"]),
         "parameters on the device 'meta' have no values to check with: the builder's import_options need \"small\", a builder of the same model, small")
    other = import_model.Request(nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8)), vectors, "mse_loss")
    same(refused(made(4, "cpu"), ["f32[B,5,8]"], small=other), "the small model isn't the same: node '1'")


def test_a_vision_transformer_can_be_cut_by_samples():
    made = torchvision.models.VisionTransformer(image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=4)
    file, _ = imported(made, ["f32[B,3,16,16]"], "cross_entropy")
    assert all(body["rows"] for body in file["bodies"].values()), [n for n, b in file["bodies"].items() if not b["rows"]]


def test_images_with_a_class_per_pixel():
    file, _ = imported(models.unet(), ["f32[B,3,16,16]"], "cross_entropy")
    same(file["target"], {"classes": 4, "shape": ["B", 16, 16]})
    same(file["nodes"][-1]["name"], "head.permute")
    same([n["op"] for n in file["nodes"]].count("conv2d"), 11)
    up = bodies_of(file, "conv_transpose2d")[0]
    product = 2 * 64 * 32 * 2 * 2 * 4 * 4  # channels in and out, kernel, image of the input
    same([f[1] for f in up["flops"]], [product, 2 * product])


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


def test_several_outputs_are_merged():
    def forward(self, x):
        best, where = self.a(x).topk(3)
        return (self.b(x).gather(1, where) * F.softmax(best, -1)).sum(1, keepdim=True)
    file, _ = imported(module(forward))
    same([(n["name"], n["inputs"]) for n in file["nodes"]], [("a", ["input"]), ("b", ["input"]), ("topk", ["b", "a"]), ("sum", ["topk"])])


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
    same(refused(module(forward)).split(" at ")[0], "a write into the parameter 'b.weight'")


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


def test_batch_norms_of_any_rank():
    for layer, norm, sizes in ((nn.Linear(3, 4), nn.BatchNorm1d(4), "3"), (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), "3,8"),
                               (nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), "3,4,4,4")):
        file, _ = imported(nn.Sequential(layer, norm), [f"f32[B,{sizes}]"])
        same([n["op"] for n in file["nodes"] if n["name"] == "1"], ["batch_norm"])


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


def test_what_only_a_run_knows():
    """The sizes of lazy layers, and whether a distribution's arguments may be so."""
    imported(nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)))

    def forward(self, x):
        noise = torch.distributions.Normal(self.a(x), F.softplus(self.b(x)))
        return self.c(noise.rsample()) + noise.log_prob(x) + torch.multinomial(self.a(x).softmax(-1), 1)
    imported(module(forward))


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


def test_pytorchs_own_layers_with_dropout():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    file, _ = imported(nn.TransformerEncoder(layer, 2), ["f32[B,3,8]"])
    same({body["units"] for body in file["bodies"].values() if "units" in body}, {2, 16})


def test_columns_that_read_the_input_and_others():
    """Two layers alike but for the gradient of what they read: the first reads the model's input."""
    mlp = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    file, _ = imported(module(lambda self, x: self.mlp(self.mlp(x)), mlp=mlp))
    grads = [sorted(c.split("=")[0] for c in file["bodies"][n["body"]]["backward"] if c.startswith("gi")) for n in file["nodes"]]
    same(grads, [[], ["gi0"], ["gi0"], ["gi0"], ["gi0"], ["gi0"]])


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


# -- the check ---------------------------------------------------------------------------------------------------------------

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
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def own_function():
    return module(lambda self, x: Tripled.apply(self.a(x)))


def test_no_file_is_left_where_the_check_fails():
    sys.modules["import_test"] = sys.modules[__name__]
    status, out, err = run("import_test:own_function", "--input", "f32[B,8]", "--loss", "mse_loss")
    same(status, 1)
    same(err, "import: 4 things can't be imported:\n"
              "  the gradient of 'a.weight' differs from PyTorch's by 0.33 of its norm\n"
              "  the gradient of 'a.bias' differs from PyTorch's by 0.33 of its norm\n"
              "  no file is left in place: the graph doesn't say what the module does\n"
              "  note: custom autograd.Function 'Tripled': its forward is imported, its own backward is not\n")
    same(list(FILE.parent.iterdir()), [])


def test_recomputation_is_noticed():
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(lambda y: F.relu(self.a(y)), x, use_reentrant=False)
    _, notes = imported(module(forward))
    assert "torch.utils.checkpoint: recomputation is left out; recompute= of a strategy brings it back" in notes, notes


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


# -- bad input ----------------------------------------------------------------------------------------------------------------

def test_what_depends_on_the_data():
    def forward(self, x):
        y = self.a(x)
        if y.sum() > 0:
            y = self.b(y)
        return y
    same(refused(module(forward)), f"control flow depends on the data: import_test.py:{line_of('if y.sum() > 0:')}: if y.sum() > 0:")

    def forward(self, x):
        return self.a(x[x[:, 0] > 0])
    same(refused(module(forward)), "op 'index' gives a size that depends on the data at module '(top)' (Own), "
                                  f"import_test.py:{line_of('return self.a(x[x[:, 0] > 0])')}: return self.a(x[x[:, 0] > 0])")

    def forward(self, x):
        return self.a(x) * x.max().item()
    same(refused(module(forward)), "op 'item' depends on the data at module '(top)' (Own), "
                                  f"import_test.py:{line_of('return self.a(x) * x.max().item()')}: return self.a(x) * x.max().item()")


def test_what_depends_on_the_batch():
    def forward(self, x):
        return self.a(torch.cat([self.b.weight[:1], x], 0))
    same(refused(module(forward)), "size 3 (batch 2) and 4 (batch 3) is no multiple of the batch: cat at module '(top)' (Own), "
                                f"import_test.py:{line_of('return self.a(torch.cat([self.b.weight[:1], x], 0))')}: "
                                "return self.a(torch.cat([self.b.weight[:1], x], 0))")

    def forward(self, x):
        return torch.stack([self.a(x[i]) for i in range(x.shape[0])])
    text = refused(module(forward))
    assert text.startswith("the graph depends on the batch size: 13 and 15 nodes, first difference stack and select at module '(top)'"), text
    assert text.endswith("a loop over samples?"), text


def test_all_that_is_refused_is_said_at_once():
    def forward(self, x):
        y = self.a(x)
        return self.b(y[y.sum(1).argsort()[: int(y.shape[0] > 1)].nonzero()]) * x.max().item()
    lines = refused(module(forward)).splitlines()
    assert any(line.startswith("op 'nonzero' depends on the data at module '(top)' (Own), import_test.py:") for line in lines), lines
    assert any(line.startswith("op 'item' depends on the data at module '(top)' (Own), import_test.py:") for line in lines), lines


def test_what_a_model_returns():
    same(refused(module(lambda self, x: (self.a(x), self.b(x)))),
         "the model returns 2 tensors, the loss takes one: wrap it so that it returns that one")
    file, notes = imported(module(lambda self, x: {"loss": self.b(x).square().mean(), "y": self.a(x)}))
    same([n["name"] for n in file["nodes"]], ["a"])
    assert "1 of what the model returns are left out: single numbers, its own losses perhaps: --loss mean_loss takes one" in notes, notes
    same(refused(module(lambda self, x: self.a(x).argmax(-1))), "the model returns i64['B']: a loss needs f32")
    same(refused(module(lambda self, x: self.a(x).sum())),
         "the model returns a single number: --loss mean_loss takes that as its loss, mse_loss takes a prediction")
    same(refused(module(lambda self, x: self.a(x) @ self.b(x).t())),
         "the model returns ['B', 'B']: each sample is compared with all others; a loss takes the batch first, and only there")
    same(refused(module(lambda self, x: (self.a(x).sum(), self.b(x).sum())), loss="mean_loss"),
         "the model returns 2 tensors, the loss takes one: wrap it so that it returns that one")
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
    same(said(mlp, "--input", "f16[B,8]"), "--input 'f16[B,8]': expected [name=]f32[B,3,224,224] or [name=]i64[B,64]<256")
    same(said(mlp, "--input", "f32[B,-1]"), "--input 'f32[B,-1]': size '-1' is neither a positive number nor a multiple of the batch (B, 12B)")
    same(said(mlp, "--input", "f32[8,B]"), "--input 'f32[8,B]': the first size must be the batch, B")
    same(said(mlp, "--input", "i64[B,8]"), "--input 'i64[B,8]': integers need a bound: i64[B,64]<256")
    same(said(mlp, "--input", "f32[B,8]<9"), "--input 'f32[B,8]<9': only integers have a bound")
    same(said(mlp, "--optimizer", "lion"), "--optimizer 'lion': unknown optimizer 'lion'; there are sgd, adam, adamw")
    same(said(mlp, "--optimizer", "adamw:lr"), "--optimizer 'adamw:lr': 'lr' isn't name=number")
    same(said(mlp, "--optimizer", "sgd:beta1=1"), "--optimizer 'sgd:beta1=1': 'sgd' has no 'beta1'; it has lr, momentum, weight_decay")
    same(said(mlp, "--global-batch", "-1"), "--global-batch -1: must be at least 1")
    same(said("gpt_nano"), "'gpt_nano': expected package.module:function, file.py:function or catalog:name")
    same(said("no_such_module:build"), "'no_such_module:build': No module named 'no_such_module'")
    same(said("/no/such.py:build"), "'/no/such.py:build': there is no file /no/such.py")
    assert said("catalog:gpt3").startswith("'catalog:gpt3': 'models' has no 'gpt3'; it has Attention, Bert, "), said("catalog:gpt3")
    assert said("--torchvision", "resnet19", "--input", "f32[B,3,64,64]").startswith("torchvision has no model 'resnet19'; it has alexnet, ")
    same(said("--torchvision", "resnet18"), "no --input: expected one for each tensor that forward takes, as [name=]f32[B,3,224,224] or [name=]i64[B,64]<256")
    same(said(mlp, "--timm", "vit"), "expected one of: package.module:function, --torchvision NAME, --timm NAME, --transformers CONFIG")
    for package in ("timm", "transformers"):
        with contextlib.suppress(ImportError):
            __import__(package)
            continue
        same(said(f"--{package}", "vit", "--input", "f32[B,3,64,64]"),
             f"package '{package}' isn't installed in {sys.prefix}: pip install {package}, or use a Python that has it")


def test_who_stops_reading_gets_the_file():
    """paragauge import … | head -1"""
    process = subprocess.Popen([sys.executable, ROOT / "bench/import/import_model.py", "catalog:mlp", "-o", FILE],
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
    numbers = {"numbers": list(range(100_000, 100_100))}
    lines = text(numbers).splitlines()
    same([len(lines), max(map(len, lines)) <= import_model.WIDTH, json.loads("".join(lines))], [2 + 5, True, numbers])


def test_a_line_of_text():
    x = torch.randn(4, 3, dtype=torch.float64)
    values = play.play_lines(["t0=view(i0,[B,3,1])", "t1,_=max.dim(t0,-1)", "o=add.Tensor(t1,i0,alpha=0.5)"], {"i0": x}, 4)
    assert torch.equal(values["o"], 1.5 * x)


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
