#!/usr/bin/env python3
"""Writes models.json: what PyTorch says about every model of sim/catalog/models.

Needs torch 2.11.0 and torchvision 0.26.0 (no weights, no data and no GPU; shapes only, on the meta device). Run

    python tests/golden/models.py

to rewrite tests/golden/models.json beside this file; it takes a few seconds. `--check` compares instead of writing.

The models are built from torchvision or by hand, never from our JSON, so that the two can disagree. Dropout is off (p = 0).

Per model: the number of parameters, the name and shape of each parameter and buffer in state_dict order, and two cases with the shapes
of input and output and the FLOPs (a multiply-add is 2) of forward and backward as torch.utils.flop_counter counts them: convolutions
and matrix products only; nothing for bias, normalisation, activation, pooling or loss. The input doesn't require a gradient, so the
first layer has no data gradient. The backward pass starts from the sum of the outputs, which has no FLOPs in this count.
"""

import json
import pathlib
import sys
from collections import OrderedDict

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def sequential(**modules):
    return nn.Sequential(OrderedDict(modules))


def convnet():
    return sequential(
        conv1=nn.Conv2d(3, 6, 5), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(), fc1=nn.Linear(400, 120), relu3=nn.ReLU(), fc2=nn.Linear(120, 84), relu4=nn.ReLU(),
        fc3=nn.Linear(84, 10), softmax=nn.Softmax(dim=1))


def toy_mlp():
    return sequential(net1=nn.Linear(10, 10), relu=nn.ReLU(), net2=nn.Linear(10, 5))


def toy_mlp_r2():
    return sequential(net1=nn.Linear(4, 6), relu=nn.ReLU(), net2=nn.Linear(6, 2))


def hypar_pair():
    return sequential(conv1=nn.Conv2d(8, 8, 3), conv2=nn.Conv2d(8, 8, 3), flatten=nn.Flatten())


def linear():
    return sequential(linear=nn.Linear(100, 10))


def sfc():
    return sequential(
        fc1=nn.Linear(784, 8192), relu1=nn.ReLU(), fc2=nn.Linear(8192, 8192), relu2=nn.ReLU(), fc3=nn.Linear(8192, 8192),
        relu3=nn.ReLU(), fc4=nn.Linear(8192, 10))


def sconv():
    return sequential(
        conv1=nn.Conv2d(1, 20, 5), relu1=nn.ReLU(), conv2=nn.Conv2d(20, 50, 5), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(50, 50, 5), relu3=nn.ReLU(), conv4=nn.Conv2d(50, 10, 5), pool4=nn.MaxPool2d(2), flatten=nn.Flatten())


def lenet_c():
    return sequential(
        conv1=nn.Conv2d(1, 20, 5), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2), conv2=nn.Conv2d(20, 50, 5), relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2), flatten=nn.Flatten(), fc1=nn.Linear(800, 500), relu3=nn.ReLU(), fc2=nn.Linear(500, 10))


def cifar_c():
    return sequential(
        conv1=nn.Conv2d(3, 32, 5, padding=2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 32, 5, padding=2), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(32, 64, 5, padding=2), relu3=nn.ReLU(), pool3=nn.MaxPool2d(2),
        flatten=nn.Flatten(), fc1=nn.Linear(1024, 64), relu4=nn.ReLU(), fc2=nn.Linear(64, 10))


