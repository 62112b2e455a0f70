"""A node's forward and backward as lines of ATen calls, from the steps that it is made of.

    body = make_body(group, needs)      # body.text(): the dictionary that the file holds

The joint forward and backward is traced by make_fx on fake tensors, with the first batch and with the second, and then cut:
the forward is what the output needs, the rest is the backward. What the backward reads of the forward is saved, unless it is
an input, a parameter, the output, or one of these seen another way, which the backward makes again.
"""

import contextlib
import math
from dataclasses import dataclass, field

import torch
from paragauge_import import autocast, own_function
from paragauge_import.exported import BATCHES
from paragauge_import.graph import RANDOM, Step, Value, functional_of, is_view, op_name, shape_text, size_text
from paragauge_import.refusal import Refusal, first_line, place_of
from paragauge_import.trial import is_whole, loose_results
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
DTYPE_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
               torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
               torch.complex64: "c64", torch.complex128: "c128"}
LEFT_OUT = {"device", "layout", "pin_memory", "generator"}
LARGER = {"mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"}  # the kernel leaves its sum in all losses' memory
FAKE = {}  # a mode for either batch


def number_text(x: float, given: set) -> str:
    """As Python writes it; where a kernel rounded to f32 what somebody wrote with at most six digits (eps=1e-05), as that was.
    given: the module's own numbers, which are as they are."""
    short = f"{x:.6g}"
    if x not in given and x == x and abs(x) < 3e38 and x != float(short) and x == torch.tensor(float(short), dtype=torch.float32).item():
        return repr(float(short))
    return repr(x)


def spec_text(shapes, dtype) -> str:
    return f"{DTYPE_NAMES[dtype]}[{','.join(str(s) for s in shape_text(shapes))}]"


# -- playing steps -------------------------------------------------------------------------------------------------------

def attention_with_dropout(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """aten::_scaled_dot_product_attention_math, which is what CPUs take where dropout is on; half precision in f32, as there."""
    own = q.dtype
    if own in (torch.bfloat16, torch.float16):
        q, k, v = q.float(), k.float(), v.float()
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    scores = (q * root) @ (k * root).transpose(-2, -1)
    softmax = torch.softmax if attn_mask is None else aten._safe_softmax  # zeros for who sees nobody
    if is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return (aten.native_dropout(softmax(scores, -1), dropout_p, True)[0] @ v).to(own)


def feature_dropout(x, p, train):
    noise = torch.bernoulli(torch.empty(x.shape[:2] + (1,) * (x.dim() - 2), dtype=x.dtype, device=x.device), 1 - p)
    return x * (noise / (1 - p))


def run_step(step: Step, which: int, lookup):
    """Calls the step's operation, as autocast has it where that is applied. lookup: a Value's tensor."""
    args, kwargs = (tree_map(lambda x: lookup(x) if isinstance(x, Value) else x, part[which])
                    for part in (step.args, step.kwargs))
    kwargs = {k: v for k, v in kwargs.items() if k not in LEFT_OUT}
    made = step.outputs[0]
    if not step.reads() and made is not None and made.dtype == torch.float32 and any(a.name == "dtype" for a in step.target._schema.arguments):
        kwargs["dtype"] = kwargs.get("dtype") or torch.float32  # not the default: torch.rand(size), in float64
    if own_function.is_own(step.target):
        call = None if autocast.DTYPE is None else autocast.call_own
        return call_step(step, own_function.call_of(step.target), list(args), kwargs, call)
    if autocast.DTYPE is None:
        return call_step(step, step.target, list(args), kwargs)
    if step.like is not None:
        kwargs["dtype"] = step.like.source().dtype
    if step.inplace:  # what is written in place is on no list, and stays of its dtype
        return call_step(step, step.target, list(args), kwargs).to(args[0].dtype)
    target, args, kwargs = autocast.cast(step.target, args, kwargs)
    args = autocast.in_range(args)
    return call_step(step, target, list(args), kwargs, call=autocast.call if autocast.policy_of(target) is None else None)


def call_step(step, target, args, kwargs, call=None):
    """call(target, args, kwargs): what calls an operation, if not it itself."""
    name = step.name
    if asks_for_floats(step):  # which in float64 is more than the default dtype
        floats = lambda x: x.to(torch.get_default_dtype()) if isinstance(x, torch.Tensor) and x.dtype != torch.bool else x  # noqa: E731
        args = tree_map(floats, args)
    if name in ("view", "_unsafe_view"):
        target = aten.reshape.default  # what a view needs of strides may not hold here, where nodes' outputs are contiguous
    elif name == "dropout":
        return aten.native_dropout(args[0], args[1], True)[0]
    elif name == "feature_dropout":
        return feature_dropout(*args)
    elif name in ("batch_norm", "instance_norm") and args[1] is None and args[0].dtype in (torch.bfloat16, torch.float16):
        channels = args[0].shape[1]  # with weights its statistics are float32 on CPUs, too, as GPUs' are
        args[1:3] = (make(channels, dtype=torch.float32, device=args[0].device) for make in (torch.ones, torch.zeros))
    elif name.startswith("conv"):
        args[0] = args[0].contiguous()  # of a permuted image a kernel's output lies as that kernel likes
    elif name.startswith("adaptive_avg_pool") and all(s == 1 for s in step.argument("output_size")):
        return args[0].mean(list(range(-len(step.argument("output_size")), 0)), keepdim=True)  # else of odd strides
    elif name in ("var", "std", "var_mean", "std_mean") and (dims := dims_over_samples(step)):
        return variance_over_samples(step, args[0], dims)
    elif name == "scaled_dot_product_attention" and step.argument("dropout_p"):
        return attention_with_dropout(*args, **kwargs)
    with torch.no_grad() if step.no_grad else contextlib.nullcontext():
        result = target(*args, **kwargs) if call is None else call(target, args, kwargs)
    if name in LARGER and step.argument("reduction") != 0:
        result = result.clone()
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result) if step.no_grad else result


