"""The steps that become one node.

    group.find_reads()                   # group.inputs, group.parameters
    output = group.run(0, tensors)       # with the first batch
"""

from dataclasses import dataclass, field

import torch
from paragauge_import.body.run_step import run_step
from paragauge_import.graph.step import Step, Value, spec_text
from torch._subclasses.fake_tensor import FakeTensorMode

FAKE = {}  # a mode for either batch


@dataclass(eq=False)
class Group:
    """The steps that become one node: `steps` with one output that others read, and the views between its inputs and them."""
    steps: list
    output: Value
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