def alexnet_tower():
    return sequential(
        conv1=nn.Conv2d(3, 48, 11, stride=4, padding=2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(3, 2),
        conv2=nn.Conv2d(48, 128, 5, padding=2), relu2=nn.ReLU(), pool2=nn.MaxPool2d(3, 2),
        conv3=nn.Conv2d(128, 192, 3, padding=1), relu3=nn.ReLU(), conv4=nn.Conv2d(192, 192, 3, padding=1), relu4=nn.ReLU(),
        conv5=nn.Conv2d(192, 128, 3, padding=1), relu5=nn.ReLU(), pool5=nn.MaxPool2d(3, 2), avgpool=nn.AdaptiveAvgPool2d(6),
        flatten=nn.Flatten(), fc1=nn.Linear(4608, 2048), relu6=nn.ReLU(), fc2=nn.Linear(2048, 2048), relu7=nn.ReLU(),
        fc3=nn.Linear(2048, 1000))


def vgg16_c():
    """torchvision's VGG-16 with a 1×1 convolution as the third of the last three blocks."""
    model = torchvision.models.vgg16(dropout=0.0)
    for i, channels in {14: 256, 21: 512, 28: 512}.items():
        model.features[i] = nn.Conv2d(channels, channels, 1)
    return model


IMAGE_INPUTS = [[2, 3, 224, 224], [1, 3, 128, 128]]

# name: (constructor, input shape of each case as [batch, ...])
MODELS = {
    "alexnet_tower": (alexnet_tower, IMAGE_INPUTS),
    "cifar_c": (cifar_c, [[256, 3, 32, 32], [16, 3, 32, 32]]),
    "convnet": (convnet, [[64, 3, 32, 32], [16, 3, 32, 32]]),
    "hypar_pair": (hypar_pair, [[16, 8, 7, 7], [2, 8, 7, 7]]),
    "lenet_c": (lenet_c, [[256, 1, 28, 28], [16, 1, 28, 28]]),
    "linear_dp": (linear, [[1000, 100], [7, 100]]),
    "linear_lightning": (linear, [[32, 100], [8, 100]]),
    "resnet18": (torchvision.models.resnet18, IMAGE_INPUTS),
    "resnet34": (torchvision.models.resnet34, IMAGE_INPUTS),
    "resnet50": (torchvision.models.resnet50, IMAGE_INPUTS),
    "resnet101": (torchvision.models.resnet101, IMAGE_INPUTS),
    "resnet152": (torchvision.models.resnet152, IMAGE_INPUTS),
    "sconv": (sconv, [[256, 1, 28, 28], [16, 1, 28, 28]]),
    "sfc": (sfc, [[256, 784], [16, 784]]),
    "toy_mlp": (toy_mlp, [[20, 10], [3, 10]]),
    "toy_mlp_r2": (toy_mlp_r2, [[20, 4], [3, 4]]),
    "vgg11": (lambda: torchvision.models.vgg11(dropout=0.0), IMAGE_INPUTS),
    "vgg13": (lambda: torchvision.models.vgg13(dropout=0.0), IMAGE_INPUTS),
    "vgg16": (lambda: torchvision.models.vgg16(dropout=0.0), IMAGE_INPUTS),
    "vgg16_c": (vgg16_c, IMAGE_INPUTS),
    "vgg19": (lambda: torchvision.models.vgg19(dropout=0.0), IMAGE_INPUTS),
}


def build(name):
    """The PyTorch model of this name, in training mode, on the current default device."""
    return MODELS[name][0]().train()


def case(model, shape):
    model.zero_grad()
    batch = torch.rand(shape)
    with FlopCounterMode(display=False) as forward:
        output = model(batch)
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    return {
        "global_batch": shape[0],
        "input": shape,
        "output": list(output.shape),
        "forward_flops": forward.get_total_flops(),
        "backward_flops": backward.get_total_flops(),
    }


def golden(name):
    with torch.device("meta"):
        model = build(name)
        return {
            "parameters": sum(p.numel() for p in model.parameters()),
            "parameter_shapes": [[n, list(p.shape)] for n, p in model.named_parameters()],
            "buffers": [[n, list(b.shape)] for n, b in model.named_buffers()],
            "cases": [case(model, shape) for shape in MODELS[name][1]],
        }


def text(result):
    """JSON with one line per entry of a list, so that a difference can be read."""
    models = []
    for name, model in result.items():
        keys = []
        for key, value in model.items():
            if isinstance(value, list) and value:
                lines = ",\n".join("      " + json.dumps(entry) for entry in value)
                keys.append(f'    "{key}": [\n{lines}\n    ]')
            else:
                keys.append(f'    "{key}": {json.dumps(value)}')
        models.append(f'  "{name}": {{\n' + ",\n".join(keys) + "\n  }")
    return "{\n" + ",\n".join(models) + "\n}\n"


def main():
    path = pathlib.Path(__file__).with_name("models.json")
    new = text({name: golden(name) for name in MODELS})
    if "--check" in sys.argv[1:]:
        sys.exit(0 if path.read_text() == new else f"{path} differs from what this torch gives")
    path.write_text(new)


if __name__ == "__main__":
    main()
