"""A graph's steps as the file's nodes: which steps lie together, what they are called, which are known ops.

    made = make_nodes(graph)        # made.nodes, made.bodies, made.constants
"""

import itertools
import re
from collections import Counter, defaultdict

import torch
from paragauge_import.body.group import Group, fake, fake_tensors
from paragauge_import.body.make_body import make_body
from paragauge_import.body.trial import rows_alone
from paragauge_import.graph.reader import Reader
from paragauge_import.graph.step import Graph, Value, shape_text
from paragauge_import.refusal import Refusal, module_of, place_of

aten = torch.ops.aten
SHORT = {"scaled_dot_product_attention": "attention", "cat": "concat", "upsample_bilinear2d": "upsample",
         "_softmax": "softmax", "_log_softmax": "log_softmax", "_to_copy": "to", "convolution": "conv"}


# -- groups --------------------------------------------------------------------------------------------------------------

def live_steps(output: Value) -> set:
    found, stack = set(), [output]
    while stack:
        v = stack.pop()
        if v.step is not None and v.step not in found:
            found.add(v.step)
            stack += v.step.reads()
    return found


class Readers:
    """Who reads a value: steps, seen through views; None is the graph's end."""

    def __init__(self, steps, output):
        self.direct = defaultdict(list)
        for s in steps:
            for v in dict.fromkeys(s.reads()):
                self.direct[v].append(s)
        self.direct[output].append(None)

    def real(self, v) -> list:
        found = []
        for s in self.direct[v]:
            if s is not None and s.virtual:
                for o in s.outputs:
                    if o is not None:
                        found += self.real(o)
            else:
                found.append(s)
        return found


def make_groups(graph: Graph) -> list:
    """Every step that does work, alone; one with several outputs that are read, with complex numbers, or that compares samples with
    each other, with its readers until one output of real numbers remains, by samples."""
    live = live_steps(graph.output)
    steps = [s for s in graph.steps if s in live]
    position = {s: i for i, s in enumerate(steps)}
    readers = Readers(steps, graph.output)
    owner, groups = {}, []
    for s in steps:
        if s.virtual or s in owner:
            continue
        members = [s]
        while True:
            inside = set(members)
            outputs = [o for m in members for o in m.outputs
                       if o is not None and any(r not in inside for r in readers.real(o))]
            if len(outputs) <= 1 and not any(o.dtype.is_complex or compares_samples(o) for o in outputs):
                break
            next_reader = min((r for o in outputs for r in readers.real(o) if r is not None and r not in inside),
                              key=position.get, default=None)
            if next_reader is None:
                if len(outputs) == 1 and not graph.output.dtype.is_complex and not compares_samples(graph.output):
                    outputs = [graph.output]  # a view of it: the diagonal, real numbers
                    break
                raise Refusal(f"op '{s.name}' has {len(outputs)} outputs that the model returns, at {place_of(s.place)}")
            # A merged reader brings the group that it belongs to.
            members += owner[next_reader].steps if next_reader in owner else [next_reader]
        for g in {owner[m] for m in members if m in owner}:
            groups.remove(g)
        group = Group(sorted(members, key=position.get), outputs[0])
        for m in members:
            owner[m] = group
        groups.append(group)
    groups.sort(key=lambda g: position[g.steps[-1]])
    if (graph.output.step is None or graph.output.step.virtual) and all(g.output is not graph.output for g in groups):
        groups.append(Group([], graph.output))
    return groups, readers


def compares_samples(v: Value) -> bool:
    return sum(str(size).count("B") for size in shape_text(v.shapes)) > 1


