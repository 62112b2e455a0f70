"""The vocabulary, cut for tensor parallelism as Megatron does (megatron/core/tensor_parallel/layers.py, cross_entropy.py).

    classes_of(file)                             # the loss' classes, where each position has one: what a language model's head gives
    add_embeddings(graph, region, only, plan)    # embeddings of as many rows join the region that ends in the loss

An embedding's part looks up what lies in its rows and gives 0 for the others: the output is a sum. The whole is played by the
plain lookup: this is a body of its own, the node's "in_parts".
"""

import torch
from paragauge_import.body.cost import has_kernel
from paragauge_import.body.group import fake
from paragauge_import.export.exported import BATCHES
from paragauge_import.play import DTYPES, arguments_of, parse, sizes_of
from paragauge_import.tensor_parallel.parts import amount_of, cost_of, dims_of, fixed, parts_are_the_whole

FEW = 7  # units that are tried with numbers: two parts are uneven
# Which of the part's rows it is, and whether it is none: VocabParallelEmbedding.forward.
MASK = ["t0=sub.Tensor(i0,F)", "t1=lt.Scalar(t0,0)", "t2=ge.Scalar(t0,T)", "t3=logical_or(t1,t2)", "t4=masked_fill.Scalar(t0,t3,0)",
        "t5=unsqueeze(t3,-1)"]
FORWARD = [*MASK, "t6=embedding(p0,t4)", "o=masked_fill.Scalar(t6,t5,0)"]
BACKWARD = [*MASK, "t6=masked_fill.Scalar(g,t5,0)", "gp0=embedding_dense_backward(t6,t4,T,-1,false)"]


def classes_of(file: dict) -> int | None:
    """None: the loss takes no classes, or one class for each sample."""
    last = file["nodes"][-1]
    if file["loss"] != "cross_entropy" or last["op"] != "aten" or len(file["target"]["shape"]) < 2:
        return None
    return file["target"]["classes"]


def is_cut(file: dict) -> bool:
    """Whether the loss takes its classes in parts."""
    return (classes := classes_of(file)) is not None and file["bodies"][file["nodes"][-1]["body"]].get("units") == classes


def plain(rows) -> dict:
    return {"forward": ["o=embedding(p0,i0)"], "backward": [f"gp0=embedding_dense_backward(g,i0,{rows},-1,false)"]}


def is_plain(body: dict, rows: int) -> bool:
    return {"forward": body["forward"], "backward": body["backward"]} == plain(rows) and dims_of(body["parameters"][0])[0] == rows


class Embedding:
    """Its table is cut by its rows, its output is a sum."""

    def __init__(self, body: dict, rows: int):
        self.body, self.units, self.output = body, rows, None
        self.cuts = {"p0": fixed(0, 1, 1)}

    def body_text(self) -> dict:
        spec = self.body["parameters"][0]
        part = {**self.body, "parameters": [f"{spec.split('[')[0]}[T,{','.join(map(str, dims_of(spec)[1:]))}]"], "forward": FORWARD,
                "backward": BACKWARD, "kernels": [kernels(FORWARD), kernels(BACKWARD)], "units": self.units, "sums": ["o"]}
        sites = [(b, t) for t in (self.units, 1) for b in BATCHES]
        counts = [costs(part, *site) for site in sites]
        for k, key in enumerate(("flops", "bytes")):
            part[key] = [amount_of(sites, [c[which][k] for c in counts]) for which in (0, 1)]
        return part


def kernels(lines) -> int:
    return sum(has_kernel(parse(line)[1]) for line in lines)


def costs(body: dict, batch: int, units: int) -> list:
    """FLOPs and bytes of forward and backward."""
    made = lambda spec: torch.empty(sizes_of(spec, batch, units), dtype=DTYPES[spec.split("[")[0]])  # noqa: E731
    found = []
    with fake(0):
        given = {"i0": made(body["inputs"][0]), "p0": made(body["parameters"][0]), "g": made(body["output"]),
                 "F": torch.empty(1, dtype=torch.int64)}
        for lines in (body["forward"], body["backward"]):
            values, total = dict(given), (0, 0)
            for line in lines:
                outs, target, texts, named = parse(line)
                args, kwargs = arguments_of(target, texts, named, values, batch, units)
                values[outs[0]] = target(*args, **kwargs)
                total = tuple(a + b for a, b in zip(total, cost_of(target, args, kwargs, [values[outs[0]]])))
            found.append(total)
    return found


def add_embeddings(graph, region, only, plan):
    """To a region that ends in the loss: whose table is as long as there are classes, be it the last layer's or another."""
    if not region.classes:
        return
    for node in graph.file["nodes"]:
        body, name = graph.file["bodies"].get(node.get("body")), node["name"]
        may_be = (only is None or name in only) and (plan is None or plan.has(name, "rowwise"))
        if may_be and body is not None and len(body["parameters"]) == 1 and is_plain(body, region.classes):
            region.parts[name] = Embedding(body, region.classes)


def is_right(body: dict) -> bool:
    """In numbers, of a few words."""
    few = {**body, "units": min(FEW, body["units"])}
    is_embedding = body["forward"] is FORWARD
    return parts_are_the_whole(few, below=few["units"], plain=plain(few["units"]) if is_embedding else None)
