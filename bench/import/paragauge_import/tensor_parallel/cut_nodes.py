"""Which nodes of a model file are cut for tensor parallelism, and how: Megatron's pairs of layers (Shoeybi et al. 2019), found in
the graph.

    cut_nodes(file)               # the bodies of nodes from a column to a row become what parts.py makes of them
    cut_nodes(file, plan=plan)    # only of those that a plan names (tp_plan.py)

A column is a linear layer of which each rank makes a part of the features, from all of the input; a row one that takes such a
part and gives a summand of the output; between them lies what can be played in parts: attention by heads, activations,
products. As many units as what lies between allows. Packed features are cut in each of their blocks.

The vocabulary is cut, too (megatron/core/tensor_parallel): of the column whose output, a class for each position, only the loss
reads, which takes it in parts; and of embeddings of as many rows, vocabulary.py.
"""

import contextlib
from collections import Counter

import torch
from paragauge_import.half.half_bodies import WORDS, leave_out
from paragauge_import.play import dtypes, parameters_of
from paragauge_import.tensor_parallel import vocabulary
from paragauge_import.tensor_parallel.parts import SUM, Cut, Impossible, Parts, dims_of, fixed, parts_are_the_whole
from paragauge_import.tensor_parallel.tp_plan import Plan

MOST_BLOCKS = 4


def body_of_known(node: dict, specs: list) -> dict | None:
    """What an op of the table computes, as a body: of ops that may lie between a column and a row. specs: its inputs'."""
    op, dim = node["op"], node.get("dim", 1)
    calls = {"relu": ("o=relu(i0)", ["gi0=threshold_backward(g,o,0)"]),
             "softmax": (f"o=_softmax(i0,{dim},false)", [f"gi0=_softmax_backward_data(g,o,{dim},f32)"]),
             "add": ("o=add.Tensor(i0,i1)", [f"gi{k}=clone(g,memory_format=contiguous_format)" for k in (0, 1)])}.get(op)
    if calls is None or None in specs or len(set(specs)) > 1:
        return None
    output, forward, backward = specs[0], [calls[0]], calls[1]
    if op == "softmax" and output.startswith("bf16"):  # autocast has it in f32
        output = output.replace("bf16", "f32")
        forward = ["t0=_to_copy(i0,dtype=f32)", forward[0].replace("i0", "t0")]
        backward = [backward[0].replace("gi0", "t0"), "gi0=_to_copy(t0,dtype=bf16)"]
    return {"inputs": specs, "parameters": [], "output": output, "saved": [], "forward": forward, "backward": backward,
            "flops": [], "bytes": [], "kernels": [len(forward), len(backward)], "rows": True}


class Graph:
    def __init__(self, file: dict):
        self.file, self.nodes = file, {n["name"]: n for n in file["nodes"]}
        self.readers = {}
        for n in file["nodes"]:
            for x in dict.fromkeys(n["inputs"]):
                self.readers.setdefault(x, []).append(n["name"])
        self.last = file["nodes"][-1]["name"]
        self.classes = vocabulary.classes_of(file)
        self.of_known, self.known = {}, {}

    def body(self, name):
        """None where it can't be cut: of the model's input, of most ops of the table."""
        node = self.nodes.get(name)
        if node is None or node["op"] == "aten":
            return self.file["bodies"][node["body"]] if node else None
        if name not in self.of_known:
            bodies = [self.body(x) for x in node["inputs"]]
            self.of_known[name] = body_of_known(node, [b and b["output"] for b in bodies])
        return self.of_known[name]

    def parts(self, name, units, inputs, parameters) -> Parts | None:
        body = self.body(name)
        key = (*body["inputs"], *body["parameters"], *body["forward"], "|", *body["backward"], units, *inputs, "|", *parameters)
        if key not in self.known:
            try:
                self.known[key] = Parts(body, units, inputs, parameters)
            except Impossible:
                self.known[key] = None
        return self.known[key]


