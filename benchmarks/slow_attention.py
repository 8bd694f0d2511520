"""What slow attention takes of memory and time: feature by feature, and as its formula is written.

    python benchmarks/slow_attention.py [--length 512] [--rows 2] [--heads 4] [--width 16] [--threads 1] [--json]

Each way runs in a process of its own, forward and backward, and tells how much its memory has grown beyond what it had
with its inputs in place. Scores by dot products stand beside them: about the least that any attention needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

RUN = """
import json, resource, sys, time, torch
from chainrule.nn import slow_attention

way, threads, repeats, *shape = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
score = {"feature by feature": slow_attention.scores, "as written": slow_attention.naive,
         "dot product": lambda query, key: query @ key.mT}[way]
rows, heads, length, width = shape
query, key = (torch.randn(rows, heads, length, width, requires_grad=True) for _ in range(2))
def run(query, key):
    torch.autograd.grad(score(query, key).softmax(-1).square().sum(), (query, key))

few = [part[:, :, :32].detach().requires_grad_() for part in (query, key)]
run(*few)  # what a first time loads stays
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, seconds = peak(), []
for _ in range(repeats):
    began = time.process_time()
    run(query, key)
    seconds.append(time.process_time() - began)
print(json.dumps({"megabytes": peak() - before, "seconds": sorted(seconds)[len(seconds) // 2]}))
"""
WAYS = ("feature by feature", "as written", "dot product")
REPEATS = 3


def measure(way: str, arguments: argparse.Namespace) -> dict[str, float]:
    shape = (arguments.rows, arguments.heads, arguments.length, arguments.width)
    command = [sys.executable, "-c", RUN, way, str(arguments.threads), "5", *map(str, shape)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEATS)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=16, help="of a key in a head")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {way: measure(way, arguments) for way in WAYS}
    scores = arguments.rows * arguments.heads * arguments.length**2 * 4 / 2**20
    if arguments.json:
        print(json.dumps({**vars(arguments), "scores_megabytes": scores, "ways": found}, indent=2))
        return
    print(f"{arguments.rows} rows, {arguments.heads} heads, {arguments.length} tokens, keys of {arguments.width}")
    print(f"the scores alone: {scores:.0f} MB")
    print(f"{'way':22}{'peak MB':>10}{'in scores':>12}{'CPU ms':>10}")
    for way, (megabytes, seconds) in ((way, figures.values()) for way, figures in found.items()):
        print(f"{way:22}{megabytes:10.0f}{megabytes / scores:12.1f}{1000 * seconds:10.0f}")


if __name__ == "__main__":
    main()
