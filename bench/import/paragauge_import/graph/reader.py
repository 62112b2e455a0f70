"""A module's exported graph as steps without side effects, with what depends on no input and no parameter computed.

    graph = read_graph(module, inputs)            # inputs: a list of spec.Input
    graph.steps[-1].outputs[0] is graph.output

torch.export (non-strict, train mode) takes the module with a batch of 2 and one of 3. The two graphs must be alike; an
integer that differs between them must be the same multiple of the batch in both, else the model is refused. In-place
operations become functional ones: a tensor that is changed through a view gets a new value, from which later readers of
any of its views take theirs.
"""

import operator

import torch
from paragauge_import import play
from paragauge_import.export import own_function, returned
from paragauge_import.export.exported import BATCHES, DRAWS, export_once, export_twice, shapes_of
from paragauge_import.export.known_values import OF_BATCH_NORM
from paragauge_import.graph.step import (MOST_OPERANDS, RANDOM, UNFIXED, Graph, Step, Value, functional_of, is_view, is_write, op_name, shape_text,
                                         size_text)
from paragauge_import.modes import InF64
from paragauge_import.refusal import Refusal, place_of
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_flatten, tree_map

LARGEST_TABLE = 65536  # elements of a constant that is written value by value: about a megabyte
aten = torch.ops.aten

