"""What a step makes of the nodes where the parameters themselves are in half precision, without autocast (FSDP2's
MixedPrecisionPolicy.param_dtype, DeepSpeed's bf16 and fp16): further bodies of the file. Buffers are, too, as DeepSpeed has them.

    with halved(module, inputs) as inputs_in_half:
        other = read_graph(module, inputs_in_half)
    bodies, constants = with_half_parameters(graph, other, made, runs)      # by name; nodes get the key "half_parameters"

The module is exported once more, with its parameters, its buffers and what it is given in bfloat16. That graph has the steps of the
first one, and casts between them where the module casts, or promotes: `Pairs` finds each step's twin, and the nodes are traced once
more, each step as its twin, its operands in the twin's dtypes: cast by who makes them, where all who read them want the same. A
parameter is bfloat16 and so is its gradient; constants are what the module would read; what is given to the model comes in float32
and is cast by who reads it. Bodies are written for bfloat16: in float16 they are the same, but for the dtype.

Where the second export fails, or does something else, "half_parameters" is the reason.
"""

import contextlib
from dataclasses import replace

import torch
from paragauge_import.export.exported import quiet
from paragauge_import.graph.step import Graph, Step, Value, is_view
from paragauge_import.half.half_bodies import DTYPE, Half
from paragauge_import.play import in_range, parameters_of
from paragauge_import.refusal import Refusal, place_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

CASTS = ("to", "_to_copy", "type_as")


