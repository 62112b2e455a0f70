"""The catalog's models as a PyTorch user has them: torchvision's, and the references' small ones as nn.Sequential.

Parameters are called as in the catalog (torchvision's state_dict), so the first values are the same.
"""

from collections import OrderedDict

import torch
import torchvision
from initial import DTYPES
from texts import RequestError, Skipped
from torch import nn


def sequential(**layers):
    return nn.Sequential(OrderedDict(layers))


def toy_mlp():
    """R1's and R5's."""
    return sequential(net1=nn.Linear(10, 10), relu=nn.ReLU(), net2=nn.Linear(10, 5))


def toy_mlp_r2():
    return sequential(net1=nn.Linear(4, 6), relu=nn.ReLU(), net2=nn.Linear(6, 2))


def linear():
    """R5's."""
    return sequential(linear=nn.Linear(100, 10))


def convnet():
    """R2's, with its softmax before the cross entropy."""
    return sequential(conv1=nn.Conv2d(3, 6, 5), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
                      conv2=nn.Conv2d(6, 16, 5), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2), flatten=nn.Flatten(),
                      fc1=nn.Linear(400, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 84), relu4=nn.ReLU(),
                      fc3=nn.Linear(84, 10), softmax=nn.Softmax(dim=1))


MODELS = {"toy_mlp": toy_mlp, "toy_mlp_r2": toy_mlp_r2, "linear_dp": linear, "linear_lightning": linear,
          "convnet": convnet}


def build(subject):
    """The model without memory (on the device `meta`): `to_empty` gives a part of it some."""
    with torch.device("meta"):
        if subject.name in MODELS:
            model = MODELS[subject.name]()
        elif subject.name.startswith("resnet"):
            model = getattr(torchvision.models, subject.name)()
        elif subject.name.startswith("vgg"):
            model = getattr(torchvision.models, subject.name)(dropout=0)  # as in the catalog, which has no dropout
        else:
            raise Skipped(f"plain PyTorch has no model '{subject.name}' in bench/peers/models.py")
    return model.to(DTYPES[subject.dtype])


def layers(model):
    """(name, module) in the order of the forward: what nn.Sequential stages can be made of."""
    found = []
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            found += [(f"{name}.{part}", module) for part, module in child.named_children()]
        else:
            found.append((name, child))
        if name == "avgpool":  # torchvision flattens in forward()
            found.append(("flatten", nn.Flatten()))
    return found


def stages(model, cut):
    """The layers in parts; each name of the cut is the last layer of a part ('layer2': its last block)."""
    rest, parts = layers(model), []
    for name in cut:
        ends = [place + 1 for place, (layer, _) in enumerate(rest) if f"{layer}.".startswith(f"{name}.")]
        if not ends or ends[-1] == len(rest):
            raise Skipped(f"cut '{name}' is not between two layers of the PyTorch module; they are "
                          f"{', '.join(layer for layer, _ in layers(model))}")
        parts.append(rest[:ends[-1]])
        rest = rest[ends[-1]:]
    return parts + [rest]


def check(subject, plan):
    """Plays the shapes of one pass, so that what can't work is an answer and not a rank's death."""
    model = build(subject)
    stages(model, plan.cut)
    rows = subject.global_batch // plan.microbatches // (plan.ranks if plan.strategy == "ddp" else 1)
    try:
        output = model(torch.empty(rows, *subject.input, dtype=DTYPES[subject.dtype], device="meta"))
    except (RuntimeError, ValueError) as error:
        raise RequestError(f"model '{subject.name}' can't take {rows} samples of {subject.input}: {error}") from None
    if output.shape != (rows, subject.classes):
        raise RequestError(f"model '{subject.name}' gives {list(output.shape)}, not [{rows}, {subject.classes}]")