# Operations of which nothing depends.
ASSERTS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size", "sym_constrain_range"}
# Their values aren't set: never a constant.
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
# They read the shape and the dtype of a tensor, not its values.
LIKE = {"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"} | EMPTY
# Views whose elements lie in the order of what they show.
ORDERED = {"view", "_unsafe_view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "alias", "expand"}
SAME = {"contiguous", "clone", "alias", "lift_fresh", "lift_fresh_copy", "lift"}
DATA_DEPENDENT = {"item", "_local_scalar_dense", "nonzero", "nonzero_numpy", "masked_select", "unique", "_unique2", "unique_dim",
                  "unique_consecutive", "is_nonzero", "equal", "argwhere"}
# What does without.
WITHOUT = {"index": " (torch.where and masked_fill do without)",
           "where": " (all rows with weights, or one_hot, in the place of chosen ones)",
           "nonzero": " (all rows with weights, or one_hot, in the place of chosen ones)"}


def written_text(names: list) -> str:
    """A note on what a step writes, other than a batch norm's statistics."""
    is_one = len(names) == 1
    return (f"{len(names)} {'buffer is' if is_one else 'buffers are'} written: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}; "
            f"here every step begins with {'its' if is_one else 'their'} first values")


class Storage:
    """What an in-place operation changes: its value now. `of`: the parameter or buffer that it is."""

    def __init__(self, value, of=""):
        self.value, self.version, self.of = value, 0, of


class Ref:
    """A tensor of the module: a storage, or a view of another ref by a step whose first operand that is. `part`: which of
    the pieces of a split it is, and the split; `view` is then the piece alone. `no_grad`: where the view was made."""

    def __init__(self, storage, parent=None, view=None, part=None, no_grad=False):
        self.storage, self.parent, self.view, self.part, self.cached = storage, parent, view, part, (-1, None)
        self.no_grad = no_grad


def other_with(module, inputs, graph, batch: int) -> str | None:
    """Where an export with so many samples does something else than the graph says: its calls, a shape, or a number."""
    def expected(a, b):
        if isinstance(a, float) or isinstance(b, float):
            return a if a == b else None
        return None if (text := size_text(a, b)) is None else play.count(text, batch)
    found = shapes_of(export_once(module, inputs, batch))
    for here, small, larger in zip(found, *graph.shapes):
        differs = any(len(h) != len(a) or any(expected(x, y) not in (None, n) for x, y, n in zip(a, b, h))
                      for h, a, b in zip(here[1:3], small[1:3], larger[1:3]))
        if here[0] != small[0] or differs:
            return place_of(here[-1])
    return None if len(found) == len(graph.shapes[0]) else place_of(found[-1][-1])


class Reader:
    def __init__(self, module, inputs, dead=()):
        self.module, self.inputs, self.dead = module, inputs, dead
        self.steps, self.refusals, self.notes, self.data_of_constants = [], [], [], {}
        self.expanded, self.tables, self.splits = {}, set(), {}
        self.written = set()  # buffers, other than a batch norm's
        self.parameters = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad} if module is not None else set()
        self.no_grad = self.no_autocast = False
        # The places of casts that do nothing in float32, and of constants that have the dtype of a tensor.
        self.same_casts, self.like_constants = [], []

    # -- what an operation becomes -------------------------------------------------------------------------------

    def refuse(self, text, node):
        entry = f"{text} at {place_of(node)}"
        if entry not in self.refusals:
            self.refusals.append(entry)

    def meta(self, target, args, kwargs):
        """The results' shapes and dtypes, of a call that isn't in the exported graph."""
        def tensor(which):
            return lambda v: (torch.empty(v.shapes[which], dtype=v.dtype, device="meta") if isinstance(v, Value) else v)
        return tuple(target(*tree_map(tensor(w), args[w]), **tree_map(tensor(w), kwargs[w])) for w in (0, 1))

    def emit(self, target, args, kwargs, place, results=None, **flags) -> list:
        """A new step's outputs. args, kwargs: with either batch. results: tensors of the results' shapes, else computed."""
        step = Step(target, args, kwargs, place, no_grad=self.no_grad, no_autocast=self.no_autocast, **flags)
        results = results or self.meta(target, args, kwargs)
        lists = [list(r) if isinstance(r, (tuple, list)) else [r] for r in results]
        for i, (a, b) in enumerate(zip(*lists)):
            if a is None:
                step.outputs.append(None)
                continue
            shapes = (tuple(a.shape), tuple(b.shape))
            known = all(None not in shape_text(v.shapes) for v in step.reads())  # else that was refused already
            for d, text in enumerate(shape_text(shapes)):
                if text is None and known:
                    self.refuse(f"size {shapes[0][d]} (batch {BATCHES[0]}) and {shapes[1][d]} (batch {BATCHES[1]}) is no "
                                f"multiple of the batch: {step.name}", place)
            step.outputs.append(Value("step", shapes, a.dtype, step=step, index=i))
        self.fold(step)
        first = step.outputs[0]
        is_constant = first is not None and first.data is not None
        ends_complex = first is not None and not first.dtype.is_complex and any(v.dtype.is_complex for v in step.reads())
        step.virtual = step.virtual or is_constant or is_view(target) and not ends_complex  # where complex numbers end a node may
        self.steps.append(step)
        return step.outputs

    def fold(self, step):
        """Computes the values of what depends on no input and no parameter."""
        if step.name in RANDOM or is_view(step.target) and step.reads()[0].data is None:
            return
        like = step.name in LIKE
        if not like and any(v.data is None for v in step.reads()):
            return
        for which in (0, 1):
            def tensor(v, which=which):
                if not isinstance(v, Value):
                    return torch.device("cpu") if isinstance(v, torch.device) else v
                return v.data[which] if v.data else torch.empty(v.shapes[which], dtype=v.dtype)
            with InF64(), torch.no_grad():
                result = step.target(*tree_map(tensor, step.args[which]), **tree_map(tensor, step.kwargs[which]))
            for v, r in zip(step.outputs, result if isinstance(result, (tuple, list)) else [result]):
                if v is not None:
                    v.data = (*(v.data or ()), r)

    def operand(self, v: Value) -> Value:
        """The value as a step reads it: a constant as a table where one does for every batch, with rows that are alike
        written once; else as the steps that make it."""
        if v.kind == "constant" and v.dtype.is_complex:
            return self.complex_table(v.data[0], None)
        if v.kind != "step" or v.data is None or v.step.name in EMPTY or v in self.tables:
            return v
        if v in self.expanded:
            return self.expanded[v]
        a, b = v.data
        if a.layout != torch.strided:
            self.refuse("a sparse constant isn't known here (make it dense)", v.step.place)
            return v
        for d in range(a.dim()):
            if a.shape[d] != b.shape[d]:
                if not bool((a == a.narrow(d, 0, 1)).all()):
                    return v  # its values run with the batch
                a, b = a.narrow(d, 0, 1), b.narrow(d, 0, 1)
        if a.numel() > LARGEST_TABLE and v.step.reads() and a.unique_consecutive().numel() > a.numel() // 2:
            v.step.virtual = False  # made once in every step, as the module does, and not written
            return v
        if not torch.equal(a, b) and not bool(((a == b) | (a != a) & (b != b)).all()):
            return v
        table = self.complex_table(a, v.step.place) if a.is_complex() else self.constant(a, v.dtype)
        whole = v.shapes[0] == v.shapes[1]
        self.expanded[v] = table if whole else self.emit(
            aten.expand.default, ((table, list(v.shapes[0])), (table, list(v.shapes[1]))), ({}, {}), v.step.place,
            virtual=True)[0]
        self.tables.add(self.expanded[v])
        return self.expanded[v]

    def complex_table(self, data, place) -> Value:
        """A table of pairs of real numbers, seen as complex ones."""
        pairs = self.constant(torch.view_as_real(data), torch.float32)
        seen = Step(aten.view_as_complex.default, ((pairs,),) * 2, ({}, {}), place, virtual=True)
        seen.outputs = [Value("step", (tuple(data.shape),) * 2, torch.complex64, step=seen)]
        self.steps.append(seen)
        self.tables.add(seen.outputs[0])
        return seen.outputs[0]

    def constant(self, data, dtype) -> Value:
        as_numpy = data.float() if data.dtype == torch.bfloat16 else data  # which NumPy hasn't
        key = (tuple(data.shape), dtype, as_numpy.contiguous().numpy().tobytes())
        if key not in self.data_of_constants:
            self.data_of_constants[key] = Value("constant", (tuple(data.shape),) * 2, dtype, data=(data, data))
        return self.data_of_constants[key]

    # -- storages and views --------------------------------------------------------------------------------------

    def read(self, ref) -> Value:
        if ref.parent is None:
            return ref.storage.value
        if ref.cached[0] != ref.storage.version:
            base = self.read(ref.parent)
            here, self.no_grad = self.no_grad, ref.no_grad  # it may be read elsewhere than it was made
            if ref.part:
                index, target, args = ref.part
                key = (base, target, str(args))
                if key not in self.splits:
                    self.splits[key] = self.emit(target, tuple((base, *a) for a in args), ({}, {}), ref.view[3])
                fresh = self.splits[key][index]
            else:
                target, args, kwargs, place = ref.view
                fresh, = self.emit(target, tuple((base, *a) for a in args), kwargs, place)
            self.no_grad = here
            ref.cached = (ref.storage.version, fresh)
        return ref.cached[1]

    def write(self, ref, value, place):
        if ref.parent is None:
            if ref.storage.of in self.parameters:
                self.refuse(f"a write into the parameter '{ref.storage.of}' (change what is read of it instead)", place)
            elif ref.storage.of and ref.storage.of.rpartition(".")[2] not in OF_BATCH_NORM:
                self.written.add(ref.storage.of)
            was = ref.storage.value
            if self.no_grad and value.dtype.is_floating_point and has_gradient(was):
                value = self.unseen(was, value, place)
            ref.storage.value = value
            ref.storage.version += 1
            return
        target, args, kwargs, _ = ref.view
        base, name = self.read(ref.parent), op_name(target)
        if name in ("slice", "select") and base.dtype.is_complex:  # a scatter of complex numbers has no gradient
            back = self.replaced(base, value, name, args, place)
            if back is None:
                self.refuse(f"a write through {name} of complex numbers", place)
                return
        elif name in ("slice", "select"):
            scatter = aten.slice_scatter.default if name == "slice" else aten.select_scatter.default
            back = self.emit(scatter, tuple((base, value, *a) for a in args), kwargs, place)
        elif name == "detach" and not base.dtype.is_floating_point:
            back = [value]
        elif name == "detach":
            back = [self.unseen(base, value, place)]
        elif name == "diagonal":
            back = self.emit(aten.diagonal_scatter.default, tuple((base, value, *a) for a in args), kwargs, place)
        elif name in ("movedim", "moveaxis"):
            back = self.emit(target, tuple((value, a[1], a[0]) for a in args), kwargs, place)
        elif name == "numpy_T":
            back = self.emit(aten.permute.default, ((value, [*range(len(base.shapes[0]))][::-1]),) * 2, ({}, {}), place)
        elif name in ("transpose", "t", "swapaxes", "swapdims", "mT"):
            back = self.emit(target, tuple((value, *a) for a in args), kwargs, place)
        elif name == "permute":
            order = [sorted(range(len(a[0])), key=lambda i, a=a: a[0][i] % len(a[0])) for a in args]
            back = self.emit(target, tuple((value, o) for o in order), kwargs, place)
        elif len(value.shapes[0]) == 0 or name in ORDERED and _elements(value) == _elements(base):
            back = self.emit(aten.reshape.default, tuple((value, list(s)) for s in base.shapes), ({}, {}), place)
        else:
            self.refuse(f"a write through {name}", place)
            return
        self.write(ref.parent, back[0], place)
        ref.cached = (ref.storage.version, value)

    def unseen(self, base, value, place) -> Value:
        """The value where the gradient goes on to what was there before."""
        before, self.no_grad = self.no_grad, False
        change, = self.emit(aten.sub.Tensor, ((value, base),) * 2, ({}, {}), place)
        fixed, = self.emit(aten.detach.default, ((change,),) * 2, ({}, {}), place)
        seen, = self.emit(aten.add.Tensor, ((base, fixed),) * 2, ({}, {}), place)
        self.no_grad = before
        return seen

    def replaced(self, base, value, name, args, place) -> list | None:
        """The base with a slice that is something else; None: not of every second one, nor of none."""
        if name == "select":
            value, = self.emit(aten.unsqueeze.default, tuple((value, a[0]) for a in args), ({}, {}), place)
            args = tuple((a[0], a[1] % s[a[0]], a[1] % s[a[0]] + 1) for s, a in zip(base.shapes, args))
        bounds = [torch.arange(s[a[0]])[a[1]:a[2]] for s, a in zip(base.shapes, args)]
        if any(len(a) > 3 and a[3] != 1 for a in args) or any(len(b) == 0 for b in bounds):
            return None
        ends = [(int(b[0]), int(b[-1]) + 1) for b in bounds]
        before, after = (tuple((base, a[0], *part) for a, part in zip(args, parts)) for parts in (
            [(0, e[0]) for e in ends], [(e[1], s[a[0]]) for e, s, a in zip(ends, base.shapes, args)]))
        parts = [self.emit(aten.slice.Tensor, of, ({}, {}), place)[0] for of in (before, after) if of[0][2] != of[0][3]]
        parts.insert(1 if before[0][2] != before[0][3] else 0, value)
        return self.emit(aten.cat.default, tuple((parts, a[0]) for a in args), ({}, {}), place)

    # -- the graph -----------------------------------------------------------------------------------------------

    def walk(self, graphs, modules, envs):
        """The nodes of both graphs side by side; the refs of the output."""
        nodes = [[n for n in g.nodes if n.op != "get_attr"] for g in graphs]
        why = "a choice by Python's or NumPy's random numbers" if DRAWS in self.notes else "a loop over samples"
        for a, b in zip(*nodes):
            if str(a.target) != str(b.target) and a.op == b.op == "call_function":
                raise Refusal(f"the graph depends on the batch size: {len(nodes[0])} and {len(nodes[1])} nodes, first "
                              f"difference {op_name(a.target)} and {op_name(b.target)} at {place_of(a)}: {why}?")
        if len(nodes[0]) != len(nodes[1]):
            last = nodes[0][min(map(len, nodes)) - 2]
            raise Refusal(f"the graph depends on the batch size: {len(nodes[0])} and {len(nodes[1])} nodes, which differ "
                          f"after {op_name(last.target)} at {place_of(last)}: {why}?")
        env = envs
        for a, b in zip(*nodes):
            if a.op == "output":
                outputs = a.args[0] if isinstance(a.args[0], (tuple, list)) else [a.args[0]]
                return [env[x] if isinstance(x, torch.fx.Node) else x for x in outputs]
            if a.op == "call_function":
                env[a] = self.call(a, b, modules, env)

    def call(self, a, b, modules, env):
        name = op_name(a.target)
        if a.target is operator.getitem:
            return env[a.args[0]][a.args[1]] if env[a.args[0]] is not None else None
        if name in ASSERTS or getattr(a.target, "__module__", "") in ("_operator", "math"):  # of sizes that depend on the data
            return None
        if name == "wrap_with_set_grad_enabled" or name == "wrap_with_autocast":
            return self.region(a, b, modules, env)
        if getattr(a.target, "__module__", "").startswith("torch._functorch"):
            raise Refusal(f"torch.func (vmap, functional_call with it, grad) stays as it is in an export, and isn't known here, at {place_of(a)}")
        if not isinstance(a.target, torch._ops.OpOverload) or a.target.namespace != "aten" and not own_function.is_own(a.target):
            self.refuse(f"op '{a.target}' isn't one of ATen's", a)
            return self.stand_in(a, b)
        if name in UNFIXED:
            self.refuse(f"op '{name}' draws what can't be compared with PyTorch's", a)
            return self.stand_in(a, b)
        if name in DATA_DEPENDENT:
            self.refuse(f"op '{name}' depends on the data", a)
            return self.stand_in(a, b)
        found = [t for t in tree_flatten(a.meta.get("val"))[0] if isinstance(t, torch.Tensor)]
        if any(not isinstance(s, int) for t in found for s in t.shape):
            if not self.of_refused(a, env):
                self.refuse(f"op '{name}' gives a size that depends on the data{WITHOUT.get(name, '')}", a)
            return self.stand_in(a, b)
        if not found or any(env.get(x, 0) is None for x in a.all_input_nodes):
            return self.stand_in(a, b)

        # The second graph's nodes stand for the first's.
        twins = dict(zip(b.all_input_nodes, a.all_input_nodes)) | {x: x for x in a.all_input_nodes}

        def refs(x):
            return map_aggregate(x, lambda y: env[twins[y]] if isinstance(y, torch.fx.Node) else y)

        return self.operation(a.target, (refs(a.args), refs(b.args)), (dict(refs(a.kwargs)), dict(refs(b.kwargs))),
                              (a.meta["val"], b.meta["val"]), a)

    @staticmethod
    def of_refused(node, env) -> bool:
        refs = [env.get(x) for x in node.all_input_nodes]
        return any(isinstance(r, Ref) and r.storage.value.name == "refused" for r in refs)

    def stand_in(self, a, b):
        """After a refusal: so that the rest is looked at, too."""
        values = [x if isinstance(x, (tuple, list)) else [x] for x in (a.meta.get("val"), b.meta.get("val"))]
        refs = []
        for x, y in zip(*values):
            if not isinstance(x, torch.Tensor):
                refs.append(None)
                continue
            shapes = tuple(tuple(s if isinstance(s, int) else 1 for s in t.shape) for t in (x, y))
            refs.append(Ref(Storage(Value("input", shapes, x.dtype, name="refused"))))
        return refs if isinstance(a.meta.get("val"), (tuple, list)) else refs[0]

    def region(self, a, b, modules, env):
        """A part of the graph under no_grad or autocast, in place."""
        name = op_name(a.target)
        before = self.no_grad, self.no_autocast
        at = next(i for i, x in enumerate(a.args) if isinstance(x, torch.fx.Node) and x.op == "get_attr")
        subs = [getattr(m, n.args[at].target) for m, n in zip(modules, (a, b))]
        if name == "wrap_with_set_grad_enabled":
            self.no_grad = self.no_grad or not a.args[0]
        else:  # exported.py: cache_enabled says whether autocast was on
            self.no_autocast = not a.args[3]
        inner = {}
        for placeholder, x in zip([n for n in subs[0].graph.nodes if n.op == "placeholder"], a.args[at + 1:]):
            inner[placeholder] = env[x]
        outputs = self.walk([s.graph for s in subs], subs, inner)
        self.no_grad, self.no_autocast = before
        return outputs

    def operation(self, target, args, kwargs, results, place):
        name = op_name(target)
        if is_write(target):
            return self.in_place(target, args, kwargs, results, place)
        first = args[0][0] if args[0] and isinstance(args[0][0], Ref) else None
        single = results[0] if isinstance(results[0], torch.Tensor) else None
        if first is not None and single is not None:
            value = self.read(first)
            same = value.dtype == single.dtype and value.shapes == (tuple(single.shape), tuple(results[1].shape))
            if name in SAME and value.dtype == single.dtype:
                return self.copy_of(first) if name in ("clone", "lift_fresh_copy") or is_copied(place) else first
            if name in ("to", "_to_copy", "type_as") and value.dtype == single.dtype:
                if single.is_floating_point():
                    self.same_casts.append(place)
                return first
            if name in ("expand", "expand_as", "slice", "view", "reshape", "squeeze", "view_as", "flatten", "_unsafe_view") and same:
                return first
            if name in ("dropout", "feature_dropout", "alpha_dropout") and (args[0][1] == 0 or not args[0][2]):
                return first
        if first is not None and is_view(target) and name not in ("to", "_to_copy", "type_as"):
            if isinstance(results[0], (tuple, list)):
                return self.parts(target, args, kwargs, results, place)
            rest = tuple(tuple(tree_map(self.plain, a)) for a in (args[0][1:], args[1][1:]))
            if all(not isinstance(x, Value) for x in tree_flatten(rest)[0]):
                seen = Ref(first.storage, first, (target, rest, kwargs, place), no_grad=self.no_grad)
                return self.copy_of(seen) if is_copied(place) else seen
            if name in ("expand_as", "view_as", "reshape_as"):
                plain = {"expand_as": aten.expand.default}.get(name, aten.reshape.default)
                return Ref(first.storage, first, (plain, tuple(([*r.shape],) for r in results), ({}, {}), place), no_grad=self.no_grad)
        args, kwargs = tree_map(self.plain, args), tree_map(self.plain, kwargs)
        if name == "cat" and len(args[0][0]) > MOST_OPERANDS:  # dense blocks, embeddings of many fields
            parts = [self.emit(target, tuple((a[0][k:k + MOST_OPERANDS], *a[1:]) for a in args), kwargs, place)[0]
                     for k in range(0, len(args[0][0]), MOST_OPERANDS)]
            args = tuple((parts, *a[1:]) for a in args)
            if (note := f"what is concatenated of more than {MOST_OPERANDS} tensors is so in two goes, and copied once more") not in self.notes:
                self.notes.append(note)
        if name == "embedding_bag":
            return self.embedding_bag(args, results, place)
        if name == "floor" and (p := self.probability(args[0][0])) is not None:
            return self.wrap(self.bernoulli(p, results, place), results)
        if name in ("empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "empty"):
            typed = kwargs[0].get("dtype") is not None
            like = self.read(first) if first is not None and not typed else None
            target, args = aten.empty.memory_format, tuple(([*r.shape],) for r in results)
            kwargs = ({"dtype": results[0].dtype},) * 2
            return self.wrap(self.emit(target, args, kwargs, place, results, virtual=True, like=like, typed=typed), results)
        if name in LIKE and first is not None and single.is_floating_point() and kwargs[0].get("dtype") is None:
            self.like_constants.append(place)
        if name == "batch_norm" and args[0][5]:
            tracked = args[0][3] is not None
            args = tuple([*a[:3], None, None, *a[5:]] for a in args)
            return self.wrap(self.emit(target, args, kwargs, place, results, has_buffers=tracked), results)
        return self.wrap(self.emit(target, args, kwargs, place, results), results)

    def embedding_bag(self, args, results, place):
        """Bags of one size (2-D indices), in two ops: what the one op keeps for its backward has sizes that only a run tells."""
        weight, indices, offsets, by_frequency, mode, sparse, weights, last, padding = (*args[0], *[None] * (9 - len(args[0])))
        bags = tuple(s[0] for s in offsets.shapes)
        size = indices.shapes[0][0] // bags[0]
        if offsets.data is None or last or padding is not None or any(
                not torch.equal(d, torch.arange(0, n * size, size)) for d, n in zip(offsets.data, bags)):
            self.refuse("op 'embedding_bag' with bags of several sizes or with padding_idx", place)
            shapes = tuple(tuple(r[0].shape) for r in results)
            return [Ref(Storage(Value("input", shapes, weight.dtype, name="refused"))), None, None, None]
        reshape = aten.reshape.default
        table, = self.emit(reshape, tuple((indices, [n, size]) for n in bags), ({}, {}), place)
        rows, = self.emit(aten.embedding.default, ((weight, table, -1, bool(by_frequency), bool(sparse)),) * 2, ({}, {}), place)
        if weights is not None:
            factors, = self.emit(reshape, tuple((weights, [n, size, 1]) for n in bags), ({}, {}), place)
            rows, = self.emit(aten.mul.Tensor, ((rows, factors),) * 2, ({}, {}), place)
        combine = (aten.sum.dim_IntList, aten.mean.dim, aten.max.dim)[mode or 0]
        made = self.emit(combine, ((rows, 1 if mode == 2 else [1]),) * 2, ({}, {}), place)
        return [Ref(Storage(made[0])), None, None, None]

    @staticmethod
    def probability(v):
        """Where a value is a uniform draw plus a number: the probability that its floor is one."""
        step = v.step
        if step is None or step.name != "add" or len(step.args[0]) < 2:
            return None
        draw, p = step.args[0][:2]
        uniform = isinstance(draw, Value) and draw.step is not None and draw.step.name in ("rand", "rand_like")
        return p if uniform and isinstance(p, float) and 0 <= p <= 1 else None

    def bernoulli(self, p, results, place):
        dtype = {"dtype": results[0].dtype}
        shape, = self.emit(aten.empty.memory_format, tuple(([*r.shape],) for r in results), (dtype, dtype), place, results, virtual=True)
        return self.emit(aten.bernoulli.p, ((shape, p),) * 2, ({}, {}), place, results)

    def plain(self, x):
        return self.operand(self.read(x)) if isinstance(x, Ref) else x

    def copy_of(self, ref):
        return Ref(Storage(self.read(ref)))

    def wrap(self, values, results):
        refs = [Ref(Storage(v)) if v is not None else None for v in values]
        return refs if isinstance(results[0], (tuple, list)) else refs[0]

    def parts(self, target, args, kwargs, results, place):
        """The results of split, chunk, unbind, …: one split or unbind, of which each is a part."""
        first = args[0][0]
        given = dict(zip([a.name for a in target._schema.arguments], args[0])) | kwargs[0]
        rank = len(self.read(first).shapes[0])
        dim = given.get("dim", given.get("axis", 0)) % rank
        refs, start = [], [0, 0]
        sizes = tuple([r.shape[dim] if r.dim() == rank else 1 for r in part] for part in results)
        for i, pair in enumerate(zip(*results)):
            if pair[0].dim() < rank:
                view, split = (aten.select.int, ((dim, i),) * 2), (aten.unbind.int, ((dim,),) * 2)
            else:
                ends = [s + r.shape[dim] for s, r in zip(start, pair)]
                view = aten.slice.Tensor, tuple((dim, s, e) for s, e in zip(start, ends))
                split = aten.split_with_sizes.default, tuple((s, dim) for s in sizes)
                start = ends
            refs.append(Ref(first.storage, first, (*view, ({}, {}), place), (i, *split), self.no_grad))
        return refs

    def in_place(self, target, args, kwargs, results, place):
        name = op_name(target)
        ref = kwargs[0]["out"] if "out" in kwargs[0] else args[0][0]
        kwargs = tuple({k: v for k, v in k.items() if k != "out"} for k in kwargs)
        overload = functional_of(target)
        if name == "copy_":
            source = args[0][1]
            value = self.plain(source) if isinstance(source, Ref) else source
            base = self.read(ref)
            if value.dtype != base.dtype:
                value, = self.emit(aten._to_copy.default, ((value,),) * 2, ({"dtype": base.dtype},) * 2, place)
            if value.shapes != base.shapes:
                value, = self.emit(aten.expand.default, tuple((value, list(s)) for s in base.shapes), ({}, {}), place)
            self.write(ref, value, place)
            return ref
        if name == "floor_" and (p := self.probability(self.read(ref))) is not None:
            self.write(ref, self.bernoulli(p, results, place)[0], place)
            return ref
        if name == "zero_":
            overload, args = aten.fill.Scalar, tuple((a[0], 0) for a in args)
        if name == "bernoulli_" and target._overloadname == "float":
            overload = aten.bernoulli.p
            args = tuple((a[0], a[1] if len(a) > 1 else k.get("p", 0.5)) for a, k in zip(args, kwargs))
            kwargs = ({}, {})
        if name == "normal_":
            overload = aten.normal_functional.default
        if overload is None:
            self.refuse(f"op '{name}' writes in place and has no functional twin", place)
            return ref
        if name in ("dropout_", "feature_dropout_") and (args[0][1] == 0 or not args[0][2]):
            return ref
        plain = tree_map(self.plain, args), tree_map(self.plain, kwargs)
        value = self.emit(overload, *plain, place, results, inplace=True)[0]
        self.write(ref, value, place)
        return ref


def has_gradient(value) -> bool:
    """Whether a trained parameter has a part in it."""
    seen, ahead = set(), [value]
    while ahead:
        v = ahead.pop()
        if v.kind == "parameter":
            return True
        if v.step is not None and v.data is None and v.step not in seen and not v.step.no_grad and v.step.name != "detach":
            seen.add(v.step)
            ahead += v.step.reads()
    return False


def is_copied(place) -> bool:
    """Whether contiguous() or reshape() had to copy what it was given."""
    name, given, made = op_name(place.target), place.args[0].meta["val"] if place.args and isinstance(place.args[0], torch.fx.Node) else None, place.meta["val"]
    if name == "contiguous":
        return not given.is_contiguous()
    if name not in ("reshape", "flatten", "reshape_as", "unflatten", "ravel"):
        return False
    try:
        torch.empty_strided(given.shape, given.stride(), device="meta").view(made.shape)
    except (RuntimeError, ValueError):
        return True
    return False


def _elements(value):
    return torch.Size(value.shapes[0]).numel()


def read_graph(module, inputs, dead=(), loss=None) -> Graph:
    """The module's graph. `dead`: parameters that are known to get no gradient: they count as frozen. Of several
    tensors that it returns the loss takes one: mean_loss a number, others what isn't one."""
    reader = Reader(module, inputs, dead)
    return _walk(reader, export_twice(module, inputs, reader.notes), loss)


def _walk(reader, exported, loss) -> Graph:
    module, inputs, signature = reader.module, reader.inputs, exported[0].graph_signature
    first_name, canonical = {}, {}  # a shared parameter has one name, the first
    for name, p in module.named_parameters(remove_duplicate=False):
        canonical[name] = first_name.setdefault(id(p), name)
    for name, p in module.named_parameters():
        if p.is_complex():
            raise Refusal(f"parameter '{name}' is complex: keep its real and imaginary parts, f32[…,2], and read them by torch.view_as_complex")
    trained = {name for name, p in module.named_parameters() if p.requires_grad and name not in reader.dead}
    also = {}
    for name, first in canonical.items():
        if name != first:
            also.setdefault(first, []).append(name)
    env, values, input_values, parameters = {}, {}, [], {}
    placeholders = [[n for n in e.graph.nodes if n.op == "placeholder"] for e in exported]
    users = [n for n in placeholders[0] if n.name in signature.user_inputs and isinstance(n.meta.get("val"), torch.Tensor)]
    named = {n.name: n for n in users}
    rest = iter([n for n in users if n.name not in {x.name.lower() for x in inputs}])  # as the export writes them
    order = [named[x.name.lower()] if x.name.lower() in named else next(rest) for x in inputs]
    for i, (x, n) in enumerate(zip(inputs, order)):
        twin = placeholders[1][placeholders[0].index(n)]
        shapes = tuple(tuple(t.meta["val"].shape) for t in (n, twin))
        v = Value("input", shapes, n.meta["val"].dtype, name="input" if i == 0 else x.name if x.name not in ("", "input") else f"input_{i + 1}")
        input_values.append(v)
        env[n] = Ref(Storage(v))
    for n in placeholders[0]:
        if n in env:
            continue
        val = n.meta.get("val")
        if not isinstance(val, torch.Tensor):
            env[n] = None
            continue
        shapes = (tuple(val.shape),) * 2
        if full := canonical.get(signature.inputs_to_parameters.get(n.name)):
            if full not in values:
                values[full] = Value("parameter" if full in trained else "frozen", shapes, val.dtype, name=full)
                parameters[full] = values[full]
            env[n] = Ref(Storage(values[full], full))
            continue
        full = signature.inputs_to_buffers.get(n.name) or signature.inputs_to_lifted_tensor_constants.get(n.name)
        data, twin = ((e.state_dict if full in e.state_dict else e.constants)[full].detach() for e in exported)
        if data.shape != twin.shape or data.layout == torch.strided and full not in exported[0].state_dict and not bool(
                ((data == twin) | (data != data) & (twin != twin)).all()):
            raise Refusal(f"a constant tensor of {list(data.shape)} depends on the batch size: {data.flatten()[:3].tolist()}… "
                          f"and {twin.flatten()[:3].tolist()}… (make it of sizes, by torch.full or arange; masked_fill in the place of an index by a mask)"
                          + "".join(f" at {place_of(user)}" for user in list(n.users)[:1]))
        data = data.double() if data.dtype == torch.float32 else data.clone()
        leaf = Value("constant", shapes, val.dtype, name=full, data=(data, data))
        env[n] = Ref(Storage(leaf, signature.inputs_to_buffers.get(n.name, "")))
    calls = {}
    children = {path for path, m in module.named_modules() if next(m.children(), None) is not None}
    for n in exported[0].graph.nodes:
        for key, (path, _) in (n.meta.get("nn_module_stack") or {}).items():  # one that is called again has a key "….relu@1"
            calls.setdefault(path.split("@")[0], set()).add(key)
    calls = {path: len(keys) for path, keys in calls.items()}
    outputs = reader.walk([e.graph for e in exported], [e.graph_module for e in exported], env)
    outputs = [o for o in outputs if isinstance(o, Ref)]
    count = sum(s.kind.name == "USER_OUTPUT" and hasattr(s.arg, "name") for s in signature.output_specs)
    outputs = outputs[len(outputs) - count:]
    if reader.refusals:
        raise Refusal("\n".join(reader.refusals))
    taken = [o for o in outputs if (not reader.read(o).shapes[0]) == (loss == "mean_loss")]
    if len(outputs) > len(taken) == 1:
        reader.notes.append(f"{len(outputs) - 1} of what the model returns are left out: "
                            f"{'no loss' if loss == 'mean_loss' else 'single numbers, its own losses perhaps: --loss mean_loss takes one'}")
        outputs = taken
    if len(outputs) != 1:
        which = f": --prediction NAME takes one of {', '.join(returned.names(module))}" if outputs else ""
        raise Refusal(f"the model returns {len(outputs)} tensors, the loss takes one{which}")
    if written := sorted(reader.written):
        reader.notes.append(written_text(written))
    output = reader.plain(outputs[0])
    return Graph(input_values, parameters, also, reader.steps, output, reader.notes, calls, set(calls) - children,
                 reader.same_casts, reader.like_constants, [shapes_of(e) for e in exported])
