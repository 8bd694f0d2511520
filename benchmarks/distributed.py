"""Training by several processes: speed against one process with as many threads, and memory against the prediction.

    python benchmarks/distributed.py [--quick] [--only speed]

Every measurement is a process, or two of them, of its own:

- speed: tokens per second of two and four processes with one thread each, against one process with two threads, on the
  same batch; the best of three measurements of each, in turn;
- memory: peak of one process of a gpt with 10M, 50M and 100M parameters, against `training.planning`;
- sharding: peak memory per process of a 50M gpt on two processes, DDP against FSDP2;
- steps: seconds per step of 1, 2 and 4 gloo processes against the simulation, whose speed and bandwidth come from the
  measurements with one process and with an all-reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

STEPS = 5
REPEATS = 3
VOCABULARY, CONTEXT, ROWS = 4096, 128, 4
SIZES = {"10M": (320, 6), "50M": (640, 9), "100M": (896, 10)}  # width, layers


def worker(width: int, layers: int, rows: int, parallel: str, threads: int) -> None:
    """Take a few optimizer steps; print seconds per step, peak memory and, with several processes, the bandwidth."""
    import time

    import torch
    import torch.distributed as dist

    from chainrule.config import TrainConfig
    from chainrule.families import build
    from chainrule.objectives import Likelihood
    from chainrule.training.distributed import joined
    from chainrule.training.learner import WholeSequences
    from chainrule.training.optim import build_optimizers
    from chainrule.training.placement import place
    from chainrule.training.process import return_freed_memory
    from chainrule.types import Batch, Sequences

    def steps(model: Any, count: int) -> list[float]:
        """Seconds of some optimizer steps."""
        settings = TrainConfig(optimizer="adamw", parallel=parallel)  # type: ignore[arg-type]
        placement = place(model, settings, processes)
        learner = WholeSequences(model, Likelihood(), placement=placement)
        optimizers = build_optimizers(model, settings)
        batch = Batch(Sequences.full(torch.randint(VOCABULARY, (rows, CONTEXT))))
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            learner.gradient(batch)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            seconds.append(time.perf_counter() - began)
        return seconds

    torch.set_num_threads(threads)
    if parallel == "fsdp":
        return_freed_memory()
    with joined(torch.device("cpu")) as processes:
        steps(build("gpt", shape(64, 1)), 1)  # libraries are loaded before the memory is counted
        before = resident("VmRSS")
        seconds = steps(build("gpt", shape(width, layers)), STEPS)
        peak = resident("VmHWM") - before
        bandwidth = 0.0
        if processes.world > 1:
            data = torch.zeros(4_000_000)
            dist.all_reduce(data)
            began = time.perf_counter()
            dist.all_reduce(data)
            moved = 2 * (processes.world - 1) / processes.world * data.nbytes
            bandwidth = moved / (time.perf_counter() - began)
        if processes.first:
            print(json.dumps({"seconds": sorted(seconds[1:])[(STEPS - 1) // 2], "memory": peak,
                              "bandwidth": bandwidth, "tokens": rows * CONTEXT}))  # fmt: skip


def shape(width: int, layers: int) -> dict[str, int]:
    return {"vocabulary": VOCABULARY, "context": CONTEXT, "width": width, "layers": layers, "heads": width // 64}


def resident(name: str) -> int:
    """VmRSS, the memory of this process, or VmHWM, its peak; in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(
    size: str, *, processes: int = 1, rows: int = ROWS, parallel: str = "ddp", threads: int = 1
) -> dict[str, float]:
    """Start the processes and return what the first one prints."""
    width, layers = SIZES[size]
    arguments = [__file__, "--worker", *map(str, (width, layers, rows, parallel, threads))]
    command = [sys.executable, *arguments]
    if processes > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += arguments
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def speeds() -> dict[str, float]:
    """Tokens per second on a batch of 4 * ROWS rows, and the ratios to one process with two threads."""
    found = {"2 threads": 0.0, "2 processes": 0.0, "4 processes": 0.0}
    for _ in range(REPEATS):
        for name in found:
            count, kind = int(name[0]), name[2:]
            processes, threads = (1, count) if kind == "threads" else (count, 1)
            one = measure("10M", processes=processes, rows=4 * ROWS // processes, threads=threads)
            found[name] = max(found[name], processes * one["tokens"] / one["seconds"])
    return found | {f"ratio, {name}": found[name] / found["2 threads"] for name in ("2 processes", "4 processes")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model only")
    parser.add_argument("--only", choices=["speed"], help="measure nothing else")
    options = parser.parse_args()
    if options.only == "speed":
        print(json.dumps({"speed": speeds()}, indent=2))
        return
    from chainrule.config import TrainConfig
    from chainrule.training.planning import activation_bytes, shape_of, state_bytes, step_seconds

    found: dict[str, Any] = {"memory": {}, "steps": {}}
    alone = {}
    for size in ["10M"] if options.quick else SIZES:
        about = shape_of(shape(*SIZES[size]))
        states = state_bytes(about, "ddp", 1, TrainConfig(optimizer="adamw"))
        predicted = states + activation_bytes(about, ROWS, half=False)
        alone[size] = measure(size)
        measured = alone[size]["memory"]
        found["memory"][size] = {"parameters": about.parameters, "predicted": predicted, "measured": measured,
                                 "ratio": predicted / measured}  # fmt: skip
    found["speed"] = speeds()
    large = "10M" if options.quick else "50M"
    peaks = {parallel: measure(large, processes=2, rows=1, parallel=parallel)["memory"] for parallel in ("ddp", "fsdp")}
    found["sharding"] = {**peaks, "ratio": peaks["ddp"] / peaks["fsdp"]}
    about = shape_of(shape(*SIZES["10M"]))
    compute, _, _ = step_seconds(about, "ddp", 1, ROWS * CONTEXT, 1, speed=1.0, bandwidth=1.0)
    speed = compute / alone["10M"]["seconds"]
    cores = os.cpu_count() or 1
    for processes in (1, 2, 4):
        for parallel in ("ddp", "fsdp") if processes > 1 else ("ddp",):
            one = alone["10M"] if processes == 1 else measure("10M", processes=processes, parallel=parallel)
            share = min(1.0, cores / processes)  # of a core
            _, _, simulated = step_seconds(
                about, parallel, processes, ROWS * CONTEXT, 1, speed=share * speed, bandwidth=one["bandwidth"] or 1.0
            )
            found["steps"][f"{processes} {parallel}"] = {"measured": one["seconds"], "simulated": simulated,
                                                         "ratio": simulated / one["seconds"]}  # fmt: skip
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    else:
        main()
