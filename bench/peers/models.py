"""A request's model as torch.nn modules: a module per node, and stages whose forward is what a user would write.

    stage, = make_stages(model, [0] * len(model.nodes))        # on the device `meta`: `to_empty` gives it memory
    prediction = stage.module(x)

Chains are an nn.Sequential; for anything else torch.fx writes the forward, line by line.
"""

import operator
from dataclasses import dataclass
from types import SimpleNamespace

import imported
import torch
from initial import DTYPES
from torch import fx, nn

MODEL_INPUT, MODEL_TARGET = -1, -2


BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}  # by a sample's dimensions


class OneRanksNorm(nn.modules.batchnorm._BatchNorm):
    """What nn.SyncBatchNorm is where a rank sees all samples: it would ask the other processes, and for a GPU."""

    def _check_input_dim(self, x):
        pass


# Of an op's attributes and the shape of a sample of its first input.
LAYERS = {
    "conv2d": lambda a, x: nn.Conv2d(x[0], a.out_channels, a.kernel_size, a.stride, a.padding, a.dilation, a.groups,
                                     bool(a.bias)),
    "linear": lambda a, x: nn.Linear(x[0], a.out_features, bool(a.bias)),
    "batch_norm": lambda a, x: (nn.SyncBatchNorm if a.sync else BATCH_NORMS[len(x)])(x[0], a.eps, a.momentum),
    "relu": lambda a, x: nn.ReLU(bool(a.inplace)),
    "max_pool": lambda a, x: nn.MaxPool2d(a.kernel_size, a.stride or None, a.padding),
    "adaptive_avg_pool": lambda a, x: nn.AdaptiveAvgPool2d(a.output_size),
    "flatten": lambda a, x: nn.Flatten(),
    "softmax": lambda a, x: nn.Softmax(a.dim),
    "add": lambda a, x: operator.iadd if a.inplace else operator.add,
}


@dataclass
class Stage:
    """Some of a model's layers. `takes` and `gives` are the numbers of the nodes whose outputs come from other stages (or
    the model's input) and go to them (or are the prediction); with several the module takes and gives as many."""
    module: nn.Module
    takes: list[int]
    gives: list[int]
    layers: list[tuple[SimpleNamespace, nn.Module]]  # those that have a module

    def __call__(self, values: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The outputs of `gives`, from those of `takes`."""
        outputs = self.module(*[values[node] for node in self.takes])
        return dict(zip(self.gives, outputs if isinstance(outputs, tuple) else (outputs,)))


def prediction(model: SimpleNamespace) -> int:
    """The node that the loss, the last one, is of."""
    return model.nodes[-1].inputs[0]


def sample_shape(model: SimpleNamespace, node: int) -> list[int]:
    return model.input if node == MODEL_INPUT else model.nodes[node].shape


def make_stages(model: SimpleNamespace, stage_of: list[int], channels_last: bool = False) -> list[Stage]:
    """`stage_of`: of every node, the loss included. An imported model is one stage, and on the CPU."""
    if imported.is_imported(model):
        module, layers = imported.make_module(model)
        stages = [Stage(module, [MODEL_INPUT], [prediction(model)], layers)]
    else:
        with torch.device("meta"):
            stages = [make_stage(model, stage_of, stage) for stage in range(stage_of[-1] + 1)]
    for stage in stages:
        stage.module.to(DTYPES[model.dtype])
        if channels_last:
            stage.module.to(memory_format=torch.channels_last)
    return stages


def make_stage(model: SimpleNamespace, stage_of: list[int], stage: int) -> Stage:
    own = [n for n, of in enumerate(stage_of[:-1]) if of == stage]
    takes = sorted({source for n in own for source in model.nodes[n].inputs} - set(own))
    later = {source for n, of in enumerate(stage_of) if of > stage for source in model.nodes[n].inputs}
    gives = sorted(later & set(own))
    if stage == stage_of[-1]:
        gives = [prediction(model)]
        takes = takes or gives  # nothing but the loss
    made = {n: make_layer(model, n, takes) for n in own}
    modules = {f"node{n}": layer for n, layer in made.items() if isinstance(layer, nn.Module)}
    layers = [(model.nodes[n], layer) for n, layer in made.items() if isinstance(layer, nn.Module)]
    chain = all(model.nodes[n].inputs == [before] for before, n in zip(takes + own, own))
    if chain and len(takes) == 1 and gives == (own or takes)[-1:]:
        return Stage(nn.Sequential(*made.values()), takes, gives, layers)
    graph = fx.Graph()
    values = {node: graph.placeholder(f"input{i}") for i, node in enumerate(takes)}
    for n, layer in made.items():
        inputs = tuple(values[source] for source in model.nodes[n].inputs)
        values[n] = (graph.call_module(f"node{n}", inputs) if isinstance(layer, nn.Module) else
                     graph.call_function(layer, inputs))
    outputs = tuple(values[node] for node in gives)
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return Stage(fx.GraphModule(modules, graph), takes, gives, layers)


def make_layer(model: SimpleNamespace, n: int, takes: list[int]):
    """A module, or a function of two tensors."""
    node = model.nodes[n]
    attributes = node.attributes
    if getattr(attributes, "inplace", 0) and of_another_stage(model, node.inputs[0], takes):
        attributes = SimpleNamespace(**{**vars(attributes), "inplace": 0})  # autograd allows it on no leaf
    return LAYERS[node.op](attributes, sample_shape(model, node.inputs[0]))


def of_another_stage(model: SimpleNamespace, n: int, takes: list[int]) -> bool:
    """Whether this node's output, or what it is a view of, has come from another stage."""
    while n not in takes and model.nodes[n].op == "flatten":
        n = model.nodes[n].inputs[0]
    return n in takes