def known_op(group: Group, graph: Graph, calls) -> dict | None:
    """The op and the attributes of a kind that the file's reader knows itself, where it fits exactly."""
    if len(group.steps) != 1 or group.output is not group.steps[0].outputs[0]:
        return None
    step = group.steps[0]
    args, name = step.argument, step.name
    first, second = (sizes[:1] for sizes in group.output.shapes)
    if step.no_grad or group.output.dtype != torch.float32 or first == second:  # the file's reader wants the batch in front
        return None

    def plain(v):
        return (isinstance(v, Value) and v.kind in ("input", "step") and not (v.step and v.step.virtual) and v.seen_as is None
                and v.dtype == torch.float32)

    def own(*values):
        """Parameters by the names that the op gives them: their module's path, which becomes the node's name."""
        path = module_of(step.place)[0]
        names = [f"{path}.{n}" for n in ("weight", "bias")]
        if not path or calls.get(path, 0) != 1 or path in graph.also or path in reserved(graph):
            return None
        for v, n in zip(values, names):
            if v is not None and (v.kind != "parameter" or v.name != n or v.name in graph.also):
                return None
        return path

    def square(sizes):
        sizes = list(sizes) if isinstance(sizes, (list, tuple)) else [sizes]
        return sizes[0] if len(set(sizes)) == 1 and isinstance(sizes[0], int) else None

    x = step.args[0][0] if step.args[0] else None
    is_flattened = name == "linear" and isinstance(x, Value) and flatten_view(x) is not None
    if not plain(x) and not is_flattened:
        return None
    rank = len(x.shapes[0])
    keep = lambda given, **defaults: {k: v for k, v in given.items() if v != defaults.get(k)}  # noqa: E731
    if name == "conv2d" and rank == 4 and step.target._overloadname == "default":
        w, b = args("weight"), args("bias")
        kernel, stride, padding, dilation = (square(v) for v in (w.shapes[0][2:], args("stride"), args("padding"), args("dilation")))
        path = own(w, b)
        if path and None not in (kernel, stride, padding, dilation):
            return {"op": "conv2d", "path": path, "inputs": [x], "parameters": [w, b], "attributes": keep(
                {"out_channels": w.shapes[0][0], "kernel_size": kernel, "stride": stride, "padding": padding,
                 "dilation": dilation, "groups": args("groups"), "bias": b is not None},
                stride=1, padding=0, dilation=1, groups=1, bias=True)}
    if name == "linear" and rank == 2:
        w, b = args("weight"), args("bias")
        if path := own(w, b):
            return {"op": "linear", "path": path, "inputs": [x], "parameters": [w, b], "attributes": keep(
                {"out_features": w.shapes[0][0], "bias": b is not None}, bias=True)}
    if name == "batch_norm" and 2 <= rank <= 5 and step.has_buffers:
        w, b = args("weight"), args("bias")
        if w is not None and b is not None and (path := own(w, b)):
            return {"op": "batch_norm", "path": path, "inputs": [x], "parameters": [w, b], "attributes": keep(
                {"eps": args("eps"), "momentum": args("momentum"), "sync": module_of(step.place)[1] == "SyncBatchNorm"},
                eps=1e-5, momentum=0.1, sync=False)}
    if name == "relu":
        return {"op": "relu", "inputs": [x], "attributes": {}}
    if name in ("max_pool2d", "max_pool2d_with_indices") and rank == 4 and not args("ceil_mode") and square(args("dilation")) == 1:
        kernel, padding = square(args("kernel_size")), square(args("padding"))
        stride = square(args("stride")) if args("stride") else kernel
        if None not in (kernel, stride, padding):
            return {"op": "max_pool", "inputs": [x], "attributes": keep(
                {"kernel_size": kernel, "stride": stride, "padding": padding}, stride=kernel, padding=0)}
    if name == "adaptive_avg_pool2d" and rank == 4 and square(args("output_size")) is not None:
        return {"op": "adaptive_avg_pool", "inputs": [x], "attributes": {"output_size": square(args("output_size"))}}
    if name == "add" and step.target._overloadname == "Tensor":
        y = step.args[0][1]
        if plain(y) and y is not x and x.shapes == y.shapes and args("alpha") == 1:
            return {"op": "add", "inputs": [x, y], "attributes": {}}
    if name == "softmax" and args("dtype") is None and isinstance(args("dim"), int):
        return {"op": "softmax", "inputs": [x], "attributes": keep({"dim": args("dim") % rank}, dim=1)}
    return None


def flatten_view(v: Value) -> Value | None:
    """What a value is flattened from, if it is as the op 'flatten' does it: all dimensions but the first into one."""
    step = v.step
    if step is None or not step.virtual or step.name not in ("view", "flatten", "reshape", "_unsafe_view"):
        return None
    x = step.reads()[0]
    if x.kind not in ("input", "step") or x.step and x.step.virtual or x.seen_as is not None or x.dtype != torch.float32:
        return None
    fits = all(len(s) > 2 and t == (s[0], torch.Size(s[1:]).numel()) for s, t in zip(x.shapes, v.shapes))
    return x if fits and x.shapes[0][0] != x.shapes[1][0] else None


