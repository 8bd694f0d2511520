"""What the two settings of memory in training cost and gain, each against the default.

    python benchmarks/memory.py [--threads 2] [--only freed kernels] [--json]

freed: speed of training the default GPT with freed memory kept in the process, against glibc's default. kernels: speed
and peak memory of training a transformer on sentences in bfloat16, where every batch has another shape, with 64
compiled kernels of oneDNN kept, against its default of 1,024. Turns are interleaved, each in a process of its own;
medians of five.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

FREED = """
import sys, time, torch
from chainrule.models.gpt import GPT, GPTConfig
from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.training.process import keep_freed_memory
from chainrule.types import Batch, Sequences

torch.set_num_threads(int(sys.argv[1]))
if sys.argv[2] == "kept":
    assert keep_freed_memory()
learner = WholeSequences(GPT(GPTConfig(vocabulary=67)), Likelihood())
batch = Batch(Sequences.full(torch.randint(67, (16, 256))))
for warm in (True, False):
    began = time.perf_counter()
    for _ in range(3 if warm else 8):
        learner.gradient(batch)
print(8 * batch.target.ids.numel() / (time.perf_counter() - began), 0)
"""
KERNELS = """
import os, resource, sys, time, torch
from chainrule.families import build
from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.training.process import KERNEL_CACHE, keep_freed_memory, limit_cached_kernels
from chainrule.types import Batch, Sequences

torch.set_num_threads(int(sys.argv[1]))
keep_freed_memory()
if sys.argv[2] == "64":
    limit_cached_kernels()
else:
    os.environ[KERNEL_CACHE] = "1024"
torch.manual_seed(0)
model = build("transformer", {"vocabulary": 4000, "source_vocabulary": 4000, "width": 192, "shared_embeddings": True})
learner = WholeSequences(model, Likelihood(), half=torch.bfloat16)
before, tokens, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, time.perf_counter()
for step in range(60):
    length = 8 + step % 20
    rows = 2048 // (length + step % 7)
    pair = [Sequences.full(torch.randint(4000, (rows, count))) for count in (length, length + step % 3)]
    learner.gradient(Batch(pair[0], pair[1]))
    tokens += pair[0].ids.numel()
seconds = time.perf_counter() - began
print(tokens / seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
QUESTIONS = {"freed": (FREED, ("returned", "kept")), "kernels": (KERNELS, ("1024", "64"))}
REPEATS = 5


def measure(question: str, threads: int) -> dict[str, Any]:
    """Median tokens per second, and megabytes of peak memory beyond those before training, of both settings."""
    program, settings = QUESTIONS[question]
    found: dict[str, list[list[float]]] = {setting: [] for setting in settings}
    free = {name: value for name, value in os.environ.items() if name != "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    for _ in range(REPEATS):
        for setting, measured in found.items():
            command = [sys.executable, "-c", program, str(threads), setting]
            printed = subprocess.run(command, check=True, capture_output=True, text=True, env=free).stdout
            measured.append([float(number) for number in printed.split()])
    speeds = {setting: statistics.median(speed for speed, _ in measured) for setting, measured in found.items()}
    memory = {setting: statistics.median(megabytes for _, megabytes in measured) for setting, measured in found.items()}
    before, after = settings
    return {"tokens_per_second": speeds, "ratio": speeds[after] / speeds[before], "megabytes": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {question: measure(question, arguments.threads) for question in arguments.only}
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, **results}, indent=2))
        return
    for question, found in results.items():
        for setting, speed in found["tokens_per_second"].items():
            megabytes = found["megabytes"][setting]
            print(f"{question} {setting:9} {speed:10,.0f} tokens/s" + (f" {megabytes:8,.0f} MB" if megabytes else ""))
        print(f"{question}: {found['ratio']:.2f} times as fast")


if __name__ == "__main__":
    main()