def dims_over_samples(step):
    """Of a variance the dimensions that it is over, if the batch is one of them; else nothing."""
    shapes, dims = step.reads()[0].shapes, step.argument("dim")
    dims = [d % max(len(shapes[0]), 1) for d in ([dims] if isinstance(dims, int) else dims or range(len(shapes[0])))]
    return dims if shapes[0] and any(shapes[0][d] != shapes[1][d] for d in dims) else []


def variance_over_samples(step, x, dims):
    """In calls whose numbers are the batch's: PyTorch's own backward has 2 / (batch - 1)."""
    correction, keepdim = step.argument("correction"), bool(step.argument("keepdim"))
    if step.argument("unbiased") is not None:
        correction = int(step.argument("unbiased"))
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    among = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    found = (wide - wide.mean(dims, keepdim=True)).pow(2).sum(dims, keepdim=keepdim) / among
    if step.name.startswith("std"):  # whose gradient is 0 where all are equal
        equal = found == 0
        found = found.masked_fill(equal, 1).sqrt().masked_fill(equal, 0)
    found = found.to(x.dtype)
    return (found, x.mean(dims, keepdim=keepdim)) if step.name.endswith("_mean") else found


def asks_for_floats(step) -> bool:
    """Of integers: c / 3."""
    first = step.outputs[0]
    return torch.Tag.pointwise in step.target.tags and first is not None and first.dtype.is_floating_point and \
        not any(v.dtype.is_floating_point or v.dtype.is_complex for v in step.reads())


@dataclass(eq=False)
class Group:
    """The steps that become one node: `steps` with one output that others read, and the views between its inputs and them."""
    steps: list
    output: Value
    name: str = ""
    inputs: list = field(default_factory=list)
    parameters: list = field(default_factory=list)

    def resolve(self, v):
        """What another node gives permuted is seen as the permutation of that."""
        return v.seen_as if v.seen_as is not None and v.step not in self.steps else v

    def find_reads(self):
        self.inputs, self.parameters, own, seen = [], [], set(self.steps), set()

        def visit(v):
            v = self.resolve(v)
            if v in seen:
                return
            seen.add(v)
            if v.step is not None and (v.step.virtual or v.step in own) and (v is self.output or not v.is_output):
                for x in v.step.reads():
                    visit(x)
            else:
                (self.parameters if v.kind == "parameter" else self.inputs).append(v)
        visit(self.output)

    def run(self, which: int, tensors: dict):
        """The output, of the tensors of inputs and parameters."""
        known = dict(tensors)

        def lookup(v):
            v = self.resolve(v)
            if v not in known:
                step = v.step
                result = run_step(step, which, lookup) if step.twin is None else run_step(step.twin, which, as_twin_reads(step, lookup))
                for out, r in zip(v.step.outputs, result if isinstance(result, (tuple, list)) else [result]):
                    if out is not None:
                        known[out] = r if out.read_as is None else r.to(out.read_as)
            return known[v]
        return lookup(self.output)

    def key(self, needs) -> tuple:
        """Equal for groups with equal bodies."""
        numbers = {v: f"{'p' if v.kind == 'parameter' else 'i'}{spec_text(v.shapes, v.dtype)}"
                   for v in (*self.inputs, *self.parameters)}
        order = {v: i for i, v in enumerate((*self.inputs, *self.parameters))}
        done = {}

        def visit(v):
            v = self.resolve(v)
            if v in order:
                return ("leaf", order[v])
            step = v.step
            if step not in done:
                done[step] = None
                parts = tuple(_freeze(step.args[w], visit) + _freeze(sorted(step.kwargs[w].items()), visit) for w in (0, 1))
                done[step] = len(lines)
                lines.append((str(step.target), step.no_grad, parts, step.twin and twin_key(step)))
            return ("step", done[step], v.index)
        lines = []
        last = visit(self.output)
        return (tuple(numbers.values()), tuple(lines), last, tuple(needs))


