#!/usr/bin/env python3
"""Writes ddp_buckets.json: the gradient buckets PyTorch's DistributedDataParallel really uses.

Needs torch 2.11.0 and torchvision 0.26.0 (CPU, gloo, two processes, about 3 GiB each, no network beyond localhost). Run

    python tests/golden/ddp_buckets.py

to rewrite tests/golden/ddp_buckets.json beside this file; it takes half a minute. `--check` compares instead of writing.

Per model: the buckets in the order of their all-reduces, each with its size in bytes and its parameters in bucket order. DDP has its
default settings. It rebuilds its buckets once, before the second step's forward, from the order in which the first step's gradients
arrived on rank 0; these rebuilt buckets are what is written. (The first step uses one bucket with all parameters in module order.)

Two sources must agree: a communication hook, which sees each bucket as it is launched in the third step, and DDP's logging data.
"""

import json
import os
import pathlib
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import models

RANKS = 2
STEPS = 3
# name: input shape of one rank. Small: the buckets depend on the parameters only.
INPUTS = {
    "convnet": [2, 3, 32, 32],
    "resnet18": [2, 3, 64, 64],
    "resnet50": [2, 3, 64, 64],
    "toy_mlp": [2, 10],
    "vgg11": [2, 3, 32, 32],
}


def buckets(name):
    """The buckets of this rank, as launched in each step."""
    torch.manual_seed(0)
    model = models.build(name)
    names = {id(p): n for n, p in model.named_parameters()}
    by_index = list(names.values())
    ddp = DistributedDataParallel(model)
    launched = []

    def hook(_, bucket):
        launched[-1].append({
            "bytes": bucket.buffer().numel() * bucket.buffer().element_size(),
            "parameters": [names[id(p)] for p in bucket.parameters()],
        })
        assert bucket.index() == len(launched[-1]) - 1
        return allreduce_hook(dist.group.WORLD, bucket)

    ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001)
    for _ in range(STEPS):
        launched.append([])
        optimizer.zero_grad()
        ddp(torch.rand(INPUTS[name])).sum().backward()
        optimizer.step()

    first, second, third = launched
    assert [b["parameters"] for b in first] == [by_index], first
    assert second == third
    log = ddp._get_ddp_logging_data()
    assert log["has_rebuilt_buckets"] == 1
    assert log["rebuilt_bucket_sizes"] == ", ".join(str(b["bytes"]) for b in third), log["rebuilt_bucket_sizes"]
    assert log["rebuilt_per_bucket_param_indices"] == ", ".join(
        " ".join(str(by_index.index(n)) for n in b["parameters"]) for b in third), log["rebuilt_per_bucket_param_indices"]
    return third


def rank_main(rank, port, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    result = {}
    for name in INPUTS:
        of_rank = [None] * RANKS
        dist.all_gather_object(of_rank, buckets(name))
        assert all(b == of_rank[0] for b in of_rank)
        result[name] = of_rank[0]
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps(result))
    dist.destroy_process_group()


def text(result):
    """JSON with one line per bucket."""
    entries = []
    for name, of_model in result.items():
        lines = ",\n".join("    " + json.dumps(bucket) for bucket in of_model)
        entries.append(f'  "{name}": [\n{lines}\n  ]')
    return "{\n" + ",\n".join(entries) + "\n}\n"


def main():
    path = pathlib.Path(__file__).with_name("ddp_buckets.json")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        raw = pathlib.Path(folder) / "buckets.json"
        multiprocessing.spawn(rank_main, (port, str(raw)), nprocs=RANKS)
        new = text(json.loads(raw.read_text()))
    if "--check" in sys.argv[1:]:
        sys.exit(0 if path.read_text() == new else f"{path} differs from what this torch gives")
    path.write_text(new)


if __name__ == "__main__":
    main()
