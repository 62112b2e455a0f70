"""A node's body played in parts of its units (attention heads, features), for tensor parallelism.

    parts = Parts(body, units, inputs, parameters)      # how these are cut; Impossible where it can't be played so
    text = parts.body_text()                            # the body with sizes in T, "units" and "sums"
    parts_are_the_whole(text)                           # tried with numbers

Its calls are played on tensors without values, with all units and with one: sizes that a call is given become multiples of T
where its operand's are. Whether the parts are the whole, forward and backward, is then tried with numbers: half the units and the
others beside all of them.

    "f32[B,64,3x32T]"  a size of three blocks of 32 elements for each unit: two dimensions of what the module has as one (packed
                       queries, keys and values); a part has its units of each block
    "units": 4         T of the whole
    "sums": ["gi0"]    what is a summand in each part: the output, the gradient of what all parts read whole
    L                  in a call: 1 in the last part and in the whole, else 0: a bias, or what else all have, is added once
    F                  in a call, a tensor of one number: how many units lie before the part's
"""

import math
from dataclasses import dataclass

import torch
from paragauge_import.body.cost import call_flops, has_kernel, moved_elements, product_of, tensors_in
from paragauge_import.body.group import fake
from paragauge_import.export.exported import BATCHES, quiet
from paragauge_import.graph.step import op_name, size_text
from paragauge_import.modes import InF64
from paragauge_import.play import DTYPES, arguments_of, parse, play_lines, sizes_of, split_commas, units_in

SUM = "sum"  # of a value: each part has a summand. None: each has all of it
RESHAPES = ("view", "_unsafe_view", "reshape")
MADE = ("zeros", "ones", "full", "empty")  # of no tensor: of any part
LINEAR = {*RESHAPES, "_to_copy", "expand", "t", "transpose", "permute", "unsqueeze", "squeeze", "clone", "neg", "slice", "select", "mul", "div"}
COLLAPSING = {"select", "slice", "narrow", "split", "split_with_sizes", "unbind", "flip", "roll", "index_select"}

PLAYED_AS = {torch.float64: 4, torch.complex128: 8}  # bytes of an element that is played so in the place of f32 and c64


class Impossible(Exception):
    """Not in these parts."""


@dataclass(frozen=True)
class Cut:
    """Dimension `dim` has outer · units · unit elements, of which a part has those of its units. outer, unit: with the first
    batch and with the second."""
    dim: int
    outer: tuple
    unit: tuple

    def is_fixed(self):
        return self.outer[0] == self.outer[1] and self.unit[0] == self.unit[1]


def fixed(dim: int, outer: int, unit: int) -> Cut:
    return Cut(dim, (outer, outer), (unit, unit))


@dataclass
class Value:
    state: object  # None, SUM or a Cut
    tensors: list  # at each site
    line: list | None = None  # that made it, where it is of no tensor


def dims_of(spec: str) -> list:
    return [int(s) if s.isdigit() else s for s in spec[:-1].split("[")[1].split(",") if s]


def cost_of(target, args, kwargs, results: list) -> tuple:
    """FLOPs and bytes of a call; nothing where it has no kernel. results: tensors."""
    if not has_kernel(target):
        return 0, 0
    return (call_flops(op_name(target), args, results[0] if len(results) == 1 else results),
            sum(count * PLAYED_AS.get(dtype, dtype.itemsize) for count, dtype in moved_elements(op_name(target), tensors_in((args, kwargs)), results)))


def amount_of(sites, at_sites) -> list:
    """[a, b, c, d] of a + b·B + c·T + d·B·T, which is so much at these (B, T): two batches with all units, two with one."""
    (b0, n), (b1, _) = sites[:2]
    f, g, f1, g1 = at_sites
    d, rest = divmod((g - f) - (g1 - f1), (n - 1) * (b1 - b0))
    b = (g1 - f1) // (b1 - b0) - d
    c, more = divmod(f - f1, n - 1)
    if rest or more:
        raise Impossible("costs aren't in proportion to the parts")
    return [f1 - b0 * b - c, b, c - d * b0, d]


# -- playing in parts ------------------------------------------------------------------------------------------------------