def _freeze(x, visit):
    if isinstance(x, Value):
        return visit(x)
    if isinstance(x, (list, tuple)):
        return tuple(_freeze(y, visit) for y in x)
    return (type(x).__name__, str(x))


def twin_key(step: Step) -> tuple:
    """What a twin says beside the step itself."""
    twin = step.twin
    return (str(twin.target), tuple(v.dtype for v in twin.reads()), tuple(o.read_as for o in step.outputs if o is not None),
            tuple(_freeze(twin.args[w], lambda v: 0) + _freeze(sorted(twin.kwargs[w].items()), lambda v: 0) for w in (0, 1)))


def as_twin_reads(step: Step, lookup):
    """What looks the twin's operands up, in their order: the step's own, in the twin's dtypes."""
    own = iter(step.reads())

    def found(v):
        x = lookup(next(own))
        return x.to(v.dtype) if x.dtype != v.dtype and x.is_floating_point() and v.dtype.is_floating_point else x
    return found


def fake(which):
    if which not in FAKE:
        FAKE[which] = FakeTensorMode(allow_non_fake_inputs=True)
    return FAKE[which]


def fake_tensors(group, which, needs):
    tensors = {}
    with fake(which):
        for v, need in zip((*group.inputs, *group.parameters), needs):
            tensors[v] = torch.empty(v.shapes[which], dtype=v.dtype, requires_grad=need)
    return tensors


# -- tracing -------------------------------------------------------------------------------------------------------------

def joint(group, which, needs):
    """The traced graph of (inputs…, parameters…, g) -> [output, gradient or None of each that needs one]."""
    leaves = [*group.inputs, *group.parameters]
    tensors = fake_tensors(group, which, needs)
    with fake(which), torch.no_grad():
        shape = group.run(which, tensors)
        g = torch.empty(shape.shape, dtype=shape.dtype)

    def function(given, g):
        o = group.run(which, dict(zip(leaves, given)))
        if not o.requires_grad:
            return [o]
        wanted = [t for t, need in zip(given, needs) if need]
        with torch.autograd.set_multithreading_enabled(False):
            grads = torch.autograd.grad(o, wanted, g, allow_unused=True)
        grads = iter(grads)
        return [o, *(next(grads) if need else None for need in needs)]

    def flat(*args):
        return function(args[:-1], args[-1])

    with fake(which), torch.backends.mkldnn.flags(enabled=False):
        given = [*[tensors[v] for v in leaves], g]
        made = make_fx(flat, decomposition_table={})(*given)
        if any(writes_through_view(n) for n in made.graph.nodes):
            with torch.no_grad():
                made = make_fx(torch.func.functionalize(made, remove="mutations"), decomposition_table={})(*given)
    write_constants(made)
    simplify(made.graph, needs)
    for n in made.graph.nodes:  # a batch norm's statistics of bfloat16 are float32, which a trace doesn't know
        if is_item(n) and op_name(n.args[0].target) == "native_batch_norm" and n.args[1] > 0:
            n.meta["val"] = n.meta["val"].to(torch.promote_types(n.meta["val"].dtype, torch.float32))
    return made.graph


def write_constants(made):
    """A number that a backward makes a tensor of (x[mask] = 0) is a call's."""
    for n in [n for n in made.graph.nodes if n.op == "get_attr"]:
        data = getattr(made, n.target)
        data = getattr(data, "constant", data)
        if not isinstance(data, torch.Tensor) or data.numel() != 1:
            raise Refusal("a function of its own reads a tensor that it isn't given")
        with made.graph.inserting_before(n):
            full = made.graph.call_function(aten.full.default, (list(data.shape), data.item()), {"dtype": data.dtype})
        full.meta["val"] = n.meta["val"] if "val" in n.meta else torch.empty(data.shape, dtype=data.dtype, device="meta")
        n.replace_all_uses_with(full)
        made.graph.erase_node(n)


