"""What the command line says: inputs, optimizer, and where the module comes from."""

import contextlib
import importlib
import math
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

from paragauge_import.refusal import Refusal

FORM = "[name=]f32[B,3,224,224], [name=]f32[B,80]<1 or [name=]i64[B,64]<256"
OPTIMIZERS = {"sgd": {"lr", "momentum", "weight_decay"}, "adam": {"lr", "beta1", "beta2", "eps", "weight_decay"},
              "adamw": {"lr", "beta1", "beta2", "eps", "weight_decay"}}


@dataclass
class Input:
    """A tensor that the module's forward takes: by position, or by name."""
    name: str
    dtype: str  # "f32", "i64"
    shape: list  # entries are sizes or "B", "12B"
    below: float = 0  # of an i64: its values are in [0, below); of an f32 in (0, below), where it isn't 0

    def spelled(self) -> str:
        return (f"{self.name}=" if self.name else "") + f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def text(self) -> dict:
        return {"dtype": self.dtype, "shape": self.shape} | ({"below": self.below} if self.below else {})


def read_input(text: str) -> Input:
    found = re.fullmatch(r"(?:([A-Za-z_]\w*)=)?(f32|i64)\[([^\]]*)\](?:<(\d+(?:\.\d+)?))?", text)
    if not found:
        raise Refusal(f"--input '{text}': expected {FORM}")
    name, dtype, sizes, below = found.groups()
    shape = []
    for size in sizes.split(","):
        if not re.fullmatch(r"[1-9]\d*|([1-9]\d*)?B", size):
            raise Refusal(f"--input '{text}': size '{size}' is neither a positive number nor a multiple of the batch (B, 12B)")
        shape.append(size if size.endswith("B") else int(size))
    if shape[0] != "B":
        raise Refusal(f"--input '{text}': the first size must be the batch, B" +
                      (f"; let it be [B,{','.join([str(shape[0])[:-1], *map(str, shape[1:])])}], and flatten it in the module"
                       if str(shape[0]).endswith("B") else ""))
    if dtype == "i64" and not (below or "").isdigit():
        raise Refusal(f"--input '{text}': integers need a whole bound: i64[B,64]<256")
    if below is not None and not (1 <= float(below) if dtype == "i64" else 0 < float(below) <= 1e9):
        raise Refusal(f"--input '{text}': the bound must be " + ("at least 1" if dtype == "i64" else "above 0, 1e9 at most"))
    return Input(name or "", dtype, shape, (int if dtype == "i64" else float)(below or 0))


def read_optimizer(text: str) -> dict:
    """adamw:lr=0.001,weight_decay=0.1"""
    kind, _, rest = text.partition(":")
    if kind not in OPTIMIZERS:
        raise Refusal(f"--optimizer '{text}': unknown optimizer '{kind}'; there are {', '.join(OPTIMIZERS)}")
    read = {"kind": kind}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            read[key] = float(value)
            if not math.isfinite(read[key]):
                raise ValueError
        except ValueError:
            raise Refusal(f"--optimizer '{text}': '{part}' isn't name=number") from None
        if key not in OPTIMIZERS[kind]:
            raise Refusal(f"--optimizer '{text}': '{kind}' has no '{key}'; it has {', '.join(sorted(OPTIMIZERS[kind]))}")
    return read


@contextlib.contextmanager
def users_code(source: str):
    """What the user's own code raises is a line that says where in it, not in ours or in a library's."""
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        if isinstance(error, SyntaxError) and error.filename:
            places = [(error.filename, error.lineno)]
        else:
            others = (Path(__file__).parent, *(sysconfig.get_path(p) for p in ("stdlib", "platlib", "purelib")))
            places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)
                      if not f.filename.startswith("<") and not any(Path(f.filename).is_relative_to(other) for other in others)]
        where = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
        said = error.msg if isinstance(error, SyntaxError) else (str(error).splitlines() or [""])[0]
        raise Refusal(f"'{source}': {type(error).__name__}: {said}{where}") from error


