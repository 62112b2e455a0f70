"""A node's forward and backward as lines of ATen calls, from the steps that it is made of.

    body = make_body(group, needs)      # body.text(): the dictionary that the file holds

The joint forward and backward is traced by make_fx on fake tensors, with the first batch and with the second, and then cut:
the forward is what the output needs, the rest is the backward. What the backward reads of the forward is saved, unless it is
an input, a parameter, the output, or one of these seen another way, which the backward makes again.
"""

from paragauge_import.body.cost import costs
from paragauge_import.body.cut import Cut
from paragauge_import.body.group import Group
from paragauge_import.body.joint import joint
from paragauge_import.body.trial import loose_results
from paragauge_import.export import own_function
from paragauge_import.graph.step import MOST_OPERANDS, op_name
from paragauge_import.refusal import Refusal, first_line
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException


def make_body(group: Group, needs: list, runs: bool) -> tuple[dict, list]:
    """The body as the file has it, and which inputs and parameters get a gradient. runs: whether it is small enough to be run.
    `rows` is the caller's to find out (rows_alone)."""
    for what, values in (("inputs", group.inputs), ("parameters", group.parameters)):
        if len(values) > MOST_OPERANDS:
            raise Refusal(f"an op of {len(values)} {what}, {MOST_OPERANDS} at most")
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