def lay_out(group: Group, graph: Graph, readers: Readers, cache: dict):
    """An output that isn't contiguous need not be copied for it. Either it is so after the views that follow, if nobody reads it
    otherwise: a fused attention's output lies as [batch, positions, heads, size], which is what is read next. Or it is permuted:
    then the node gives the permuted tensor, and readers see that permuted back, as they do in PyTorch. But a batch norm is a
    known op, which takes it as it is named: there it is copied."""
    trail, v = [], group.output
    while True:
        direct = readers.direct[v]
        if len(direct) != 1 or direct[0] is None or not direct[0].virtual or len(direct[0].outputs) != 1 or len(direct[0].reads()) != 1:
            break
        trail.append(direct[0].outputs[0])
        v = trail[-1]
    longest = Group(group.steps, v)
    longest.find_reads()
    key = longest.key([])
    if key not in cache:
        cache[key] = layout_of(group, longest, trail)
    views, order = cache[key]
    if views:
        group.output = trail[views - 1]
        group.output.is_output = True
    elif order and group.output is not graph.output and not any(r.name == "batch_norm" for r in readers.real(group.output) if r):
        given = group.output
        reader = Reader(None, [])
        place = given.step.place
        stored, = reader.emit(aten.permute.default, ((given, order),) * 2, ({}, {}), place, virtual=True)
        back = [order.index(d) for d in range(len(order))]
        given.seen_as, = reader.emit(aten.permute.default, ((stored, back),) * 2, ({}, {}), place, virtual=True)
        stored.is_output = True
        group.output = stored


def layout_of(group, longest, trail):
    """How many views of the trail come with the group, and the permutation that the output lies in, if any."""
    tensors = fake_tensors(longest, 0, [False] * (len(longest.inputs) + len(longest.parameters)))
    with fake(0), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        alone = group.run(0, tensors)

        def is_free(v):
            shown = Group(group.steps, v).run(0, {**tensors, group.output: alone})
            return shown.is_contiguous() and shown.untyped_storage()._cdata == alone.untyped_storage()._cdata

        free = [n for n, v in enumerate(trail, 1) if is_free(v)]
        apart = [n for n in free if samples_apart(trail[n - 1])]
        if alone.is_contiguous():
            return (0 if samples_apart(group.output) or not apart else apart[0]), None
        if free:
            return max(apart or free), None
        order = sorted(range(alone.dim()), key=lambda d: -alone.stride(d))
        return 0, order if alone.permute(order).is_contiguous() else None


def samples_apart(v) -> bool:
    """Whether the batch is a dimension of its own, not merged with another: so that it can be cut by samples."""
    return not any(str(s).endswith("B") and s != "B" for s in shape_text(v.shapes))


RESHAPES = ("view", "reshape", "flatten", "_unsafe_view", "unflatten")


def with_shared_copies(groups, readers) -> list:
    """A reshape that must copy (of what is permuted) and that several nodes read is a node: copied once, as in PyTorch."""
    owner = {s: g for g in groups for s in g.steps}
    position = {g: i for i, g in enumerate(groups)}
    first, found = {}, []
    for v in [v for v in list(readers.direct) if v.step is not None and v.step.virtual and v.step.name in RESHAPES]:
        if v.is_output or compares_samples(v) or None in (all_readers := readers.real(v)) or len(by := {owner[r] for r in all_readers}) < 2:
            continue
        if any(s.virtual and s.name in RESHAPES for s in readers.direct[v]) and len(readers.direct[v]) == 1:
            continue  # the last of a chain of reshapes decides
        group = Group([], v)
        group.find_reads()
        if not group.inputs or group.parameters:
            continue
        tensors = fake_tensors(group, 0, [False] * len(group.inputs))
        with fake(0), torch.no_grad():
            storage = group.run(0, tensors).untyped_storage()._cdata
        if all(t.untyped_storage()._cdata != storage for t in tensors.values()):
            first[group] = min(position[g] for g in by)
            found.append(group)
    for group in found:
        group.output.is_output = True
    for group in found:
        groups.insert(groups.index(next(g for g in position if position[g] == first[group])), group)
    return groups


# -- names ---------------------------------------------------------------------------------------------------------------

def reserved(graph) -> set:
    """What no node is called, though a module be."""
    return {"input", "target", "loss", *(v.name for v in graph.inputs)}


class Names:
    def __init__(self, taken):
        self.taken = set(taken)

    def unique(self, name: str) -> str:
        name = re.sub(r"[\s'\"]", "_", name)
        if name.startswith("grad."):
            name = "_" + name
        first, n = name, 1
        while name in self.taken or not name:
            n += 1
            name = f"{first}_{n}"
        self.taken.add(name)
        return name