def is_mutable_call(node) -> bool:
    return node.op == "call_function" and hasattr(node.target, "_schema") and node.target._schema.is_mutable


def writes_through_view(node) -> bool:
    return is_mutable_call(node) and is_view_call(node.args[0]) and len(node.args[0].args[0].users) > 1


def simplify(graph, needs):
    """Without what is the same tensor again (alias, a transpose of a transpose); a detach is left where it ends a gradient's way
    to the output's operands. And nothing is written in place: the trace gives later readers the result of such an operation, so
    the functional one does."""
    forward = ancestors([next(iter(reversed(graph.nodes))).args[0][0]])
    trained = {n for n, need in zip([n for n in graph.nodes if n.op == "placeholder"], needs) if need}
    for n in graph.nodes:
        if any(x in trained for x in n.all_input_nodes) and op_name(n.target) != "detach":
            trained.add(n)
    for n in graph.nodes:
        if n.op != "call_function":
            continue
        name, base = op_name(n.target), n.args[0] if n.args else None
        if is_mutable_call(n):
            if writes_through_view(n):
                raise Refusal(f"op '{name}' writes through a view")
            missing = [a for a in n.target._schema.arguments[len(n.args):] if not a.kwarg_only]
            n.args = (*n.args, *(a.default_value for a in missing))  # bernoulli_'s p has a default, bernoulli's has none
            n.target = functional_twin(n.target)
        if op_name(n.target) == "copy":
            n.replace_all_uses_with(as_copied(graph, n))
        elif name == "detach" and n in forward and base in trained:
            n.replace_all_uses_with(base, delete_user_cb=lambda user: user not in forward)
        elif name in ("detach", "alias"):
            n.replace_all_uses_with(base)
        elif name == "t" and getattr(base, "target", None) is n.target:
            n.replace_all_uses_with(base.args[0])
    graph.eliminate_dead_code()


def as_copied(graph, node):
    """What a copy over all of a tensor is: its source, in the tensor's shape and dtype."""
    source, to = node.args[1], node.meta["val"]
    with graph.inserting_before(node):
        for target, args, kwargs, differs in (
                (aten._to_copy.default, (), {"dtype": to.dtype}, source.meta["val"].dtype != to.dtype),
                (aten.expand.default, (list(to.shape),), {}, source.meta["val"].shape != to.shape)):
            if differs:
                source = graph.call_function(target, (source, *args), kwargs)
                source.meta["val"] = to
    return source


def functional_twin(target):
    twin = functional_of(target)
    if twin is None:
        raise Refusal(f"op '{op_name(target)}' writes in place and has no functional twin")
    return twin


# -- cutting -------------------------------------------------------------------------------------------------------------

VIEW_CALLS = {"_unsafe_view"}


def is_view_call(node) -> bool:
    return hasattr(node.target, "_schema") and (is_view(node.target) or op_name(node.target) in VIEW_CALLS)


