"""Memory and time of slow attention: computed feature by feature, and directly from its formula.

    python benchmarks/slow_attention.py [--length 512] [--rows 2] [--heads 4] [--width 16] [--threads 1] [--json]

Each implementation runs in its own process, forward and backward, and reports the growth of its peak memory beyond that
with the inputs allocated. Dot-product scores are included as about the minimum that any attention needs.
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

implementation, threads, repeats, *shape = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(threads)
score = {"feature by feature": slow_attention.scores, "direct": slow_attention.naive,
         "dot product": lambda query, key: query @ key.mT}[implementation]
rows, heads, length, width = shape
query, key = (torch.randn(rows, heads, length, width, requires_grad=True) for _ in range(2))
def run(query, key):
    torch.autograd.grad(score(query, key).softmax(-1).square().sum(), (query, key))

few = [part[:, :, :32].detach().requires_grad_() for part in (query, key)]
run(*few)  # allocations of the first call remain
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, seconds = peak(), []
for _ in range(repeats):
    began = time.process_time()
    run(query, key)
    seconds.append(time.process_time() - began)
print(json.dumps({"megabytes": peak() - before, "seconds": sorted(seconds)[len(seconds) // 2]}))
"""
IMPLEMENTATIONS = ("feature by feature", "direct", "dot product")
REPEATS = 3


def measure(implementation: str, arguments: argparse.Namespace) -> dict[str, float]:
    shape = (arguments.rows, arguments.heads, arguments.length, arguments.width)
    command = [sys.executable, "-c", RUN, implementation, str(arguments.threads), "5", *map(str, shape)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEATS)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=16, help="width of a key per head")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: measure(name, arguments) for name in IMPLEMENTATIONS}
    scores = arguments.rows * arguments.heads * arguments.length**2 * 4 / 2**20
    if arguments.json:
        print(json.dumps({**vars(arguments), "scores_megabytes": scores, "implementations": found}, indent=2))
        return
    print(f"{arguments.rows} rows, {arguments.heads} heads, {arguments.length} tokens, keys of {arguments.width}")
    print(f"size of the scores: {scores:.0f} MB")
    print(f"{'implementation':22}{'peak MB':>10}{'× scores':>12}{'CPU ms':>10}")
    for name, (megabytes, seconds) in ((name, row.values()) for name, row in found.items()):
        print(f"{name:22}{megabytes:10.0f}{megabytes / scores:12.1f}{1000 * seconds:10.0f}")


if __name__ == "__main__":
    main()