@contextlib.contextmanager
def halved(module, inputs, half=DTYPE):
    """The module's parameters and buffers are in half precision meanwhile; the inputs that it takes then."""
    made = {}

    def half_of(t):
        if id(t) not in made:  # shared parameters stay so
            with t.fake_mode if isinstance(t, FakeTensor) else contextlib.nullcontext():
                x = t.detach().to(half)
                made[id(t)] = nn.Parameter(x, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else x
        return made[id(t)]

    before = [(table, name, t) for part in module.modules() for table in (part._parameters, part._buffers)
              for name, t in table.items() if t is not None and t.dtype == torch.float32]
    try:
        for table, name, t in before:
            table[name] = half_of(t)
        yield [replace(x, dtype="bf16") if x.dtype == "f32" else x for x in inputs]
    finally:
        for table, name, t in before:
            table[name] = t


def is_constant(step: Step) -> bool:
    return step.outputs[0] is not None and step.outputs[0].data is not None


def are_constants(x: Value, y: Value) -> bool:
    """Whether y is a constant as x, and finite where x in its dtype is."""
    if y.data is None:
        return False
    return x.data is None or x.data[0].shape != y.data[0].shape or not y.dtype.is_floating_point or \
        torch.equal(in_range(x.data[0], y.dtype).isfinite(), y.data[0].to(y.dtype).isfinite())


class Pairs:
    """The twins of a graph's steps, the dtypes that constants have, and those in which what a step gives is read."""

    def __init__(self, graph: Graph, other: Graph):
        self.twins, self.dtypes, self.read_as, self.seen = {}, {}, {}, set()
        steps, others = ([s for s in g.steps if not s.virtual and s.name not in CASTS and not is_constant(s)] for g in (graph, other))
        for step, twin in zip(steps, others):
            if step.name != twin.name or len(step.reads()) != len(twin.reads()):
                raise self.differs(step)
            self.twins[step] = twin
            for x, y in zip(step.reads(), twin.reads()):
                self.match(x, y, step)
        if len(steps) != len(others):
            raise self.differs((steps if len(steps) > len(others) else others)[min(len(steps), len(others))])
        self.match(graph.output, other.output, graph.output.step)

    @staticmethod
    def differs(step):
        return Refusal(f"the module does something else at {place_of(step.place)}")

    def match(self, x: Value, y: Value, reader: Step | None):
        """What a step reads, and what its twin does: views and casts on the way to what other steps give. The second graph may have
        casts that the first one has not."""
        is_cast = x.step is not None and x.step.name in CASTS
        if x.step is not None and not x.step.virtual:
            self.read_as.setdefault(x, set()).add(y.dtype)
        while y.step is not None and y.step.name in CASTS and not is_cast:
            y = y.step.reads()[0]
        if (x, y) in self.seen:
            return
        self.seen.add((x, y))
        while x.step is not None and is_constant(x.step) and is_view(x.step.target):
            x = x.step.reads()[0]  # a table, seen with more rows
        if x.step is None:
            if not (are_constants(x, y) if x.kind == "constant" else x.kind == y.kind and x.name == y.name):
                raise self.differs(reader)
            if x.kind in ("constant", "frozen") and x.dtype.is_floating_point and y.dtype.is_floating_point:
                self.dtypes.setdefault(x, set()).add(y.dtype)
            return
        if is_constant(x.step):  # memory without values, or what runs with the batch
            if y.step is not None and y.step.name == x.step.name and len(y.step.reads()) == len(x.step.reads()):
                self.twins.setdefault(x.step, y.step)
                for a, b in zip(x.step.reads(), y.step.reads()):
                    self.match(a, b, reader)
            return
        if not x.step.virtual and not is_cast:
            if self.twins.get(x.step) is not y.step or x.index != y.index:
                raise self.differs(reader)
            return
        if not x.step.reads():
            return
        if y.step is None or y.step.name != x.step.name or len(y.step.reads()) != len(x.step.reads()):
            if not is_cast:
                raise self.differs(reader)
            self.match(x.step.reads()[0], y, reader)  # a cast that is none there
            return
        if x.step not in self.twins or reads_a_cast(self.twins[x.step]) and not reads_a_cast(y.step):
            self.twins[x.step] = y.step  # one view for all who read it, who cast for themselves
        for a, b in zip(x.step.reads(), y.step.reads()):
            self.match(a, b, reader)


def reads_a_cast(step: Step) -> bool:
    return any(v.step is not None and v.step.name in CASTS for v in step.reads())


class WithHalfParameters(Half):
    KEY = "half_parameters"

    @staticmethod
    def check(group):
        """No cast is hidden."""

    @staticmethod
    def known_differs(node, group, y, expected):
        """A batch norm of what is given in float32, say: it stays so, as sim's own models have it."""
        group.output.dtype = expected or y


def of_norms(nodes) -> set:
    """Parameters of batch norms that the file's reader knows: they stay in float32."""
    return {p for n in nodes if n["op"] == "batch_norm" for p in parameters_of(n)}


def with_half_parameters(graph: Graph, other: Graph, made, runs: bool) -> tuple[dict, set]:
    """The bodies by name, and names of constants that are in half precision, too. Refusal: why there are none. runs: as make_body's."""
    pairs = Pairs(graph, other)
    if both := sorted(of_norms(made.nodes) & {p for n in made.nodes if n["op"] != "batch_norm" for p in parameters_of(n)}):
        raise Refusal(f"a batch norm's '{both[0]}', which stays in float32 here, is read by others, too")
    layers = {group.output for node, group, _ in made.traced if "body" not in node and parameters_of(node)}  # whose readers cast
    before = {v: v.dtype for v in [*graph.parameters.values(), *pairs.dtypes, *(group.output for _, group, _ in made.traced)]}
    try:
        for step, twin in pairs.twins.items():
            step.twin = twin
        for v in graph.parameters.values():
            v.dtype = DTYPE
        for v, dtypes in pairs.dtypes.items():
            if len(dtypes) == 1:
                v.dtype, = dtypes
        for v, dtypes in pairs.read_as.items():
            if v.dtype.is_floating_point and len(dtypes) == 1 and v not in layers:
                v.read_as, = dtypes
        with quiet():
            bodies = WithHalfParameters(made, runs).bodies
        return bodies, {name for name, v in made.constants.items() if v.dtype == DTYPE and before.get(v) == torch.float32}
    finally:
        for step in pairs.twins:
            step.twin = None
        for v in pairs.read_as:
            v.read_as = None
        for v, dtype in before.items():
            v.dtype = dtype
