"""What a step changes of a module beside its buffers. It is taken back, so that every step is the first one.

    with own_state(module) as changed:
        module(x)
        changed()                  # names: of attributes, of those that are numbers, of Python's and NumPy's random generators, of
                                   # parameters that were replaced
"""

import collections
import contextlib
import copy
import pickle
import random

import numpy
import torch
from torch import nn

OF_MODULES = set(vars(nn.Module()))
NUMBERS, CONTAINERS = (bool, int, float), (list, dict, collections.OrderedDict, collections.defaultdict, set)
Changed = collections.namedtuple("Changed", "attributes numbers generators parameters")


def state_of(value):
    """Of a random generator."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, numpy.random.Generator):
        return copy.deepcopy(value.bit_generator.state)
    if isinstance(value, numpy.random.RandomState):
        return value.get_state(legacy=False)
    return value.get_state() if isinstance(value, torch.Generator) else None


def set_state(generator, state):
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, numpy.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def elements(values) -> list:
    return [x for pair in values.items() for x in pair] if isinstance(values, dict) else list(values)


class Attribute:
    def __init__(self, name, part, key, value):
        self.name, self.part, self.key, self.value = name, part, key, value
        self.content = copy.copy(value) if type(value) in CONTAINERS else None
        self.state = state_of(value)

    def is_drawn_from(self) -> bool:
        return self.state is not None and pickle.dumps(state_of(self.value)) != pickle.dumps(self.state)

    def is_changed(self) -> bool:
        now = vars(self.part).get(self.key)
        if type(self.value) in NUMBERS:
            return type(now) not in NUMBERS or now != self.value
        if now is not self.value or self.content is None:
            return now is not self.value
        return len(now) != len(self.content) or any(a is not b for a, b in zip(elements(now), elements(self.content)))

    def take_back(self):
        if self.is_drawn_from():
            set_state(self.value, self.state)
        if not self.is_changed():
            return
        vars(self.part)[self.key] = self.value
        if isinstance(self.value, list):
            self.value[:] = self.content
        elif self.content is not None:
            self.value.clear()
            self.value.update(self.content)


@contextlib.contextmanager
def own_state(module):
    parts = [(f"{path}." if path else "", part, set(vars(part)), dict(part._parameters)) for path, part in module.named_modules()]
    before = [Attribute(path + k, part, k, v) for path, part, _, _ in parts for k, v in vars(part).items() if k not in OF_MODULES]

    def new():
        return [(path + k, part, k) for path, part, keys, _ in parts for k in vars(part) if k not in keys]

    def changed() -> Changed:
        attributes = [a for a in before if a.is_changed()]
        return Changed([a.name for a in attributes] + [name for name, _, _ in new()], [a.name for a in attributes if type(a.value) in (int, float)],
                       [a.name for a in before if a.is_drawn_from() and not isinstance(a.value, torch.Generator)],
                       [path + k for path, part, _, own in parts for k, p in own.items() if part._parameters.get(k) is not p])
    try:
        yield changed
    finally:
        for attribute in before:
            attribute.take_back()
        for _, part, key in new():
            del vars(part)[key]
        for _, part, _, own in parts:
            part._parameters.update(own)