def is_item(node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def ancestors(nodes) -> set:
    found, stack = set(), [n for n in nodes if n is not None]
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack += n.all_input_nodes
    return found


class Cut:
    """The lines of a body's forward and backward from the joint graphs of both batches."""

    def __init__(self, group, graphs, needs, loose=frozenset()):
        """loose: results (o, s0, gi0, …) that need a copy though the traces say otherwise, and "view": loose_results."""
        self.group, self.graphs, self.loose = group, graphs, loose
        self.given = {x for s in group.steps for x in tree_flatten((s.args[0], s.kwargs[0]))[0] if isinstance(x, float)}
        nodes = [list(g.nodes) for g in graphs]
        if [str(n.target) for n in nodes[0] if n.op == "call_function"] != [str(n.target) for n in nodes[1] if n.op == "call_function"]:
            raise Refusal(f"the operation's kernels depend on the batch size at {place_of(group.output.step.place)}")
        self.twin = dict(zip(*nodes))
        self.nodes = nodes[0]
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        inputs = len(group.inputs)
        self.names = {n: f"i{k}" if k < inputs else f"p{k - inputs}" for k, n in enumerate(placeholders[:-1])}
        self.leaves = set(placeholders)
        self.names[placeholders[-1]] = "g"
        results = list(self.nodes[-1].args[0])
        self.output = results[0]
        self.grads = {}
        if len(results) > 1:
            for k, r in enumerate(results[1:]):
                if needs[k] and r is not None:
                    self.grads[f"gi{k}" if k < inputs else f"gp{k - inputs}"] = r
        self.forward_set = ancestors([self.output])
        self.forward_set |= {n for n in self.nodes if is_item(n) and n.args[0] in self.forward_set}
        self.depends = set(self.leaves)
        for n in self.nodes:
            if any(x in self.depends for x in n.all_input_nodes):
                self.depends.add(n)
        self.inverse = self.inverses()
        self.saved = []  # nodes
        self.forward_lines, self.backward_lines = [], []
        self.calls = {True: [], False: []}  # of the forward, of the backward: for costs
        self.write_backward()
        self.write_forward()

    def val(self, node, which=0):
        return (node if which == 0 else self.twin[node]).meta["val"]

    def storage(self, node):
        return self.val(node).untyped_storage()._cdata

    def is_whole(self, node) -> bool:
        """Whether the value is contiguous, and all that is in its memory."""
        return is_whole(self.val(node))

    def inverses(self):
        """What the output shows in another way: by node, the calls that lead from the output back to it."""
        back, n, calls = {}, self.output, []
        while n.op == "call_function" and n not in self.leaves:
            name = op_name(n.target)
            base = n.args[0] if n.args and isinstance(n.args[0], torch.fx.Node) else None
            if base is None or not (is_view_call(n) or name == "clone") or self.val(base).numel() != self.val(n).numel():
                break
            if name in ("transpose", "t"):
                calls = [*calls, (n.target, n.args[1:], n.args[1:])]
            elif name == "permute":
                order = n.args[1]
                inverse = sorted(range(len(order)), key=lambda i: order[i] % len(order))
                calls = [*calls, (n.target, (inverse,), (inverse,))]
            elif name in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand"):
                calls = [*calls, (aten.view.default, (list(self.val(base).shape),), (list(self.val(base, 1).shape),))]
            elif name != "clone":
                break
            n = base
            back[n] = calls
        return back

    # text

    def text(self) -> dict:
        """What it takes, gives and does; not what that costs."""
        real = lambda x: torch.view_as_real(x) if x.is_complex() else x  # noqa: E731
        spec = lambda n: spec_text(tuple(tuple(real(self.val(n, w)).shape) for w in (0, 1)), real(self.val(n)).dtype)  # noqa: E731
        return {"inputs": [spec_text(v.shapes, v.dtype) for v in self.group.inputs],
                "parameters": [spec_text(v.shapes, v.dtype) for v in self.group.parameters],
                "output": spec(self.output), "saved": [spec(n) for n in self.saved],
                "forward": self.forward_lines, "backward": self.backward_lines}

    def argument(self, a, b, names):
        if isinstance(a, torch.fx.Node):
            return names[a]
        if isinstance(a, (list, tuple)):
            return "[" + ",".join(self.argument(x, y, names) for x, y in zip(a, b)) + "]"
        if a is None or isinstance(a, bool):
            return {None: "none", True: "true", False: "false"}[a]
        if isinstance(a, int):
            text = number_of_batch(a, b)
            if abs(a) > 2**53 and a not in (2**63 - 1, -2**63):
                raise Refusal(f"a whole number {a}, beyond 2^53")
            if text is None:
                raise Refusal(f"a number {a} (batch {BATCHES[0]}) and {b} (batch {BATCHES[1]}) is no multiple of the batch or of its square, "
                              "nor one less")
            return str(text)
        if isinstance(a, float):
            if a == b or a != a:
                return number_text(a, self.given)
            if a.is_integer() and b.is_integer() and (text := number_of_batch(int(a), int(b))) is not None:
                return str(text)
            raise Refusal(f"a number {a} (batch {BATCHES[0]}) and {b} (batch {BATCHES[1]}) depends on the batch")
        if isinstance(a, complex):
            raise Refusal(f"a complex number {a}: torch.view_as_complex makes it of two real ones")
        if isinstance(a, torch.dtype):
            return DTYPE_NAMES[a]
        if isinstance(a, torch.memory_format):
            return str(a).replace("torch.", "")
        return str(a)

    def call_text(self, target, args, kwargs, names):
        """args, kwargs: of both batches."""
        target, args = self.scalars(target, args)
        if target is aten.view.default and "view" in self.loose:
            target = aten.reshape.default
        schema, pos, keys = target._schema, [], []
        if not schema.name.startswith("aten::"):
            raise Refusal(f"op '{schema.name}' isn't one of ATen's")
        for k, a in enumerate(schema.arguments):
            if a.name in LEFT_OUT:
                continue
            if k < len(args[0]):
                pair = args[0][k], args[1][k]
            elif a.name in kwargs[0]:
                pair = kwargs[0][a.name], kwargs[1][a.name]
            else:
                pair = (a.default_value,) * 2
            default = a.has_default_value() and not isinstance(pair[0], torch.fx.Node) and _equal(pair[0], a.default_value) and pair[0] == pair[1]
            if a.kwarg_only:
                if not default:
                    keys.append(f"{a.name}={self.argument(*pair, names)}")
            else:
                pos.append((default, self.argument(*pair, names)))
        while pos and pos[-1][0]:
            pos.pop()
        name = schema.name[6:] + (f".{schema.overload_name}" if schema.overload_name else "")
        text = f"{name}({','.join([t for _, t in pos] + keys)})"
        if any(c in text for c in " '\";|"):
            raise Refusal(f"an argument of {name} can't be written: {text}")
        return text

    @staticmethod
    def scalars(target, args):
        """A number where the schema has a tensor: the overload that takes a number."""
        schema = target._schema
        wrong = [k for k, (a, x) in enumerate(zip(schema.arguments, args[0]))
                 if str(a.type) == "Tensor" and isinstance(x, (int, float)) and not isinstance(x, torch.fx.Node)]
        if not wrong:
            return target, args
        packet = getattr(aten, op_name(target))
        swap = {"Tensor": "Scalar", "Tensor_mode": "Scalar_mode", "self": "ScalarOther", "default": "Scalar"}
        if op_name(target) == "where":
            swap["self"] = {(1,): "ScalarSelf", (2,): "ScalarOther", (1, 2): "Scalar"}[tuple(wrong)]
        overload = swap.get(target._overloadname)
        if overload in packet.overloads():
            return getattr(packet, overload), args
        raise Refusal(f"op '{op_name(target)}' with a number in place of a tensor")

    def line(self, outs, target, args, kwargs, names):
        return f"{','.join(outs)}={self.call_text(target, args, kwargs, names)}"

    # forward and backward

    def needed(self, wanted, stop):
        """The calls that make `wanted`, without those in `stop`, in order."""
        found, stack = set(), [n for n in wanted if n not in stop]
        while stack:
            n = stack.pop()
            if n in found or n in stop:
                continue
            found.add(n)
            stack += n.all_input_nodes
        return [n for n in self.nodes if n in found]

    def cheap(self, node) -> bool:
        """Made again in the backward: views, and what is made of no tensor at all."""
        if node in self.leaves:
            return True
        if is_item(node):
            return is_view_call(node.args[0])
        if is_view_call(node):
            return True
        return node not in self.depends and op_name(node.target) not in RANDOM

    def write_backward(self):
        """Decides what is saved, on the way from the gradients to what the forward knows."""
        available = set(self.leaves) | {self.output} | set(self.inverse)
        saved, stack, order, seen = [], list(self.grads.values()), set(), set()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n in available:
                continue
            if n in self.forward_set and not self.cheap(n):
                saved.append(n)
                continue
            order.add(n)
            stack += n.all_input_nodes
        # The multi-output calls' items are what is saved, not the calls.
        self.saved = [n for n in self.nodes if n in set(saved)]
        names = {n: name for n, name in self.names.items()}
        names[self.output] = "o"
        lines, counter = [], 0
        for k, n in enumerate(self.saved):
            names[n] = f"s{k}"
            if self.val(n).is_complex():  # kept as pairs of real numbers
                names[n] = f"t{counter}"
                lines.append(f"{names[n]}=view_as_complex(s{k})")
                counter += 1
        self.back_order = [n for n in self.nodes if n in order]
        read = {x for m in self.back_order for x in m.all_input_nodes} | set(self.grads.values())
        used_inverse = [n for n in self.nodes if n in self.inverse and n in read and n not in self.leaves and n is not self.output]
        for n in used_inverse:
            current = "o"
            for target, a, b in self.inverse[n]:
                name = f"t{counter}"
                counter += 1
                text = self.call_text(target, (("?", *a), ("?", *b)), ({}, {}), {})
                lines.append(f"{name}={text.replace('?', current, 1)}")
                current = name
            names[n] = current
        results = {}
        for name, n in self.grads.items():
            results.setdefault(n, []).append(name)
        counter = self.write_calls(self.back_order, names, lines, results, counter, False)
        # Gradients that are another's, g itself, or not contiguous.
        self.backward_lines = lines

    def write_forward(self):
        names = {n: name for n, name in self.names.items()}
        results = {n: [f"s{k}"] for k, n in enumerate(self.saved) if not self.val(n).is_complex()}
        results.setdefault(self.output, []).insert(0, "o")
        order = self.needed([self.output, *self.saved], self.leaves)
        counter = self.write_calls(order, names, self.forward_lines, results, 0, True)
        for k, n in enumerate(self.saved):
            if self.val(n).is_complex():
                self.forward_lines += [f"t{counter}=view_as_real({names[n]})", f"s{k}=clone(t{counter},memory_format=contiguous_format)"]
                self.calls[True].append(("clone", n))
                counter += 1

    def write_calls(self, order, names, lines, results, counter, forward):
        """Appends the lines. results: names that a node's value must get, in memory of its own, contiguous."""
        inside = set(order)
        taken = {self.storage(n) for n in self.leaves}
        if not forward:
            taken |= {self.storage(self.output)} | {self.storage(n) for n in self.saved}
            taken |= {self.storage(n) for n in self.inverse}
        copies = []

        def name_of(n):
            nonlocal counter
            for result in results.get(n, []):
                if self.storage(n) not in taken and self.is_whole(n) and result not in self.loose:
                    taken.add(self.storage(n))
                    copies.extend((r, n) for r in results[n] if r != result)
                    return result
            copies.extend((r, n) for r in results.get(n, []))
            counter += 1
            return f"t{counter - 1}"

        for n in [n for n in results if n not in inside]:  # a leaf's own value
            copies.extend((r, n) for r in results[n])
        for n in order:
            if is_item(n) or n.op != "call_function":
                continue
            self.calls[forward].append(n)
            if isinstance(n.meta["val"], (tuple, list)):
                items = {u.args[1]: u for u in n.users if is_item(u) and u in inside}
                outs = []
                for k in range(len(n.meta["val"])):
                    if k in items:
                        names[items[k]] = name_of(items[k])
                        outs.append(names[items[k]])
                    else:
                        outs.append("_")
            else:
                names[n] = name_of(n)
                outs = [names[n]]
            lines.append(self.line(outs, n.target, (n.args, self.twin[n].args), (n.kwargs, self.twin[n].kwargs), names))
        for result, n in copies:
            lines.append(f"{result}=clone({names[n]},memory_format=contiguous_format)")
            self.calls[forward].append(("clone", n))
        return counter


def _equal(a, b):
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return list(a) == list(b)
    return type(a) in (int, float, bool) and type(b) in (int, float, bool) and a == b or a is b or type(a) is type(b) and a == b


# -- costs ---------------------------------------------------------------------------------------------------------------

NO_KERNEL = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}  # memory alone


