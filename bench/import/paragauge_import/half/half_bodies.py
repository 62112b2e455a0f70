"""What a step in half precision (torch.autocast, autocast.py) makes of the nodes: the file's second bodies. half_parameters.py makes
those of parameters in half precision in the same way.

    file["half"] = half_bodies(graph, made, runs)      # by name; nodes that differ from float32 get the key "half"

Nodes are those of float32. Each is traced once more, with the dtypes that its inputs have by then: a linear's output is
bfloat16, a layer norm's float32, and their sum float32. Parameters stay float32; where a call wants them in bfloat16, the cast
is a call of the body, saved where the backward reads it, and the backward casts the gradient. A node whose calls stay as they
are names no second body; an op that the file's reader knows itself is named one where the reader would have it otherwise. Each node
casts for itself: PyTorch keeps the cast of a parameter for further calls of one step, which a module that is called again has.
Bodies are written for bfloat16: in float16 they are the same, but for the dtype.

Where it can't be said what autocast does, the file's "half" is the reason, and only float32 can be forecast.
"""

import re
from collections import Counter

import torch
from paragauge_import.body.group import fake, fake_tensors
from paragauge_import.body.make_body import make_body
from paragauge_import.export.exported import quiet
from paragauge_import.graph.step import DTYPE_NAMES, Graph, op_name
from paragauge_import.half import autocast
from paragauge_import.play import parameters_of
from paragauge_import.refusal import Refusal, first_line, place_of
from torch.utils._python_dispatch import TorchDispatchMode

DTYPE = torch.bfloat16
WORDS = {"half": "half", "half_parameters": "halved"}  # by the key of the file and of nodes: a body's name, gelu/half1; the second is half_parameters.py's
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "convolution"}


class Products(TorchDispatchMode):
    """Whether a product of float32 is called."""

    found = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.found |= op_name(function) in PRODUCTS and args[1].dtype == torch.float32
        return function(*args, **(kwargs or {}))


def refuse_products_in_f32(group):
    """An operation that is on no list, but calls some that are (lstm): the dispatcher casts in there, which isn't seen from here."""
    if not group.steps or all(autocast.policy_of(s.target) for s in group.steps):
        return
    with fake(0), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), Products() as products:
        group.run(0, fake_tensors(group, 0, [False] * (len(group.inputs) + len(group.parameters))))
    if products.found and not any(autocast.policy_of(s.target) == "widest" for s in group.steps):
        raise Refusal(f"what autocast does inside op '{group.steps[-1].name}' isn't known,")


def is_cast(step) -> bool:
    """Whether autocast would play the step, which is no constant's, in half precision."""
    made = step.outputs[0]
    return made is not None and made.data is None and autocast.policy_of(step.target) == "half"


def half_bodies(graph: Graph, made, runs: bool):
    """The second bodies by name, or why there are none. runs: as make_body's."""
    uses = [name for name, body in made.bodies.items() if re.search(r"\b(bf16|f16)\b", str(body))]
    if uses:
        return f"the module itself uses half precision, in '{uses[0]}'"
    if (off := next((s for s in graph.steps if s.no_autocast and is_cast(s)), None)) is not None:
        return f"autocast is switched off for op '{off.name}', which then stays in float32, at {place_of(off.place)}: that isn't written"
    follow_dtypes(graph)
    before = [(group.output, group.output.dtype) for _, group, _ in made.traced]
    try:
        with autocast.applied(DTYPE), quiet():
            return Half(made, runs).bodies
    except Refusal as refusal:
        forget(made.nodes)
        return str(refusal)
    finally:
        for value, dtype in before:
            value.dtype = dtype


def take_rows(file):
    """`rows` of the second bodies, which are the first ones'."""
    for node in file["nodes"]:
        for key in WORDS:
            if key in node and "body" in node:
                file[key][node[key]]["rows"] = file["bodies"][node["body"]]["rows"]