def principal(group: Group) -> str:
    """The costliest step's name: the one that has parameters, else the one with most elements."""
    if not group.steps:
        step = group.output.step
        return step.name.strip("_") if step is not None and step.virtual and step.reads() else "clone"
    def weight(s):
        return max((torch.Size(o.shapes[0]).numel() for o in s.outputs if o is not None), default=0)
    best = max(group.steps, key=weight)
    return SHORT.get(best.name, best.name).strip("_")


def base_name(group, op, counts, graph, seen_calls) -> str:
    """The module's path where it is a module without children with this one node; "relu1", "relu2" where such a module is
    called several times; else the path and the op's name."""
    place = (group.steps[-1] if group.steps else group.output.step).place
    path = module_of(place)[0]
    if path and path in graph.leaves and counts[path] == graph.calls[path]:
        if graph.calls[path] == 1:
            return path
        seen_calls[path] += 1
        return f"{path}{seen_calls[path]}"
    return f"{path}.{op}" if path else op


# -- all -----------------------------------------------------------------------------------------------------------------

class Made:
    """What make_nodes gives: the file's nodes and bodies, constants and parameters that aten nodes use, parameters that get
    no gradient."""

    def __init__(self):
        self.nodes, self.bodies, self.constants, self.used = [], {}, {}, {}
        self.dead = set()
        self.traced = []  # (node, group, which inputs and parameters need gradients)
        self.silent = set()  # names of nodes without backward


def make_nodes(graph: Graph, measure: bool = True, runs: bool = True) -> Made:
    made, names, bodies, cache = Made(), Names(reserved(graph)), {}, {}
    groups, readers = make_groups(graph)
    counts, seen_calls, name_of = Counter(), Counter(), {v: v.name for v in graph.inputs}
    for g in groups:
        counts[module_of((g.steps[-1] if g.steps else g.output.step).place)[0]] += 1
    numbers = Counter()
    needs = {}
    order = []  # (node, group, body key, which inputs need gradients)
    flat = {}
    known_of = {}
    for group in groups:
        if group.steps:
            known_of[group] = known = known_op(group, graph, graph.calls)
            if known is None:
                lay_out(group, graph, readers, cache)
    groups = with_shared_copies(groups, readers)
    for group in groups:
        known = known_of.get(group)
        if known is not None:
            for x in known["inputs"]:
                if (source := flatten_view(x)) is not None:
                    if x not in flat:
                        place = x.step.place
                        path = module_of(place)[0]
                        name = names.unique(path if path in graph.leaves else f"{path}.flatten" if path else "flatten")
                        made.nodes.append({"name": name, "op": "flatten", "inputs": [name_of[source]]})
                        flat[x] = name
                        needs[x] = needs.get(source, False)
                    name_of[x] = flat[x]
            name = names.unique(known.get("path") or base_name(group, known["op"], counts, graph, seen_calls))
            node = {"name": name, "op": known["op"], "inputs": [name_of[x] for x in known["inputs"]], **known["attributes"]}
            if group.steps[0].inplace and may_be_in_place(group, known, readers, known_of):
                node["inplace"] = True
            made.nodes.append(node)
            needs[group.output] = bool(known.get("parameters")) or any(needs.get(x, False) for x in known["inputs"])
            name_of[group.output] = name
            order.append((node, group, None, None))
            made.traced.append((node, group, [needs.get(x, False) for x in group.steps[0].reads()]))
            continue
        if not group.steps and group.output in name_of:  # the graph's end, which another node gives as it is
            continue
        group.find_reads()
        wants = [needs.get(v, False) and v.dtype.is_floating_point for v in group.inputs] + [True] * len(group.parameters)
        key = group.key(wants)
        op = principal(group)
        if key not in bodies:
            try:
                text, grads = make_body(group, wants, runs)
            except Refusal as refusal:
                raise Refusal(f"{refusal} at {place_of(group.output.step.place)}") from refusal
            text["rows"] = rows_alone(text) if measure else None
            bodies[key] = (text, grads, group.output.shapes)
        text, grads, shapes = bodies[key]
        group.output.shapes = shapes
        needs[group.output] = bool(grads)
        name = names.unique(base_name(group, op, counts, graph, seen_calls))
        name_of[group.output] = name
        node = {"name": name, "op": "aten", "body": (key, op), "inputs": group.inputs, "parameters": [p.name for p in group.parameters]}
        made.nodes.append(node)
        order.append((node, group, key, grads))
        made.traced.append((node, group, wants))
    settle(made, graph, order, bodies, name_of, numbers, names, measure, runs)
    return made


