"""Start-up time of `chainrule --help` and `import chainrule`, in CPU seconds (median of several runs).

python benchmarks/startup.py [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "chainrule --help": [str(Path(sys.executable).parent / "chainrule"), "--help"],
    "chainrule train --help": [str(Path(sys.executable).parent / "chainrule"), "train", "--help"],
    "import chainrule": [sys.executable, "-c", "import chainrule"],
    "python -c pass (minimum)": [sys.executable, "-c", "pass"],
    "import torch (for comparison)": [sys.executable, "-c", "import torch"],
}
REPEATS = 7


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {
        name: statistics.median(cpu_seconds(command) for _ in range(REPEATS)) for name, command in COMMANDS.items()
    }
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, seconds in found.items():
        print(f"{name:32} {seconds:6.3f} s of CPU time")


if __name__ == "__main__":
    main()