def tensors_in(x):
    return [t for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor)]


def call_flops(name: str, args, out) -> int:
    """A multiply-add is 2, one of complex numbers 8. Matrix products, convolutions and attention as torch.utils.flop_counter counts
    them (whose backward of convolutions in groups is wrong); all others one per element that they write."""
    numel = [t.numel() for t in tensors_in(out)]
    if name in ("mm", "bmm"):
        return (8 if args[0].is_complex() else 2) * numel[0] * args[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return (8 if args[1].is_complex() else 2) * numel[0] * args[1].shape[-1]
    if name == "convolution":
        x, w, transposed = args[0], args[1], args[6]
        return 2 * (w.numel() // w.shape[0]) * (x.numel() if transposed else numel[0])
    if name == "convolution_backward":
        g, x, w, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        return 2 * (w.numel() // w.shape[0]) * (x.numel() if transposed else g.numel()) * (bool(mask[0]) + bool(mask[1]))
    if name.startswith("_scaled_dot_product") or name.startswith("_flash_attention") or name.startswith("_efficient_attention"):
        back = "backward" in name
        q, k, v = args[1:4] if back else args[:3]
        rows = q.numel() // q.shape[-1]
        forward = 2 * rows * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        return forward * 5 // 2 if back else forward  # five products for two: the scores once more
    return max(numel, default=0)


def has_kernel(target) -> bool:
    """Whether a call does something, other than to see a tensor in another way or to make room for one."""
    return not (is_view(target) or op_name(target) in VIEW_CALLS | NO_KERNEL)


def elements_of(t) -> int:
    """Of an expanded tensor, what is there."""
    return math.prod(n for n, stride in zip(t.shape, t.stride()) if stride != 0)


def product_of(name: str, args) -> str | None:
    """"matmul f32": what a call multiplies in that is a matrix product, a convolution or an attention."""
    kind = ("matmul" if name in ("mm", "bmm", "addmm", "baddbmm") else
            "convolution" if name in ("convolution", "convolution_backward") else
            "attention" if name.startswith(("_scaled_dot_product", "_flash_attention", "_efficient_attention")) else None)
    return f"{kind} {DTYPE_NAMES[args[1].dtype]}" if kind and not args[1].is_complex() else None


def costs(cut: Cut, forward: bool):
    """flops, bytes as [a, b] = a + b·B or [a, b, c] = a + b·B + c·B², and kernels; of the FLOPs those of products, by product_of's
    names."""
    flops, moved, kernels = Amount(), Amount(), 0
    products = {}
    for n in cut.calls[forward]:
        if isinstance(n, tuple):  # a copy
            t, twin = (cut.val(n[1], w) for w in (0, 1))
            flops.add(t.numel(), twin.numel())
            moved.add(2 * t.numel() * t.element_size(), 2 * twin.numel() * t.element_size())
            kernels += 1
            continue
        if not has_kernel(n.target):
            continue
        kernels += 1
        name, seen = op_name(n.target), []
        for node in (n, cut.twin[n]):
            vals = torch.fx.node.map_aggregate((node.args, node.kwargs),
                                               lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x)
            seen.append((vals[0], node.meta["val"], tensors_in(vals) + tensors_in(node.meta["val"])))
        of_call = [call_flops(name, args, out) for args, out, _ in seen]
        flops.add(*of_call)
        for t, twin in zip(seen[0][2], seen[1][2]):  # operands that are read and results that are written
            moved.add(elements_of(t) * t.element_size(), elements_of(twin) * t.element_size())
        if (product := product_of(name, seen[0][0])) is not None:
            products.setdefault(product, Amount()).add(*of_call)
    return [flops.text(), moved.text(), kernels], {p: amount.text() for p, amount in products.items()}


def number_of_batch(a: int, b: int):
    """An integer of both exports as a call has it: also one less than a multiple of the batch ("B-1", of an unbiased variance)."""
    text = size_text(a, b)
    if text is None and str(less := size_text(a + 1, b + 1)).count("B") == 1:
        text = f"{less}-1"
    return text


class Amount:
    """A sum that grows with the batch: of what is independent of it, and of multiples of it and of its square."""

    def __init__(self):
        self.factors = [0, 0, 0]

    def add(self, first: int, second: int):
        """A summand with either batch: a multiple of a power of it."""
        for power in (0, 1, 2):
            factor, rest = divmod(first, BATCHES[0] ** power)
            if not rest and factor * BATCHES[1] ** power == second:
                self.factors[power] += factor
                return
        raise Refusal("more than two samples are compared at once")

    def text(self) -> list:
        return self.factors if self.factors[2] else self.factors[:2]


# -- the body ------------------------------------------------------------------------------------------------------------

def make_body(group: Group, needs: list, runs: bool) -> tuple[dict, list]:
    """The body as the file has it, and which inputs and parameters get a gradient. runs: whether it is small enough to be run.
    `rows` is the caller's to find out (rows_alone)."""
    try:
        graphs = [joint(group, which, needs) for which in (0, 1)]
    except RuntimeError as error:
        if isinstance(error, DynamicOutputShapeException | DataDependentOutputException):  # it says no more than the op
            raise Refusal(f"op '{op_name(error.func)}' asks for a tensor's values (an index by a mask does: take its indices when the "
                          "module is made)") from error
        raise Refusal(first_line(error)) from error
    cut = Cut(group, graphs, needs)
    if runs and (loose := loose_results(cut.text())):
        cut = Cut(group, graphs, needs, loose)
    (fw, forward_products), (bw, backward_products) = costs(cut, True), costs(cut, False)
    shapes = tuple(tuple(cut.val(cut.output, w).shape) for w in (0, 1))
    group.output.shapes = shapes  # an export's shape may be wrong (the states of lstm in torch 2.11)
    text = {**cut.text(), "flops": [fw[0], bw[0]], "bytes": [fw[1], bw[1]], "kernels": [fw[2], bw[2]], "rows": None}
    if products := sorted({**forward_products, **backward_products}):
        text["products"] = {p: [forward_products.get(p, [0, 0]), backward_products.get(p, [0, 0])] for p in products}
    if any(own_function.is_own(s.target) for s in group.steps):
        text["own_backward"] = True
    return text, sorted(cut.grads)
