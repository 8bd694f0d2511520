"""Speed of training the default GPT with freed memory kept in the process, against glibc's default.

python benchmarks/memory.py [--threads 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

STEPS = """
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
print(8 * batch.target.ids.numel() / (time.perf_counter() - began))
"""
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"returned": [], "kept": []}
    for _ in range(REPEATS):
        for policy, speeds in found.items():
            command = [sys.executable, "-c", STEPS, str(arguments.threads), policy]
            speeds.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    medians = {policy: statistics.median(speeds) for policy, speeds in found.items()}
    ratio = medians["kept"] / medians["returned"]
    if arguments.json:
        print(json.dumps({"tokens_per_second": medians, "ratio": ratio}, indent=2))
        return
    for policy, speed in medians.items():
        print(f"freed memory {policy:11} {speed:10,.0f} tokens/s")
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
