"""The importer (bench/import): what is cut for tensor parallelism, and by samples or positions.

    .venv/bin/python tests/bench/import_cut_test.py [NAME…]        # exit status 0: all passed; 77: no torch here
"""

import sys
from pathlib import Path

from importing import KEPT, bodies_of, imported, module, refused, run, same

import torch
import torch.nn.functional as F
import torchvision
from paragauge_import import models
from paragauge_import.tensor_parallel import parts, vocabulary
from paragauge_import.tensor_parallel.tp_plan import Plan
from run_functions import functions_of, run_functions
from torch import nn


def cuts_of(m, inputs, loss="mse_loss", **more) -> dict:
    """How many units each node has that can be cut."""
    file, _ = imported(m, inputs, loss, **more)
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


def test_attention_is_not_cut_by_positions():
    """Its queries' norms go over all heads, so that these can't be cut, and its mask is of all positions."""
    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.n(self.a(x)), self.m(self.b(x)), self.c(x)))
        mask = torch.ones(6, 6, dtype=torch.bool).tril().expand(len(x), 1, 6, 6)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.e(F.gelu(self.d(y)))
    file, _ = imported(module(forward, n=nn.RMSNorm(8), m=nn.RMSNorm(8), d=nn.Linear(8, 8), e=nn.Linear(8, 8)), WORDS)
    same({n["name"]: file["bodies"][n["body"]].get("positions") for n in file["nodes"] if n["op"] == "aten" and n["name"] in ("n", "attention")},
         {"n": 6, "attention": None})


def language_model(vocabulary=9, tied=True, head=lambda y: y, **more):
    """An embedding, a pair of layers and a head."""
    norm = lambda x: F.layer_norm(x, (8,))  # noqa: E731
    made = module(lambda self, ids: head(self.out(norm((x := self.words(ids)) + self.b(torch.tanh(self.a(norm(x))))))),
                  words=nn.Embedding(vocabulary, 8, **more), out=nn.Linear(8, vocabulary, bias=False), c=None)
    if tied:
        made.out.weight = made.words.weight
    return made


def test_what_lets_go_of_a_cut_takes_its_readers_along():
    """As in RWKV's first version: the mask's ops are tried as parts of what they multiply, and aren't."""
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.q, self.k, self.head = nn.Embedding(8, 16), nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 8)
            self.time = nn.Parameter(torch.ones(1, 4, 1))

        def forward(self, i):
            x = self.words(i) * self.time
            c = (self.q(x) @ self.k(x).transpose(-2, -1)).masked_fill(torch.tril(torch.ones(4, 4)) == 0, 0)
            return self.head(x) + c @ F.one_hot(i, num_classes=8).float()
    imported(Mixed(), ["i64[B,4]<8"], "cross_entropy")


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
        # For each position: sub; lt, ge; or; masked_fill; the lookup, which reads a row of the table; masked_fill.
        same(part["bytes"][0], [8, 6 * (2 * 8 + 2 * (8 + 1) + 3 + (8 + 1 + 8) + (8 + 32 + 32) + (32 + 1 + 32)), 0, 0])  # and F
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


def refused_by(plan: dict, m, inputs=WORDS, loss="mse_loss") -> str:
    return refused(m, inputs, loss, plan=Plan(plan))


def test_a_plan_names_what_is_cut():
    def planned(plan, m, inputs=WORDS, loss="mse_loss") -> dict:
        return cuts_of(m, inputs, loss, plan=Plan(plan))
    two = module(lambda self, x: self.d(F.silu(self.c(y := self.b(F.gelu(self.a(x))))) + y), d=nn.Linear(8, 8))
    pair = {"a": 8, "gelu": 8, "b": 8}
    same(planned({"a": "colwise", "b": "rowwise"}, two), pair)
    same(refused_by({"a": "colwise"}, two), "--tp-plan: 'a' can't be colwise: 'a': it could be so only with 'b' rowwise")
    same(refused_by({"a": "rowwise", "b": "rowwise"}, two), "--tp-plan: 'a' can't be rowwise: 'a': it could be colwise\n"
                                                           "--tp-plan: 'b' can't be rowwise: 'b': it could be so only with 'a' colwise")
    same(refused_by({"a": "colwise", "b": "rowwise", "d": "rowwise", "e": "rowwise"}, two),
         "--tp-plan: 'd' can't be rowwise: 'd': no pair of layers has it that can be cut\n"
         "--tp-plan: no layer is named 'e'")
    # A layer's name may begin before the pattern does; a * is one part of it.
    nested = module(lambda self, x: self.layers[1].b(F.relu(self.layers[1].a(x + self.layers[0].b(F.relu(self.layers[0].a(x)))))),
                    layers=nn.ModuleList(nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}) for _ in range(2)))
    both = {f"layers.{i}.{name}": 8 for i in range(2) for name in ("a", "b")}
    found = planned({"layers.*.a": "colwise", "layers.*.b": "rowwise"}, nested)
    same({name: n for name, n in found.items() if name in both}, both)
    same(planned({"layers.1.a": "colwise", "1.b": "rowwise"}, nested), {name: n for name, n in found.items() if name not in ("layers.0.a", "layers.0.b", "relu")})
    # The vocabulary is cut where the plan has it, a tied one only whole.
    ids, head = ["i64[B,6]<9"], {"out": "colwise_rep", "words": "embedding_rowwise"}
    for tied in (True, False):
        same(planned(head, language_model(tied=tied), ids, "cross_entropy"), {"out": 9})
    same(planned({"out": "colwise_rep"}, language_model(tied=False), ids, "cross_entropy"), {"out": 9})
    same(planned({"a": "colwise", "b": "rowwise"}, language_model(), ids, "cross_entropy"), {"a": 8, "tanh": 8, "b": 8})
    same(refused_by({"out": "colwise_rep"}, language_model(), ids, "cross_entropy"),
         "--tp-plan: 'out' can't be colwise: 'out': what else reads its weights isn't in the plan")


def test_a_plan_is_read_from_a_file():
    sys.modules["import_cut_test"] = sys.modules[__name__]
    plan = Path(KEPT.name) / "plan.json"
    asked = "import_cut_test:language_model", "--input", "i64[B,6]<9", "--tp-plan", str(plan)
    for text, expected in ((None, f"import: --tp-plan {plan}: can't be read: No such file or directory\n"),
                           ("{", f"import: --tp-plan {plan}: not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"),
                           ("[]", f"import: --tp-plan {plan}: expected names of layers and how each is cut, as {{\"layers.*.wq\": \"colwise\"}}\n"),
                           ('{"a": "sequence_parallel"}', f"import: --tp-plan {plan}: 'a' is \"sequence_parallel\"; known: colwise, colwise_rep, rowwise, embedding_rowwise\n")):
        plan.unlink(missing_ok=True)
        if text:
            plan.write_text(text)
        status, _, err = run(*asked)
        same((status, err), (1, expected))
    plan.write_text('{"a": "colwise", "b": "rowwise"}')
    status, out, err = run(*asked)
    same((status, err), (0, ""))
    assert "note: 3 nodes can be cut for tensor parallelism: tp must divide 8\n" in out, out


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


def test_a_vision_transformer_can_be_cut_by_samples():
    made = torchvision.models.VisionTransformer(image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=4)
    file, _ = imported(made, ["f32[B,3,16,16]"], "cross_entropy")
    assert all(body["rows"] for body in file["bodies"].values()), [n for n, b in file["bodies"].items() if not b["rows"]]


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
