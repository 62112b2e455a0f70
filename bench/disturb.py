"""Streams memory in bursts of 4 to 30 s with as long pauses, as a neighbour on the same host does, until it is killed."""

import random
import sys
import time

import numpy

draw = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
source = numpy.ones(32 << 20)  # 256 MiB: no cache holds it
target = numpy.empty_like(source)
while True:
    end = time.monotonic() + draw.uniform(4, 30)
    while time.monotonic() < end:
        numpy.copyto(target, source)
    time.sleep(draw.uniform(4, 30))
