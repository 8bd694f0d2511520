"""Start-up time of the command line, in seconds of CPU time and of the clock (medians of several runs).

python benchmarks/startup.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

CHAINRULE = [sys.executable, "-m", "chainrule"]
TINY = [
    word for setting in ("model.layers=1", "model.width=16", "train.batch_tokens=512") for word in ("--set", setting)
]
COMMANDS = {
    "chainrule --help": [*CHAINRULE, "--help"],
    "chainrule train --help": [*CHAINRULE, "train", "--help"],
    "a mistyped data path": [*CHAINRULE, "train", "gpt", "--data", "nosuch.txt", "--out", "new"],
    "a mistyped family": [*CHAINRULE, "train", "gtp", "--data", "builtin:prose", "--out", "new"],
    "a mistyped train setting": [*CHAINRULE, "train", "gpt", "--data", "builtin:prose", "--set", "train.minuts=1"],
    "a mistyped model setting": [*CHAINRULE, "train", "gpt", "--data", "builtin:prose", "--set", "model.widht=1"],
    "a mistyped run": [*CHAINRULE, "score", "nosuch", "--text", "x"],
    "chainrule info": [*CHAINRULE, "info", "run"],
    "chainrule score --text": [*CHAINRULE, "score", "run", "--text", "How likely is this?"],
    "chainrule generate, one token": [*CHAINRULE, "generate", "run", "--length", "1"],
    "import chainrule": [sys.executable, "-c", "import chainrule"],
    "python -c pass (minimum)": [sys.executable, "-c", "pass"],
    "import torch (for comparison)": [sys.executable, "-c", "import torch"],
}
REPEATS = 7
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
    "OMP_NUM_THREADS": "1"
}  # with the bytecode that an installed package has


class Took(NamedTuple):
    """Seconds."""

    cpu: float
    clock: float


def took(command: list[str], folder: Path) -> Took:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=False, capture_output=True, cwd=folder, env=ENVIRONMENT)
    clock, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock)


def measured() -> dict[str, Took]:
    """The median of each command, over runs that take turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = [*CHAINRULE, "train", "gpt", "--data", "builtin:prose", "--steps", "2", "--out", "run", *TINY]
        subprocess.run(train, check=True, capture_output=True, cwd=folder, env=ENVIRONMENT)
        turns = [{name: took(command, folder) for name, command in COMMANDS.items()} for _ in range(REPEATS)]
    return {
        name: Took(*(statistics.median(values) for values in zip(*(turn[name] for turn in turns), strict=True)))
        for name in COMMANDS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measured()
    if arguments.json:
        print(json.dumps({name: one._asdict() for name, one in found.items()}, indent=2))
        return
    print(f"{'seconds':32} {'CPU':>7} {'clock':>7}")
    for name, one in found.items():
        print(f"{name:32} {one.cpu:7.2f} {one.clock:7.2f}")


if __name__ == "__main__":
    main()