class Parts:
    """A body whose inputs and parameters are cut so; Impossible where it can't be."""

    def __init__(self, body: dict, units: int, inputs: list, parameters: list):
        self.body, self.units = body, units
        if any(len(amount) == 3 for amount in body["flops"]):
            raise Impossible("samples are compared with each other")
        self.sites = [(b, t) for t in (units, 1) for b in BATCHES]
        self.flops, self.bytes, self.products = [], [], []
        leaves = {}
        with fake(0), quiet():
            for letter, specs, cuts in (("i", body["inputs"], inputs), ("p", body["parameters"], parameters)):
                for k, (spec, cut) in enumerate(zip(specs, cuts)):
                    leaves[f"{letter}{k}"] = Value(cut, self.tensors(spec, cut))
            made, self.forward = self.play(body["forward"], leaves)
            self.output = made["o"].state
            if self.output is None:
                raise Impossible("nothing of the output is cut")
            kept = {name: made[name] for name in ("o", *(f"s{k}" for k in range(len(body["saved"]))))}
            if any(v.state is SUM for name, v in kept.items() if name != "o") or self.output is SUM and any("o" in a for a in self.words(body["backward"])):
                raise Impossible("the backward reads a summand")
            given = Value(None if self.output is SUM else self.output, made["o"].tensors)
            back, self.backward = self.play(body["backward"], leaves | kept | {"g": given})
        self.cuts = {name: v.state for name, v in (leaves | kept).items()}
        self.sums = ["o"] if self.output is SUM else []
        for name in [n for n in back if n[:2] in ("gi", "gp")]:
            of, got = self.cuts[name[1:]], back[name].state
            if got is SUM and of is None:
                self.sums.append(name)
            elif got != of:
                raise Impossible(f"{name} is no gradient of such a part")
            self.cuts[name] = of
        for name, cut in self.cuts.items():
            if isinstance(cut, Cut) and not cut.is_fixed():
                raise Impossible(f"{name} is cut where the batch lies")

    def tensors(self, spec: str, cut) -> list:
        made = []
        for batch, units in self.sites:
            shape = sizes_of(spec, batch)
            if isinstance(cut, Cut):
                shape[cut.dim] = shape[cut.dim] // self.units * units
            made.append(torch.empty(shape, dtype=DTYPES[spec.split("[")[0]]))
        return made

    @staticmethod
    def words(lines):
        for line in lines:
            _, _, given, named = parse(line)
            for text in (*given, *named.values()):
                yield split_commas(text.strip("[]"))

    # calls

    def play(self, lines, known: dict):
        """All values, and the calls with sizes in T."""
        values, texts = dict(known), []
        flops, moved, products = [0] * 4, [0] * 4, {}
        for line in lines:
            outs, target, given, named = parse(line)
            call = [outs, line.split("=", 1)[1].split("(")[0], list(given), dict(named)]
            texts.append(call)
            results = self.call(call, target, values)
            for k, (batch, units) in enumerate(self.sites):
                args, kwargs = arguments_of(target, call[2], call[3], {n: v.tensors[k] for n, v in values.items()}, batch, units)
                count, size = cost_of(target, args, kwargs, [r.tensors[k] for r in results if r is not None])
                flops[k] += count
                moved[k] += size
                if (name := product_of(op_name(target), args)) is not None:
                    products.setdefault(name.replace("f64", "f32"), [0] * 4)[k] += count  # f64 is played in f32's place
            for out, r in zip(outs, results):
                if out != "_":
                    values[out] = r
        self.flops.append(amount_of(self.sites, flops))
        self.bytes.append(amount_of(self.sites, moved))
        self.products.append({name: amount_of(self.sites, counts) for name, counts in products.items()})
        return values, texts

    def call(self, call, target, values) -> list:
        """The results of a call, whose sizes it changes as its operands are cut."""
        outs, _, given, named = call
        read = [values[w] for text in (*given, *named.values()) for w in split_commas(text.strip("[]")) if w in values]
        cuts = [v.state for v in read if isinstance(v.state, Cut)]
        name = op_name(target)
        if cuts:
            self.cut_made(read, cuts[0], values)
        states = None
        if any(v.state is SUM for v in read):
            states = self.of_sums(name, target, call, values)
        elif cuts:
            handler = getattr(self, f"of_{name}", None) or (self.of_reshape if name in RESHAPES else None)
            if handler is not None:
                states = handler(target, call, values)
            elif name in COLLAPSING:
                self.keeps_dim(target, call, values)
        results = self.run(target, call, values)
        if states is None:
            states = [self.follow(r, read, cuts) if r is not None else None for r in results]
        made = [Value(s, r) if r is not None else None for s, r in zip(states, results)]
        if not read and name in MADE:
            made[0].line = call
        return made

    def run(self, target, call, values) -> list:
        by_site = []
        for k, (batch, units) in enumerate(self.sites):
            at = {n: v.tensors[k] for n, v in values.items()}
            try:
                args, kwargs = arguments_of(target, call[2], call[3], at, batch, units)
                result = target(*args, **kwargs)
            except Exception as error:  # noqa: BLE001: whatever an operation says of such shapes
                raise Impossible(f"{op_name(target)}: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}") from error
            by_site.append(list(result) if isinstance(result, (tuple, list)) else [result])
        return [list(r) if r[0] is not None else None for r in zip(*by_site)]

    def follow(self, tensors, read, cuts):
        """How a result is cut, by its sizes."""
        whole, part = tensors[0].shape, tensors[2].shape
        dims = [d for d, (a, b) in enumerate(zip(whole, part)) if a != b]
        if not cuts and not dims:
            return None
        if len(dims) != 1 or not cuts:
            raise Impossible("parts can't be told from sizes")
        d = dims[0]
        each = tuple(t.shape[d] for t in tensors[2:])
        for cut in cuts:
            if tuple(o * u for o, u in zip(cut.outer, cut.unit)) == each:
                return Cut(d, cut.outer, cut.unit)
        if any(o != 1 for cut in cuts for o in cut.outer):
            raise Impossible("blocks can't be told from sizes")
        return Cut(d, (1, 1), each)

    def cut_made(self, read, cut, values):
        """What is of no tensor, and read beside a part, is as large as that."""
        like = next(v for v in read if v.state == cut)
        for v in read:
            if v.line is None or v.state is not None or v.tensors[0].dim() != like.tensors[0].dim():
                continue
            whole = [like.tensors[w].shape[cut.dim] for w in (0, 1)]
            if [v.tensors[w].shape[cut.dim] for w in (0, 1)] != whole:
                continue
            v.line[2][0] = self.resized(v.line[2][0], cut.dim, whole)
            v.tensors = self.run(parse(f"o={v.line[1]}()")[1], v.line, values)[0]
            v.state, v.line = Cut(cut.dim, cut.outer, cut.unit), None

    def resized(self, text: str, dim: int, whole) -> str:
        """A list of sizes with one in T: `whole` is it with either batch."""
        sizes = split_commas(text[1:-1])
        if sizes[dim] != "-1":
            if any(w % self.units for w in whole):
                raise Impossible("a size is no multiple of the units")
            each = str(size_text(*(w // self.units for w in whole)))
            sizes[dim] = ("" if each == "1" else each) + "T"
        return f"[{','.join(sizes)}]"

    # single operations. Each changes the call's sizes and says how its results are cut; None: by their sizes

    @staticmethod
    def operand(call, values, k=0) -> Value:
        return values[call[2][k]]

    def of_reshape(self, target, call, values):
        x = self.operand(call, values)
        cut = x.state
        whole = self.whole_result(target, call, values)
        found = None
        for j in range(len(whole[0])):
            outer, unit = [], []
            for w in (0, 1):
                inner = cut.unit[w] * math.prod(x.tensors[w].shape[cut.dim + 1:])
                after = math.prod(whole[w][j + 1:])
                if inner % after or whole[w][j] % (self.units * (inner // after)):
                    break
                unit.append(inner // after)
                outer.append(whole[w][j] // (self.units * unit[-1]))
            if len(unit) == 2:
                found = Cut(j, tuple(outer), tuple(unit))
        if found is None:
            raise Impossible("a reshape takes units apart")
        call[2][1] = self.resized(call[2][1], found.dim, [s[found.dim] for s in whole])
        return [found]

    def whole_result(self, target, call, values) -> list:
        shapes = []
        for k in (0, 1):
            args, kwargs = arguments_of(target, call[2], call[3], {n: v.tensors[k] for n, v in values.items()}, self.sites[k][0])
            shapes.append(list(target(*args, **kwargs).shape))
        return shapes

    def of_expand(self, target, call, values):
        x = self.operand(call, values)
        whole = self.whole_result(target, call, values)
        dim = x.state.dim + len(whole[0]) - x.tensors[0].dim()
        call[2][1] = self.resized(call[2][1], dim, [s[dim] for s in whole])
        return [Cut(dim, x.state.outer, x.state.unit)]

    @staticmethod
    def argument_dims(target, call) -> list:
        """The argument `dim` or `dims`; of what has none 0, the default of those that have one."""
        names = [a.name for a in target._schema.arguments]
        name = "dim" if "dim" in names else "dims"
        text = call[3].get(name) or (call[2][names.index(name)] if names.index(name) < len(call[2]) else "0")
        return [int(d) for d in split_commas(text.strip("[]"))]

    def is_along(self, target, call, x: Value) -> bool:
        return x.state.dim in [d % x.tensors[0].dim() for d in self.argument_dims(target, call)]

    def keeps_dim(self, target, call, values):
        x = self.operand(call, values)
        if isinstance(x.state, Cut) and self.is_along(target, call, x):
            raise Impossible(f"{op_name(target)} along the cut")

    def of_split_with_sizes(self, target, call, values):
        x = self.operand(call, values)
        if not self.is_along(target, call, x):
            return None
        sizes = split_commas(call[2][1][1:-1])
        if len(set(sizes)) != 1 or x.state.outer != (len(sizes),) * 2 or not x.state.is_fixed() or not sizes[0].isdigit():
            raise Impossible("a split along the cut")
        for k in range(len(sizes)):
            call[2][1] = self.resized(call[2][1], k, [int(sizes[k])] * 2)
        return [Cut(x.state.dim, (1, 1), x.state.unit)] * len(sizes)

    def of_cat(self, target, call, values):
        parts = [values[w] for w in split_commas(call[2][0][1:-1])]
        cuts = {v.state for v in parts}
        if len(cuts) != 1:
            raise Impossible("parts beside what isn't cut")
        cut, = cuts
        if not self.is_along(target, call, parts[0]):
            return None
        if cut.outer != (1, 1):
            raise Impossible("blocks of blocks")
        return [Cut(cut.dim, (len(parts),) * 2, cut.unit)]

    def of_select_backward(self, target, call, values):
        x, inserted = self.operand(call, values), int(call[2][2])
        dim = x.state.dim + (inserted % (x.tensors[0].dim() + 1) <= x.state.dim)
        call[2][1] = self.resized(call[2][1], dim, [t.shape[x.state.dim] for t in x.tensors[:2]])
        return [Cut(dim, x.state.outer, x.state.unit)]

    def of_slice_backward(self, target, call, values):
        x = self.operand(call, values)
        if self.is_along(target, call, x):
            raise Impossible("a slice along the cut")
        call[2][1] = self.resized(call[2][1], x.state.dim, [t.shape[x.state.dim] for t in x.tensors[:2]])
        return [x.state]

    def multiplied(self, a: Value, b: Value):
        """Of two matrices, or as many pairs of them."""
        rows, inner = a.tensors[0].dim() - 2, a.tensors[0].dim() - 1
        at = lambda v, dim: isinstance(v.state, Cut) and v.state.dim == dim  # noqa: E731
        if at(a, inner) and at(b, rows) and (a.state.outer, a.state.unit) == (b.state.outer, b.state.unit):
            return SUM
        if at(a, rows) and b.state is None:
            return a.state
        if at(b, inner) and a.state is None:
            return b.state
        if rows == 1 and at(a, 0) and at(b, 0) and a.state == b.state:
            return a.state
        raise Impossible("a product of such parts")

    def of_mm(self, target, call, values):
        return [self.multiplied(self.operand(call, values), self.operand(call, values, 1))]

    of_bmm = of_mm

    def of_addmm(self, target, call, values):
        bias = self.operand(call, values)
        made = self.multiplied(self.operand(call, values, 1), self.operand(call, values, 2))
        if made is SUM:
            if bias.state is not None or "beta" in call[3]:
                raise Impossible("a sum beside such a bias")
            call[3]["beta"] = "L"
        elif not (isinstance(bias.state, Cut) and bias.state.outer == made.outer and bias.state.unit == made.unit and
                  bias.state.dim == made.dim - (2 - bias.tensors[0].dim())):
            raise Impossible("a bias that isn't cut as the product")
        return [made]

    def of_sum(self, target, call, values):
        return [SUM] if len(call[2]) == 1 or self.is_along(target, call, self.operand(call, values)) else None

    def of_native_layer_norm_backward(self, target, call, values):
        x = self.operand(call, values)
        if not isinstance(x.state, Cut) or x.state.dim >= x.tensors[0].dim() - len(split_commas(call[2][2].strip("[]"))):
            raise Impossible("a norm along the cut")
        return [x.state, SUM, SUM]

    def of_embedding_dense_backward(self, target, call, values):
        g, words = self.operand(call, values), self.operand(call, values, 1)
        if g.state != words.state:
            raise Impossible("a lookup of other words than the gradient's")
        return [SUM]

    def of_sums(self, name, target, call, values):
        """Summands: what is linear in them gives summands."""
        read = [values.get(text) for text in call[2]]
        sums = [v is not None and v.state is SUM for v in read]
        if name == "add" and target._overloadname == "Tensor" and "alpha" not in call[3]:
            if all(sums[:2]):
                return [SUM]
            other = read[sums[0]]
            if other is None or other.state is not None:
                raise Impossible("a summand beside a part")
            if not sums[0]:
                call[2][:2] = call[2][1], call[2][0]
            call[3]["alpha"] = "L"  # of the second one: added once
            return [SUM]
        if name == "sum" or name in LINEAR and sums.count(True) == 1 and all(v is None or v.state in (None, SUM) for v in read):
            if name == "div" and not sums[0]:
                raise Impossible("a quotient by a summand")
            return [SUM]
        raise Impossible(f"{name} of a summand")

    # texts

    def body_text(self) -> dict:
        """The body as the file has it."""
        body = self.body
        forward, backward = Lines(self, self.forward), Lines(self, self.backward)
        for name, spec in [(f"{letter}{k}", s) for letter, key in (("i", "inputs"), ("p", "parameters")) for k, s in enumerate(body[key])]:
            forward.reads(name, spec)
            backward.reads(name, spec)
        for name, spec in [("o", body["output"])] + [(f"s{k}", s) for k, s in enumerate(body["saved"])]:
            forward.gives(name, spec)
            backward.reads(name, spec)
        backward.reads("g", body["output"], "o")
        for letter, key in (("i", "inputs"), ("p", "parameters")):
            for k, spec in enumerate(body[key]):
                backward.gives(f"g{letter}{k}", spec, f"{letter}{k}")
        spec = lambda name, text: cut_spec(text, self.cuts[name])  # noqa: E731
        if "products" in body:
            body = {**body, "products": {name: [of.get(name, [0] * 4) for of in self.products] for name in body["products"]}}
        return {**body, "inputs": [spec(f"i{k}", s) for k, s in enumerate(body["inputs"])],
                "parameters": [spec(f"p{k}", s) for k, s in enumerate(body["parameters"])], "output": spec("o", body["output"]),
                "saved": [spec(f"s{k}", s) for k, s in enumerate(body["saved"])], "forward": forward.texts(),
                "backward": backward.texts(), "flops": self.flops, "bytes": self.bytes, "units": self.units, "sums": self.sums}


def cut_spec(spec: str, cut) -> str:
    """The tensor's type with a size in T."""
    if not isinstance(cut, Cut):
        return spec
    dtype, dims = spec.split("[")[0], [str(d) for d in dims_of(spec)]
    dims[cut.dim] = (f"{cut.outer[0]}x" if cut.outer[0] > 1 else "") + ("" if cut.unit[0] == 1 else str(cut.unit[0])) + "T"
    return f"{dtype}[{','.join(dims)}]"


class Lines:
    """Calls, between which and the node's tensors a view lies where these have a dimension's blocks apart."""

    def __init__(self, parts: Parts, calls):
        self.parts, self.calls, self.before, self.after = parts, calls, [], []

    def blocks(self, name) -> bool:
        cut = self.parts.cuts[name]
        return isinstance(cut, Cut) and cut.outer[0] > 1

    def sizes(self, spec: str, name: str, apart: bool) -> str:
        cut, dims = self.parts.cuts[name], [str(d) for d in dims_of(spec)]
        each = "" if cut.unit[0] == 1 else str(cut.unit[0])
        dims[cut.dim] = f"{cut.outer[0]},{each}T" if apart else f"{cut.outer[0] * cut.unit[0]}T"
        return f"[{','.join(dims)}]"

    def reads(self, name: str, spec: str, cut_as: str = ""):
        if not self.blocks(cut_as or name):
            return
        others = False
        for call in self.calls:
            for where in (call[2], call[3]):
                for key, text in enumerate(where) if isinstance(where, list) else where.items():
                    if name not in split_commas(text.strip("[]")):
                        continue
                    if not (op_name_of(call) in RESHAPES and key == 0):
                        others = True
                        words = [f"whole_{name}" if w == name else w for w in split_commas(text.strip("[]"))]
                        where[key] = f"[{','.join(words)}]" if text.startswith("[") else words[0]
        if others:
            self.before.append(f"whole_{name}=view({name},{self.sizes(spec, cut_as or name, False)})")

    def gives(self, name: str, spec: str, cut_as: str = ""):
        if not self.blocks(cut_as or name):
            return
        for call in self.calls:
            if name not in call[0]:
                continue
            if op_name_of(call) in RESHAPES and not any(name in split_commas(t.strip("[]")) for c in self.calls for t in (*c[2], *c[3].values())):
                call[2][1] = self.sizes(spec, cut_as or name, True)
                return
            rename = lambda w: f"whole_{name}" if w == name else w  # noqa: E731
            for c in self.calls:
                c[0] = [rename(w) for w in c[0]]
                c[2] = [renamed(t, rename) for t in c[2]]
                c[3] = {k: renamed(t, rename) for k, t in c[3].items()}
            self.after.append(f"{name}=view(whole_{name},{self.sizes(spec, cut_as or name, True)})")
            return

    def texts(self) -> list:
        return [*self.before, *(f"{','.join(outs)}={op}({','.join([*given, *(f'{k}={v}' for k, v in named.items())])})"
                                for outs, op, given, named in self.calls), *self.after]


def op_name_of(call) -> str:
    return call[1].partition(".")[0]


def renamed(text: str, rename) -> str:
    if text.startswith("["):
        return "[" + ",".join(rename(w) for w in split_commas(text[1:-1])) + "]"
    return rename(text)


# -- trying -----------------------------------------------------------------------------------------------------------------

def parts_are_the_whole(body: dict, batch: int = 2, below: int = 2, plain: dict | None = None) -> bool:
    """Whether what half the units give and what the others give are what all of them give together, in numbers. below: of whole
    numbers. plain: the body that plays the whole, where that is another."""
    units = units_in(body)
    shares = [units // 2, units - units // 2]
    generator = torch.Generator().manual_seed(0)

    def random(spec):
        shape, dtype = sizes_of(spec, batch, units), DTYPES[spec.split("[")[0]]
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.randint(0, below, shape, generator=generator).to(dtype)
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1

    def dim_and_unit(spec):
        """The dimension that is cut, and a unit's size in it."""
        sizes = [s for size in spec[:-1].split("[")[1].split(",") if size for s in size.split("x")]
        for d, s in enumerate(sizes):
            if "T" in s:
                return d, int(s[:-1] or 1)
        return None

    def part(spec, x, k):
        where = dim_and_unit(spec)
        if where is None:
            return x
        d, unit = where
        return x.narrow(d, k * shares[0] * unit, shares[k] * unit).contiguous()

    leaves = {f"{letter}{k}": s for letter, key in (("i", "inputs"), ("p", "parameters")) for k, s in enumerate(body[key])}
    specs = leaves | {"o": body["output"]} | {f"s{k}": s for k, s in enumerate(body["saved"])}
    specs |= {f"g{name}": spec for name, spec in leaves.items()}
    tensors, g = {n: random(s) for n, s in leaves.items()}, random(body["output"])
    kept = [n for n in specs if n == "o" or n[0] == "s"]

    def play(body, given, g, t, last, first):
        given = given | {"L": last, "F": torch.tensor([first])}
        found = play_lines(body["forward"], given, batch, t)
        back = play_lines(body["backward"], given | {n: found[n] for n in kept} | {"g": g}, batch, t) if body["backward"] else {}
        return {"o": found["o"]} | {n: v for n, v in back.items() if n in specs and n[0] == "g"}

    with torch.no_grad(), InF64():
        whole = play(plain or body, tensors, g, units, 1, 0)
        try:
            both = [play(body, {n: part(specs[n], x, k) for n, x in tensors.items()}, part(body["output"], g, k), shares[k], k, k * shares[0]) for k in (0, 1)]
        except RuntimeError:  # a size that isn't a part's
            return False
    for name, x in whole.items():
        a, b = (p[name] for p in both)
        if name in body["sums"]:
            got = a + b
        elif (where := dim_and_unit(specs[name])) is not None:
            got = torch.cat([a, b], where[0])
        else:
            got = a if torch.equal(a, b) else None
        if got is None or got.shape != x.shape or not torch.allclose(got, x, rtol=1e-9, atol=1e-9):
            return False
    return True
