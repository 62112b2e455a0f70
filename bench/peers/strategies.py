"""The strategies as a PyTorch user writes them: which session a request's strategy is."""

from types import SimpleNamespace

import torch
from daso import Daso
from dtensor import TensorParallel
from heat import Heat, HeatBlocking
from hypar import Hybrid, HybridThreads
from pipelining import SCHEDULES, Pipelining
from replicas import DataParallel, DataParallelProcesses, Distributed
from session import Session, Skipped
from sharded import FullyShard, ZeroRedundancy
from stages import ForwardPipeline, ModelParallel, Pipeline


def kind_of(strategy: SimpleNamespace) -> type[Session]:
    if strategy.kind == "data_parallel":
        return DataParallel if strategy.one_process else DataParallelProcesses
    if strategy.kind == "tensor_parallel":
        return TensorParallel
    if strategy.kind == "hypar":
        return HybridThreads if strategy.one_process else Hybrid
    stages = strategy.stages[-1] + 1
    if strategy.replicas > 1:
        if stages > 1 or strategy.microbatches > 1:
            raise Skipped("these peers have no DistributedDataParallel of pipelines or microbatches")
        if hasattr(strategy, "daso"):
            return Daso
        if strategy.single:
            return Heat if strategy.delayed else HeatBlocking
        if strategy.zero > 0:
            return ZeroRedundancy if strategy.zero == 1 else FullyShard
        if not strategy.overlap:
            raise Skipped("plain PyTorch has no DDP that overlaps nothing; its DistributedDataParallel is ddp")
        return Distributed
    if stages > 1 and strategy.schedule in SCHEDULES:
        return Pipelining
    if any("W" in actions for actions in strategy.actions):
        raise Skipped("plain PyTorch has no such schedule whose backwards are in two")
    if strategy.microbatches > 1:
        return ForwardPipeline if strategy.one_loss else Pipeline
    return Session if stages == 1 else ModelParallel


def processes_of(strategy: SimpleNamespace) -> int:
    """That compute."""
    return kind_of(strategy).processes(strategy)


def cores_of(strategy: SimpleNamespace) -> int:
    """In how many processes or pinned threads that is."""
    kind = kind_of(strategy)
    return kind.places(strategy) if kind in (DataParallel, HybridThreads) else kind.processes(strategy)


def open_session(subject: SimpleNamespace, channels_last: bool, device: str, rank: int, groups: dict,
                 cores: list[int]) -> Session:
    """`groups`: torch.distributed's, by their ranks. `cores`: of all ranks."""
    kind = kind_of(subject.strategy)
    count = torch.cuda.device_count() if device == "cuda" else 1
    devices = [torch.device(device, place % count if device == "cuda" else None)
               for place in range(kind.places(subject.strategy))]
    return kind(subject, channels_last, rank, devices, groups, cores[:len(devices)])
