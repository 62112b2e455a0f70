"""The forward and the backward of a node, traced together.

    graph = joint(group, 0, needs)       # with the first batch: a torch.fx.Graph, in which nothing is written in place
"""

import torch
from paragauge_import.body.group import fake, fake_tensors
from paragauge_import.graph.step import functional_of, is_view, op_name
from paragauge_import.refusal import Refusal
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


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


def is_view_call(node) -> bool:
    return hasattr(node.target, "_schema") and is_view(node.target)


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