def follow_dtypes(graph: Graph):
    """Noise for which a dtype is given has that of what is multiplied with it: torch.empty(size, dtype=input.dtype), of which
    the export has float32 alone."""
    readers = {}
    for step in graph.steps:
        for v in step.reads():
            readers.setdefault(v, []).append(step)
    for step in graph.steps:
        if not step.typed:
            continue
        v = step.outputs[0]
        while len(following := readers.get(v, [])) == 1:
            others = [x for x in following[0].reads() if x is not v]
            if others:
                step.like = others[0]
                break
            v = following[0].outputs[0]


def forget(nodes, key="half"):
    for node in nodes:
        node.pop(key, None)


def leave_out(file, reason: str, key="half"):
    """The file without its second bodies."""
    file[key] = reason
    forget(file["nodes"], key)
    if key == "half_parameters":
        for constant in file["constants"].values():
            constant.pop("halved", None)


def notes_of(graph: Graph) -> list:
    """What half precision takes otherwise than the module does."""
    notes = []
    if graph.same_casts:
        notes.append(f"{len(graph.same_casts)} casts to the dtype that a tensor has in float32 are none in half precision, either; the "
                     f"first at {place_of(graph.same_casts[0])}")
    if graph.like_constants:
        notes.append(f"{len(graph.like_constants)} constants with a tensor's dtype are float32 in half precision, too; the first at "
                     f"{place_of(graph.like_constants[0])}")
    return notes


class Half:
    KEY = "half"

    def __init__(self, made, runs):
        self.made, self.runs, self.bodies, self.known = made, runs, {}, {}
        self.numbers = Counter()
        for node, group, wants in made.traced:
            if "body" not in node:
                self.known_op(node, group, wants)
            else:
                text = self.body_of(node, group, [False] * len(wants) if node["name"] in made.silent else wants)
                group.output.dtype = self.dtype_of(text)
                if text != made.bodies[node["body"]]:
                    node[self.KEY] = self.name_of(text, node["body"].split("/")[0])

    check = staticmethod(refuse_products_in_f32)

    def body_of(self, node, group, wants):
        key = group.key(wants)
        if key not in self.known:
            try:
                self.check(group)
                text, _ = make_body(group, wants, self.runs)
            except Refusal as refusal:
                raise Refusal(f"{refusal} at {place_of(group.output.step.place)}") from refusal
            except RuntimeError as error:  # PyTorch's own, of an op that hasn't this dtype
                raise Refusal(f"{first_line(error)} at {place_of(group.output.step.place)}") from error
            self.known[key] = text
        text = dict(self.known[key])
        if "body" in node:
            text["rows"] = self.made.bodies[node["body"]]["rows"]
        return text

    def dtype_of(self, text):
        name = text["output"].split("[")[0]
        return next(dtype for dtype, n in DTYPE_NAMES.items() if n == name)

    def name_of(self, text, op):
        for name, body in self.bodies.items():
            if body == text and name.startswith(op + "/"):
                return name
        self.numbers[op] += 1
        name = f"{op}/{WORDS[self.KEY]}{self.numbers[op]}"
        self.bodies[name] = text
        return name

    @staticmethod
    def known_differs(node, group, y, expected):
        raise Refusal(f"op '{node['op']}' of '{node['name']}' gives {DTYPE_NAMES[y]} under autocast")

    def known_op(self, node, group, wants):
        """An op that the file's reader knows: it must give what it gives in PyTorch, or becomes a body, if it has no parameters."""
        group.find_reads()
        with fake(0), torch.no_grad():
            y = group.run(0, fake_tensors(group, 0, [False] * (len(group.inputs) + len(group.parameters)))).dtype
        given = {v.dtype for v in group.inputs}
        if node["op"] in ("conv2d", "linear"):
            expected = DTYPE
        elif node["op"] == "softmax":
            expected = torch.float32
        else:
            expected = given.pop() if len(given) == 1 else None
        group.output.dtype = y
        if y == expected:
            return
        if parameters_of(node):
            self.known_differs(node, group, y, expected)
            return
        text = self.body_of(node, group, wants)
        text["rows"] = node.get("dim", 1) != 0  # of all elements alike, or of a sample's
        node[self.KEY] = self.name_of(text, node["op"])
