"""Plays a written model file, and the lines of its bodies, on real tensors.

    values = play_lines(["t0=mul.Tensor(i0,2)", "o=relu(t0)"], {"i0": x}, batch=4)      # values["o"]
    prediction, loss, gradients = play_model(file, inputs, target, parameters, batch=3)

Everything is float64, "f32" included, and "bf16" as it is, unless `dtypes` says otherwise. Exact: dropout is the identity, a
Bernoulli draw gives ones, a uniform draw what lies just below one, a normal draw zeros.
"""

import contextlib
import re
from functools import lru_cache

import torch
import torch.nn.functional as F
from paragauge_import.refusal import Refusal

aten = torch.ops.aten
DTYPES = {"f32": torch.float64, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
          "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
          "c64": torch.complex128, "c128": torch.complex128}
FORMATS = {"contiguous_format": torch.contiguous_format, "preserve_format": torch.preserve_format,
           "channels_last": torch.channels_last, "channels_last_3d": torch.channels_last_3d}
WORDS = {"true": True, "false": False, "none": None, **FORMATS}


@contextlib.contextmanager
def dtypes(**meant):
    """What "f32" and others mean meanwhile."""
    before = dict(DTYPES)
    DTYPES.update(meant)
    try:
        yield
    finally:
        DTYPES.update(before)


