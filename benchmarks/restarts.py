"""Processes of a run are killed at random, and torchrun restarts them: the result equals that without a kill.

    python benchmarks/restarts.py --kills 20

Each kill is SIGKILL to a random one of the processes when training has reached a random step. Prints how often the
run was restarted, and the largest difference between the final weights, which has to be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

SETTINGS = [
    "model.width=16", "model.layers=1", "model.heads=2", "model.context=16", "model.dropout=0.1",
    "train.batch_tokens=128", "train.validate_every=100", "train.save_every=7", "train.log_every=1",
]  # fmt: skip


def start(out: Path, processes: int, steps: int, restarts: int, settings: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", "-m", "chainrule", "train", "gpt"]
    command += ["--data", "builtin:prose", "--steps", str(steps), "--device", "cpu", "--out", str(out)]
    for setting in [*SETTINGS, *settings]:
        command += ["--set", setting]
    with out.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=log, stdout=log)


def require_success(run: subprocess.Popen[bytes], out: Path, description: str) -> None:
    if run.wait() != 0:
        print(out.with_suffix(".log").read_text()[-8000:], file=sys.stderr)
        raise SystemExit(description)


def last_step(out: Path) -> int:
    file = out / "metrics.jsonl"
    lines = file.read_text().splitlines()[-1:] if file.is_file() else []
    try:
        return int(json.loads(lines[0])["step"]) if lines else 0
    except ValueError:  # the line is being written
        return 0


def workers(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def kill_some(run: subprocess.Popen[bytes], out: Path, steps: int, kills: int, seed: int) -> int:
    """Kill a random process whenever a random step is reached; return the number of kills."""
    choice = random.Random(seed)
    done = 0
    for target in sorted(choice.sample(range(1, steps * 9 // 10), kills)):
        while run.poll() is None and last_step(out) < target:
            time.sleep(0.003)
        if run.poll() is not None:
            break
        if victims := workers(run.pid):
            os.kill(choice.choice(victims), signal.SIGKILL)
            done += 1
        while run.poll() is None and set(workers(run.pid)) & set(victims):
            time.sleep(0.05)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting of the runs, such as train.precision=float16"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    settings = [f"train.parallel={options.parallel}", *options.set]
    with tempfile.TemporaryDirectory() as name:
        calm, killed = Path(name) / "calm", Path(name) / "killed"
        first = start(calm, options.processes, options.steps, 0, settings)
        require_success(first, calm, "the run without kills has failed")
        run = start(killed, options.processes, options.steps, options.kills, settings)
        kills = kill_some(run, killed, options.steps, options.kills, options.seed)
        require_success(run, killed, f"the run has failed after {kills} kills")
        one, other = (load_file(path / "model.safetensors") for path in (calm, killed))
        difference = max(float((one[key] - other[key]).abs().max()) for key in one)
        losses = [[record["loss"] for line in (path / "metrics.jsonl").read_text().splitlines()
                   if "loss" in (record := json.loads(line))] for path in (calm, killed)]  # fmt: skip
        same = losses[0] == losses[1]
        print(json.dumps({"kills": kills, "difference": difference, "same_losses": same, "steps": len(losses[1])}))


if __name__ == "__main__":
    main()