def load(source: str):
    """package.module:function, path/to/file.py:function, or catalog:name. The function makes the module."""
    where, _, name = source.rpartition(":")
    if not where:
        raise Refusal(f"'{source}': expected package.module:function, file.py:function or catalog:name")
    sys.path.insert(0, "")
    name_of_module = "paragauge_import.models" if where == "catalog" else where
    with users_code(source):
        if where.endswith(".py"):
            path = Path(where)
            if not path.is_file():
                raise Refusal(f"'{source}': there is no file {where}")
            sys.path.insert(0, str(path.resolve().parent))
            name_of_module = path.stem
        try:
            found = importlib.import_module(name_of_module)
        except ModuleNotFoundError as error:
            raise Refusal(f"'{source}': {error}") from error
    if not hasattr(found, name):
        makers = sorted(k for k, v in vars(found).items() if callable(v) and getattr(v, "__module__", "") == found.__name__)
        raise Refusal(f"'{source}': '{where}' has no '{name}'; it has {', '.join(makers)}")
    return getattr(found, name)


def missing(package: str):
    return Refusal(f"package '{package}' isn't installed in {sys.prefix}: pip install {package}, or use a Python that has it")


def torchvision_model(name: str, classes: int | None):
    try:
        from torchvision import models
    except ImportError:
        raise missing("torchvision") from None
    if name not in models.list_models():
        raise Refusal(f"torchvision has no model '{name}'; it has {', '.join(models.list_models())}")
    kwargs = {"weights": None} | ({"num_classes": classes} if classes else {})
    has_backbone = any(name in models.list_models(part) for part in (models.segmentation, models.detection))
    return models.get_model(name, **kwargs, **({"weights_backbone": None} if has_backbone else {}))


def timm_model(name: str, classes: int | None):
    try:
        import timm
    except ImportError:
        raise missing("timm") from None
    if not timm.is_model(name):
        raise Refusal(f"timm has no model '{name}'; near it: {', '.join(timm.list_models(f'*{name[:6]}*')[:10]) or 'nothing'}")
    return timm.create_model(name, pretrained=False, **({"num_classes": classes} if classes else {}))


def transformers_model(name: str, classes: int | None):
    """Of a configuration: a JSON file, or a model type (gpt2) with that type's defaults. Random weights; nothing is fetched."""
    try:
        import transformers
    except ImportError:
        raise missing("transformers") from None
    if Path(name).is_file():
        import json
        given = json.loads(Path(name).read_text())
        kind, architectures = given.pop("model_type", ""), given.get("architectures") or []
    else:
        kind, given, architectures = name, {}, []
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        raise Refusal(f"'{name}' is neither a configuration file nor a model type of transformers (gpt2, llama, bert, vit, …)")
    if classes:
        given["num_labels"] = classes
    config = transformers.AutoConfig.for_model(kind, **given)
    config.use_cache = False
    notes = experts_apart(config)
    if architectures and hasattr(transformers, architectures[0]):
        return logits_only(getattr(transformers, architectures[0])(config), notes)
    for auto in ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForImageClassification", "AutoModelForSequenceClassification"):
        kind = getattr(transformers, auto)
        if type(config) in kind._model_mapping:
            return logits_only(kind.from_config(config), notes)
    raise Refusal(f"transformers has no language or image model for '{name}': name its class in the configuration's \"architectures\"")


def experts_apart(config) -> list:
    """Mixtures of experts by transformers' batched_mm: its default is an operation of its own, which isn't ATen's."""
    if not any(getattr(config, name, 0) for name in ("num_local_experts", "num_experts", "n_routed_experts")):
        return []
    config._experts_implementation = "batched_mm"
    return ["experts are computed by transformers' batched_mm (a product for each token), not grouped_mm: costs differ"]


def logits_only(module, notes):
    """The module with a forward that returns its logits: what the loss takes."""
    forward, module.import_notes = module.forward, notes
    module.forward = lambda *args, **kwargs: forward(*args, **kwargs, return_dict=True).logits
    return module