def split_commas(text: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return parts + [text[start:]] if text else []


def count(text, batch: int, units: int = 1) -> int:
    """A size: 12, "12", "B", "12B", "4BB", "B-1", "32T", "BT" (T: units of what can be cut, parts.py)."""
    if isinstance(text, int):
        return text
    less = text.endswith("B-1")
    text = text.removesuffix("-1") if less else text
    number = text.rstrip("BT")
    return int(number or 1) * batch ** text.count("B") * (units if "T" in text else 1) - less


def units_in(body: dict) -> int:
    """T of the whole: the units, or the positions, that it can be cut into."""
    return body.get("units") or body.get("positions", 1)


def sizes_of(spec: str, batch: int, units: int = 1) -> list[int]:
    """Those of "f32[B,64,3x32T]": 3x32T are two, which the module has as one."""
    return [count(s, batch, units) for size in spec[:-1].split("[")[1].split(",") if size for s in size.split("x")]


@lru_cache(maxsize=None)
def parse(line: str):
    """Names of the outputs, the operation, texts of its arguments by position and by name."""
    outs, call = line.split("=", 1)
    name, rest = call.split("(", 1)
    base, _, overload = name.partition(".")
    given, named = [], {}
    for part in split_commas(rest[:-1]):
        key = re.match(r"([a-z_]\w*)=", part)
        if key:
            named[key[1]] = part[key.end():]
        else:
            given.append(part)
    return outs.split(","), getattr(getattr(aten, base), overload or "default"), given, named


def value_of(text: str, kind: str, values: dict, batch: int, units: int = 1):
    """An argument. `kind`: its type in the operation's schema."""
    if text.startswith("["):
        return [value_of(t, kind, values, batch, units) for t in split_commas(text[1:-1])]
    if text in values:
        return values[text]
    if kind.startswith("Optional[str") or kind == "str":
        return None if text == "none" and kind != "str" else text
    if text in WORDS:
        return WORDS[text]
    if text in DTYPES:
        return DTYPES[text]
    if text == "L":  # 1 on the last of the ranks that have a part each, as on one that has all
        return values.get("L", 1)
    if re.fullmatch(r"-?\d*(BB?(-1)?|T|BT)", text):
        return count(text, batch, units)
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


JUST_BELOW_ONE = 1 - 2**-24


def draw(name: str, args, kwargs):
    """What a draw gives in an exact play; None: it's no draw."""
    name = name.removeprefix("aten::").removesuffix("_like")
    if name == "multinomial":
        return torch.zeros((*args[0].shape[:-1], args[1]), dtype=torch.int64)
    if name == "randperm":
        return torch.arange(args[0], dtype=kwargs.get("dtype") or torch.int64)
    if name == "randint":  # of a tensor's or a size's shape; up to a number, or from one to another
        numbers = [a for a in args if isinstance(a, int)]
        shape = next(a.shape if isinstance(a, torch.Tensor) else a for a in args if not isinstance(a, int))
        return torch.full(shape, numbers[0] if len(numbers) > 1 else 0, dtype=kwargs.get("dtype") or torch.int64)
    fill = {"bernoulli": 1.0, "rand": JUST_BELOW_ONE, "uniform": JUST_BELOW_ONE, "randn": 0.0, "normal": 0.0,
            "normal_functional": 0.0, "cauchy": 0.0, "exponential": 1.0, "geometric": 1.0, "log_normal": 1.0}.get(name)
    if fill is None:
        return None
    if name == "normal":  # of means and spreads, which are tensors or numbers; of numbers alone a size follows
        if given := [a for a in args if isinstance(a, torch.Tensor)]:
            return torch.zeros(torch.broadcast_shapes(*[a.shape for a in given]), dtype=given[-1].dtype)
        args = args[2:]
    like = args[0] if isinstance(args[0], torch.Tensor) else None
    dtype = kwargs.get("dtype") or (like.dtype if like is not None and like.is_floating_point() else DTYPES["f32"])
    return torch.full(args[0] if like is None else like.shape, fill, dtype=dtype)


def exact(target, args, kwargs):
    name = target._schema.name
    if name == "aten::native_dropout":
        return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
    if name == "aten::native_dropout_backward":
        return args[0].clone()
    drawn = draw(name, args, kwargs)
    return target(*args, **kwargs) if drawn is None else drawn


def arguments_of(target, given, named, values: dict, batch: int, units: int = 1):
    """A parsed call's args and kwargs."""
    kinds = [(a.name, str(a.real_type)) for a in target._schema.arguments]
    return ([value_of(t, k, values, batch, units) for t, (_, k) in zip(given, kinds)],
            {n: value_of(t, dict(kinds)[n], values, batch, units) for n, t in named.items()})


def play_lines(lines, values: dict, batch: int, units: int = 1) -> dict:
    values = dict(values)
    for line in lines:
        outs, target, given, named = parse(line)
        args, kwargs = arguments_of(target, given, named, values, batch, units)
        result = exact(target, args, kwargs)
        for out, r in zip(outs, result if isinstance(result, (tuple, list)) else [result]):
            values[out] = r
    return values


KNOWN = {
    "conv2d": lambda a, x, w, b=None: F.conv2d(x, w, b, a.get("stride", 1), a.get("padding", 0), a.get("dilation", 1),
                                               a.get("groups", 1)),
    "linear": lambda a, x, w, b=None: F.linear(x, w, b),
    "batch_norm": lambda a, x, w, b: F.batch_norm(x, None, None, w, b, True, 0, a.get("eps", 1e-5)),
    "relu": lambda a, x: F.relu(x),
    "max_pool": lambda a, x: F.max_pool2d(x, a["kernel_size"], a.get("stride") or a["kernel_size"], a.get("padding", 0)),
    "adaptive_avg_pool": lambda a, x: F.adaptive_avg_pool2d(x, a["output_size"]),
    "flatten": lambda a, x: x.flatten(1),
    "add": lambda a, x, y: x + y,
    "softmax": lambda a, x: F.softmax(x, a.get("dim", 1), dtype=DTYPES["f32"]),
}


def parameters_of(node: dict) -> list[str]:
    """A node's parameters by their full names."""
    if "parameters" in node:
        return node["parameters"]
    if node["op"] not in ("conv2d", "linear", "batch_norm"):
        return []
    return [f"{node['name']}.weight"] + ([f"{node['name']}.bias"] if node.get("bias", True) else [])


def in_range(x: torch.Tensor, dtype) -> torch.Tensor:
    """In half precision: float32's largest number, of a mask, is the largest there is, as torch.finfo(dtype) has it."""
    if dtype not in (torch.bfloat16, torch.float16):
        return x.to(dtype)
    largest = torch.finfo(dtype).max
    return torch.where(x.isinf(), x, x.clamp(-largest, largest)).to(dtype)


def constant(c: dict, frozen: dict) -> torch.Tensor:
    values, shape, dtype = c["values"], c["shape"], DTYPES[c["dtype"]]
    n = torch.Size(shape).numel()
    if "uniform" in values:
        return frozen[c["frozen"]]
    if "arange" in values:
        first, step = values["arange"]
        flat = first + step * torch.arange(n)
    elif "full" in values:
        flat = torch.full((n,), values["full"], dtype=torch.float64 if isinstance(values["full"], float) else None)
    elif "runs" in values:
        runs = torch.tensor([float(v) if isinstance(v, str) else v for v, _ in values["runs"]], dtype=torch.float64 if dtype.is_floating_point else None)
        flat = torch.repeat_interleave(runs, torch.tensor([k for _, k in values["runs"]]))
    else:
        flat = torch.tensor([float(v) if isinstance(v, str) else v for v in values["list"]], dtype=torch.float64 if dtype.is_floating_point else None)
    return in_range(flat, dtype).reshape(shape)


def loss_of(kind: str, prediction, target):
    if prediction.element_size() < 4:
        prediction = prediction.float()
    if kind == "mse_loss":
        return F.mse_loss(prediction, target)
    if kind == "mean_loss":
        return prediction.mean()
    return F.cross_entropy(prediction.reshape(-1, prediction.shape[-1]), target.reshape(-1))


def require(body: str, found: dict, given: dict, read, batch: int, units: int):
    """What a body gives is there, of its spec, contiguous, and in memory of its own."""
    taken = {t.untyped_storage().data_ptr() for t in read}
    for name, spec in given.items():
        dtype, shape = spec.split("[")[0], sizes_of(spec, batch, units)
        t = found.get(name)
        wrong = ("is missing" if t is None else f"is {t.dtype}{list(t.shape)}, not {spec}" if list(t.shape) != shape or t.dtype != DTYPES[dtype]
                 else "isn't contiguous" if not t.is_contiguous()
                 else "is a part of a larger tensor" if t.untyped_storage().nbytes() != t.numel() * t.element_size()
                 else "lies in another tensor's memory" if t.numel() and t.untyped_storage().data_ptr() in taken else None)
        if wrong:
            raise Refusal(f"body '{body}': {name} {wrong}")
        taken.add(t.untyped_storage().data_ptr())


def play_model(file: dict, inputs: dict, target, parameters: dict, frozen: dict, batch: int):
    """The prediction, the loss and every parameter's gradient (by full name)."""
    values = dict(inputs)
    values |= {name: constant(c, frozen) for name, c in file["constants"].items()}
    saved, needs = {}, {}
    for node in file["nodes"]:
        xs, ps = [values[x] for x in node["inputs"]], [parameters[p] for p in parameters_of(node)]
        needs[node["name"]] = bool(ps) or any(needs.get(x, False) for x in node["inputs"])
        if node["op"] == "aten":
            body = file["bodies"][node["body"]]
            units = units_in(body)
            ps = [p.reshape(sizes_of(spec, batch, units)) for p, spec in zip(ps, body["parameters"])]
            read = {f"i{k}": x for k, x in enumerate(xs)} | {f"p{k}": p for k, p in enumerate(ps)}
            found = play_lines(body["forward"], read, batch, units)
            given = {"o": body["output"]} | {f"s{k}": spec for k, spec in enumerate(body["saved"])}
            require(node["body"], found, given, read.values(), batch, units)
            saved[node["name"]] = read | {name: found[name] for name in given}
            y = found["o"]
        else:
            half = DTYPES["bf16"] if node["op"] in ("conv2d", "linear") and DTYPES["f32"] == torch.float32 else None
            with torch.enable_grad(), torch.autocast("cpu", half, enabled=half is not None):
                leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (*xs, *ps)]
                y = KNOWN[node["op"]](node, *leaves)
            saved[node["name"]] = (leaves, y)
            y = y.detach()
        values[node["name"]] = y
    prediction = values[file["nodes"][-1]["name"]]
    with torch.enable_grad():
        leaf = prediction.detach().requires_grad_()
        loss = loss_of(file["loss"], leaf, target)
    grads = {file["nodes"][-1]["name"]: torch.autograd.grad(loss, leaf)[0]}
    gradients = {}

    def accumulate(where, name, g):
        where[name] = where[name] + g if name in where else g

    for node in reversed(file["nodes"]):
        g = grads.pop(node["name"], None)
        if g is None or not needs[node["name"]]:
            continue
        names, kept = parameters_of(node), saved.pop(node["name"])
        if node["op"] == "aten":
            body = file["bodies"][node["body"]]
            units = units_in(body)
            found = play_lines(body["backward"], kept | {"g": g}, batch, units)
            given = {f"g{n}": spec for n, spec in [(f"i{k}", s) for k, s in enumerate(body["inputs"])] +
                     [(f"p{k}", s) for k, s in enumerate(body["parameters"])] if f"g{n}" in found}
            require(node["body"], found, given, [*kept.values(), g], batch, units)
            results = [found.get(f"gi{k}") for k in range(len(node["inputs"]))]
            results += [found.get(f"gp{k}") for k in range(len(names))] if body["backward"] else [None] * len(names)
        else:
            leaves, y = kept
            results = torch.autograd.grad(y, [t for t in leaves if t.requires_grad], g)
            results = iter(results)
            results = [next(results) if t.requires_grad else None for t in leaves]
        for x, r in zip(node["inputs"], results):
            if r is not None and needs.get(x, False):
                accumulate(grads, x, r)
        for p, r in zip(names, results[len(node["inputs"]):]):
            if r is not None:
                accumulate(gradients, p, r.reshape(parameters[p].shape))
    return prediction, loss.detach(), gradients
