"""What getting a sample ready takes: CIFAR-10's images (random ones here) by torchvision's ToTensor and Normalize, in
batches of 64 from a DataLoader without workers, as R2's loop has them. Prints microseconds per sample, best and mean of
three passes.

    .venv/bin/python bench/peers/loader.py
"""

import time

import numpy as np
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms

SAMPLES, PASSES = 50_000, 3


class RandomCifar10(torchvision.datasets.CIFAR10):
    """Its __getitem__ on images that needn't be downloaded."""

    def __init__(self, transform):
        random = np.random.default_rng(0)
        self.data = random.integers(0, 256, (SAMPLES, 32, 32, 3), dtype=np.uint8)
        self.targets = random.integers(0, 10, SAMPLES).tolist()
        self.transform, self.target_transform = transform, None


def main():
    torch.set_num_threads(1)
    half = (0.5, 0.5, 0.5)
    samples = RandomCifar10(transforms.Compose([transforms.ToTensor(), transforms.Normalize(half, half)]))
    microseconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        for _ in DataLoader(samples, batch_size=64, shuffle=True):
            pass
        microseconds.append((time.perf_counter() - start) / SAMPLES * 1e6)
    print(f"{min(microseconds):.1f} {sum(microseconds) / PASSES:.1f} us per sample")


if __name__ == "__main__":
    main()