class Region:
    """Nodes that are played in parts, from columns to rows."""

    def __init__(self, graph: Graph, units: int, outer: int):
        self.graph, self.units, self.outer = graph, units, outer
        self.cuts, self.parts, self.rows = {}, {}, 0  # of values; of nodes
        self.columns = set()  # names of nodes
        self.classes = None  # that the loss takes in parts

    def grow(self, column: str):
        """Impossible where some reader of a part can't take it."""
        if not self.add_column(column, self.outer):
            raise Impossible(column)
        todo = [column]
        while todo:
            name = todo.pop(0)
            if self.parts[name].output is SUM:
                self.rows += 1
                continue
            if name == self.graph.last:
                self.end_in_loss(self.cuts[name])
            for reader in self.graph.readers.get(name, []):
                if reader not in self.parts:
                    todo += [*self.pull_inputs(reader), *self.follow(reader)]
        if self.rows == 0:
            raise Impossible("no row")

    def end_in_loss(self, cut: Cut):
        dim = len(dims_of(self.graph.body(self.graph.last)["output"])) - 1
        if self.units != self.graph.classes or cut != fixed(dim, 1, 1):
            raise Impossible("the loss takes all of it")
        self.classes = self.units
        self.rows += 1

    def add(self, name, parts):
        self.parts[name] = parts
        if isinstance(parts.output, Cut):
            self.cuts[name] = parts.output

    def add_column(self, name, outer) -> bool:
        """A layer that makes a part of its output from all of its input, by a matrix of which it has a part. What has several is
        none (an LSTM, whose thousands of calls would be played for each of them)."""
        body = self.graph.body(name)
        if body is None or body["rows"] is not True:
            return False
        specs = [dims_of(s) for s in body["parameters"]]
        if sum(len(dims) == 2 for dims in specs) != 1:
            return False
        for k, dims in enumerate(specs):
            for d in (0, 1) if len(dims) == 2 else ():
                if dims[d] % (outer * self.units):
                    continue
                unit = dims[d] // (outer * self.units)
                cuts = [fixed(0, outer, unit) if len(other) == 1 and other[0] == dims[d] else None for other in specs]
                cuts[k] = fixed(d, outer, unit)
                parts = self.graph.parts(name, self.units, [None] * len(body["inputs"]), cuts)
                if parts is not None and isinstance(parts.output, Cut):
                    self.add(name, parts)
                    self.columns.add(name)
                    return True
        return False

    def layers(self) -> dict:
        """How the layers with weights are cut, by name."""
        def is_row(name, parts):
            return isinstance(parts, vocabulary.Embedding) or parts.output is SUM and self.graph.body(name)["parameters"]
        return {name: "colwise" if name in self.columns else "rowwise" for name, parts in self.parts.items() if name in self.columns or is_row(name, parts)}

    def pull_inputs(self, name) -> list:
        """Makes a reader's other inputs parts, too, where they can be; the nodes that were added."""
        added = []
        for x in dict.fromkeys(self.graph.nodes[name]["inputs"]):
            if x not in self.cuts:
                added += self.pull(x)
        return added

    def pull(self, name) -> list:
        body = self.graph.body(name)
        if body is None or name in self.parts:
            return []
        if any(len(dims_of(s)) == 2 for s in body["parameters"]):
            return [name] if self.add_column(name, 1) else []
        before = dict(self.cuts), dict(self.parts), set(self.columns)
        added = self.pull_inputs(name)
        try:
            return added + self.follow(name) if added or any(x in self.cuts for x in self.graph.nodes[name]["inputs"]) else []
        except Impossible:
            self.cuts, self.parts, self.columns = before
            return []

    def follow(self, name) -> list:
        """Adds a node that reads parts."""
        body = self.graph.body(name)
        if body is None or body["rows"] is not True:
            raise Impossible(name)
        inputs = [self.cuts.get(x) for x in self.graph.nodes[name]["inputs"]]
        cut = next((c for c in inputs if c is not None), None)
        if cut is None:  # what pulled it has let go of it
            raise Impossible(name)
        size = cut.outer[0] * self.units * cut.unit[0]
        as_cut = lambda s: (cut.outer[0], cut.unit[0]) if s == size else (1, s // self.units)  # noqa: E731
        specs = [dims_of(s) for s in body["parameters"]]
        options = [[None] * len(specs)]
        for k, dims in enumerate(specs):
            for d, s in enumerate(dims):
                if len(dims) > 1 and s % self.units == 0:
                    options.append([fixed(d, *as_cut(s)) if j == k else None for j in range(len(specs))])
        if all(len(dims) == 1 and dims[0] == size for dims in specs) and specs:
            options.append([fixed(0, cut.outer[0], cut.unit[0])] * len(specs))
        for parameters in options:
            if (parts := self.graph.parts(name, self.units, inputs, parameters)) is not None:
                self.add(name, parts)
                return [name]
        raise Impossible(name)


def find_region(graph: Graph, column: str, taken: set, plan: Plan | None) -> Region | None:
    """The one that begins at this layer, of as many units as can be."""
    body = graph.body(column)
    sizes = {s for spec in body["parameters"] if len(dims_of(spec)) == 2 for s in dims_of(spec)} & set(dims_of(body["output"]))
    for outer in range(1, MOST_BLOCKS + 1):
        for units in sorted({u for s in sizes if isinstance(s, int) and s % outer == 0 for u in divisors(s // outer)}, reverse=True):
            region = Region(graph, units, outer)
            try:
                region.grow(column)
            except Impossible:
                continue
            if not taken & set(region.parts) and (plan is None or plan.takes(region.layers())):
                return region
    return None


def vocabulary_region(graph: Graph, layers: list, plan: Plan | None) -> Region | None:
    """From the last layer to the loss. It goes before all others: no pair of layers may end in it."""
    if graph.classes is None or not layers:
        return None
    region = Region(graph, graph.classes, 1)
    with contextlib.suppress(Impossible):
        region.grow(layers[-1])
    return region if region.classes and (plan is None or plan.takes(region.layers())) else None


def unlike(graph: Graph, taken: dict) -> set:
    """The first two nodes that read a parameter cut differently, or one of them whole; none: there are no such."""
    seen = {}
    for node in graph.file["nodes"]:
        for k, name in enumerate(parameters_of(node)):
            cut = taken[node["name"]][0].cuts[f"p{k}"] if node["name"] in taken else None
            other, before = seen.setdefault(name, (node["name"], cut))
            if cut != before:
                return {other, node["name"]}
    return set()


def drop_unlike(graph: Graph, taken: dict) -> set:
    """Leaves out what reads a parameter that another node reads otherwise, with all that belongs to it; the names."""
    before = set(taken)
    while pair := unlike(graph, taken):
        for name in {n for which in pair & set(taken) for n in taken[which][1].parts}:
            taken.pop(name, None)
    return before - set(taken)


def divisors(n: int) -> list:
    return [d for d in range(2, n + 1) if n % d == 0]


def cut_half(graph: Graph, taken: dict, tries: bool, key: str) -> dict:
    """What the nodes that are taken are in half precision (key: of half.WORDS), cut as their first bodies: by name. taken: Parts by name.
    Of an op of the table that is the body that it would have."""
    table, known, made, found = graph.file.get(key), {}, {}, {}
    if not isinstance(table, dict):
        return {}

    def body(name):
        node = graph.nodes.get(name)
        if node is None or key in node or node["op"] == "aten":
            return node and (table[node[key]] if key in node else graph.body(name))
        if name not in known:
            inputs = [body(x) for x in node["inputs"]]
            known[name] = body_of_known(node, [b and b["output"] for b in inputs])
        return known[name]

    for name, parts in taken.items():
        second = body(name)
        if second is None:
            raise Impossible(f"node '{name}' isn't known in half precision")
        if second is graph.body(name):
            continue
        if isinstance(parts, vocabulary.Embedding):  # which is another in parts, of the same types but for the dtype
            if types_of(second) != [t.replace("f32", "bf16") for t in types_of(graph.body(name))]:
                raise Impossible(f"node '{name}' gives another dtype than its table has")
            continue
        of_parts = str(second), parts
        if of_parts not in made:
            cuts = [[parts.cuts[f"{letter}{k}"] for k in range(len(second[of]))] for letter, of in (("i", "inputs"), ("p", "parameters"))]
            made[of_parts] = Parts(second, parts.units, *cuts).body_text()
            is_right = vocabulary.is_right if parts.units == graph.classes else parts_are_the_whole
            with dtypes(bf16=torch.float64):
                if tries and not is_right(made[of_parts]):
                    raise Impossible(f"in half precision, node '{name}' isn't its parts together")
        found[name] = made[of_parts]
    return found


def types_of(body: dict) -> list:
    return [*body["inputs"], *body["parameters"], body["output"]]


def name_half(file: dict, cut: dict, key: str):
    """Puts what cut_half gives in the place of the second bodies of these nodes."""
    table, names, numbers, bodies, word = file.get(key), {}, Counter(), {}, WORDS[key]
    for node in file["nodes"]:
        if not isinstance(table, dict):
            node.pop(key, None)
            continue
        body = cut.get(node["name"]) or (key in node and table[node[key]])
        node.pop(key, None)
        if not body:
            continue
        op = node["body"].rpartition("/")[0] if node["op"] == "aten" else node["op"]
        text = op, str(body)
        if text not in names:
            numbers[op] += 1
            names[text] = f"{op}/{word}{numbers[op]}"
            bodies[names[text]] = body
        node[key] = names[text]
    if isinstance(table, dict):
        file[key] = bodies


def cut_nodes(file: dict, only: set | None = None, plan: Plan | None = None) -> list:
    """Gives the bodies of nodes that can be cut their T; the nodes' names. only: others aren't; and nothing is tried with numbers
    (it was, on the small model). Refusal: what of a plan can't be."""
    graph, taken, tried, wrong = Graph(file), {}, {}, set()

    def take(region):
        if region is None or only is not None and not set(region.parts) <= only:
            return
        vocabulary.add_embeddings(graph, region, only, plan)
        for parts in region.parts.values():
            if parts not in tried:
                text = parts.body_text()
                is_right = vocabulary.is_right if region.classes else parts_are_the_whole
                tried[parts] = (text, only is not None or is_right(text))
        if all(tried[parts][1] for parts in region.parts.values()):
            taken.update({name: (parts, region) for name, parts in region.parts.items()})
        else:
            wrong.update(region.parts)

    layers = [n["name"] for n in file["nodes"] if n["op"] == "aten" and any(len(dims_of(s)) == 2 for s in graph.body(n["name"])["parameters"])]
    take(vocabulary_region(graph, layers, plan))
    for name in layers:
        if name not in taken:
            take(find_region(graph, name, set(taken), plan))
    unlike_others = drop_unlike(graph, taken)
    if plan is not None:
        reasons = {name: "its parts together aren't the whole, in numbers" for name in wrong} | \
                  {name: "what else reads its weights isn't in the plan" for name in unlike_others}
        plan.check([n["name"] for n in file["nodes"]], {name: region.layers().get(name) for name, (_, region) in taken.items()}, reasons)
    halves = {}
    for key in WORDS:
        try:
            halves[key] = cut_half(graph, {name: parts for name, (parts, _) in taken.items()}, only is None, key)
        except Impossible as why:
            halves[key] = {}
            leave_out(file, f"what is cut for tensor parallelism can't be so in half precision: {why}", key)
    bodies, names, numbers = {}, {}, Counter()

    def name_of(op, before, body):
        key = (op, before, id(body))
        if key not in names:
            numbers[op] += 1
            names[key] = f"{op}/{numbers[op]}"
            bodies[names[key]] = body
        return names[key]

    for node in file["nodes"]:
        parts, _ = taken.get(node["name"], (None, None))
        if node["op"] != "aten" and parts is None:
            continue
        op = node["body"].rpartition("/")[0] if node["op"] == "aten" else node["op"]
        plain = file["bodies"].get(node.get("body"))
        if node["op"] != "aten":
            kept = {"name": node["name"], "op": "aten", "inputs": node["inputs"], "parameters": []}
            node.clear()
            node |= kept
        if isinstance(parts, vocabulary.Embedding):
            node["body"], node["in_parts"] = name_of(op, node["body"], plain), name_of(op, node["body"], tried[parts][0])
        else:
            node["body"] = name_of(op, node.get("body"), plain if parts is None else tried[parts][0])
    file["bodies"] = bodies
    for key, cut in halves.items():
        name_half(file, cut, key)
    return list(taken)