def may_be_in_place(group, known, readers, known_of) -> bool:
    """Only where nobody else reads the input, and its own backward doesn't read what it gave."""
    x = known["inputs"][0]
    producer = next((g for g in known_of if g.output is x), None)
    maker = known_of.get(producer) if producer else None
    return len(readers.direct[x]) == 1 and maker is not None and maker["op"] in ("conv2d", "linear", "batch_norm", "add")


def settle(made, graph, order, bodies, name_of, numbers, names, measure, runs):
    """Backward over the nodes: what gets a gradient at all. Then bodies get their names, and nodes their texts."""
    wanted = {graph.output}
    alive = set()
    dead = {}
    for node, group, key, grads in reversed(order):
        if node["op"] != "aten":
            reads = group.steps[0].reads()
            if group.output in wanted:
                wanted |= {*reads, *(flatten_view(x) for x in reads)}
                alive |= set(reads)
            continue
        gets = group.output in wanted and bool(grads)
        if gets:
            for g in grads:
                if g.startswith("gi"):
                    wanted.add(group.inputs[int(g[2:])])
                else:
                    alive.add(group.parameters[int(g[2:])])
        dead[node["name"]] = not gets
    used = {p for _, group, key, _ in order for p in (group.steps[0].reads() if key is None else group.parameters) if p.kind == "parameter"}
    made.dead = {p.name for p in used - alive}
    if made.dead:
        return
    constants = {}
    free = (c for c in map("c{}".format, itertools.count()) if c not in names.taken and c not in graph.parameters)
    for node, group, key, _ in order:
        if key is None:
            continue
        (_, op), text = node["body"], bodies[key][0]
        silent = dead[node["name"]]
        if silent:
            made.silent.add(node["name"])
        name = made_name(made, bodies, key, silent, op, numbers, text, group, measure, runs)
        node["body"] = name
        inputs = []
        for v in node["inputs"]:
            if v in name_of:
                inputs.append(name_of[v])
                continue
            if v not in constants:
                constants[v] = next(free)
            inputs.append(constants[v])
        node["inputs"] = inputs
        for p in node["parameters"]:
            made.used[p] = graph.parameters[p]
    made.constants = {name: v for v, name in constants.items()}


def made_name(made, bodies, key, silent, op, numbers, text, group, measure, runs):
    full = (key, silent)
    if full not in bodies:
        if silent and text["backward"]:
            text = make_body(group, [False] * (len(group.inputs) + len(group.parameters)), runs)[0]
            text["rows"] = rows_alone(text) if measure else None
        numbers[op] += 1
        bodies[full] = f"{op}/{numbers[op]}"
        made.bodies[bodies[full]] = text
    return bodies[full]


# -- units ---------------------------------------------------------------------------------------------------------------

def find_units(graph: Graph, made: Made, sizes: dict) -> list:
    """Blocks: the outermost modules numbered under one name that hold parameters; one with more than a fifth of all is
    opened. Of a plain Sequential its layers with parameters. In the graph's order, as prefixes of nodes' names."""
    nodes = [n["name"] for n in made.nodes]
    paths = dict.fromkeys(".".join(n.split(".")[:k]) for n in nodes for k in range(1, n.count(".") + 2))
    numbered = [p for p in paths if re.search(r"(^|[._])\d+$", p)]
    total = sum(sizes.values()) or 1
    share = {p: sum(s for k, s in sizes.items() if k.startswith(p + ".")) / total for p in numbered}
    numbered = [p for p in numbered if share[p] > 0]
    leaf = {p for p in numbered if not any(q.startswith(p + ".") for q in nodes)}

    def inside(path):
        found = [p for p in numbered if p not in leaf and (not path or p.startswith(path + ".")) and p != path]
        return [p for p in found if not any(p.startswith(q + ".") for q in found)]

    units, todo = [], inside("")
    while todo:
        path = todo.pop(0)
        inner = inside(path)
        if share[path] > 0.2 and len(inner) > 1:
            todo = inner + todo
        else:
            units.append(path)
    if len(units) < 2:
        units = [p for p in numbered if not any(p.startswith(q + ".") for q in numbered)]
    return units
