"""The joint graph of a node, cut into the lines of its forward and of its backward.

    cut = Cut(group, graphs, needs)      # of both batches
    cut.text()                           # what the file has of it, without its costs
"""

import torch
from paragauge_import.body.joint import ancestors, is_item, is_view_call
from paragauge_import.body.run_step import LEFT_OUT
from paragauge_import.body.trial import is_whole
from paragauge_import.export.exported import BATCHES
from paragauge_import.graph.step import DTYPE_NAMES, RANDOM, dtype_name, op_name, size_text, spec_text
from paragauge_import.refusal import Refusal, place_of
from torch.utils._pytree import tree_flatten

aten = torch.ops.aten


def number_text(x: float, given: set) -> str:
    """As Python writes it; where a kernel rounded to f32 what somebody wrote with at most six digits (eps=1e-05), as that was.
    given: the module's own numbers, which are as they are."""
    short = f"{x:.6g}"
    if x not in given and x == x and abs(x) < 3e38 and x != float(short) and x == torch.tensor(float(short), dtype=torch.float32).item():
        return repr(float(short))
    return repr(x)


def number_of_batch(a: int, b: int):
    """An integer of both exports as a call has it: also one less than a multiple of the batch ("B-1", of an unbiased variance)."""
    text = size_text(a, b)
    if text is None and str(less := size_text(a + 1, b + 1)).count("B") == 1:
        text = f"{less}-1"
    return text


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
            return dtype_name(a)
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
