"""Training by several processes: speed against one process with as many threads, and memory against the prediction.

    python benchmarks/distributed.py [--quick] [--only memory|sharding|speed|steps]

Every measurement is a process, or two of them, of its own:

- speed: tokens per second of two and four processes with one thread each, against one process with two threads, on the
  same batch; the best of three measurements of each, in turn;
- memory: peak of one process of a gpt with 10M, 50M and 100M parameters, against `training.planning`;
- sharding: peak memory per process of a 50M gpt on two processes, DDP against FSDP2;
- steps: seconds per step of 1, 2 and 4 gloo processes against the simulation (`training.collectives`). What it is given
  is measured by the same processes at the same time: a step of each of them without communication, so that it has
  their share of the cores, of the caches and of other work on the machine; the optimizer's part of it, of which a
  process that has a part of the weights does a part; and latency and bandwidth of every collective. For FSDP, the model
  of a step without communication is sharded over one process, so that it copies blocks and gradients as with several.

Speeds and steps are valid on a machine without other work: `waited`, the share of the time in which a process that was
ready had no core, is then small with up to as many processes as cores. Threads wait as OpenMP's default is: with
OMP_WAIT_POLICY=passive Linux woke both threads of a process on one core, and two were no faster than one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

STEPS = 11
REPEATS = 3
VOCABULARY, CONTEXT, ROWS = 4096, 128, 4
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
SMALL, LARGE = 1024, 1 << 20  # numbers in the tensors that measure collectives; a block of the 10M gpt has 1.2 million
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
    from chainrule.training.placement import Sharded, Whole, place
    from chainrule.training.process import return_freed_memory
    from chainrule.types import Batch, Sequences

    def trained(model: Any, placement: Any) -> Callable[[], tuple[float, float]]:
        """A function that takes an optimizer step, and returns its seconds and those of the optimizer."""
        settings = TrainConfig(optimizer="adamw", parallel=parallel)  # type: ignore[arg-type]
        placement = placement or place(model, settings, processes)
        learner = WholeSequences(model, Likelihood(), placement=placement)
        optimizers = build_optimizers(model, settings)
        batch = Batch(Sequences.full(torch.randint(VOCABULARY, (rows, CONTEXT))))

        def step() -> tuple[float, float]:
            began = time.perf_counter()
            learner.gradient(batch)
            computed = time.perf_counter()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            ended = time.perf_counter()
            return ended - began, ended - computed

        return step

    def seconds_of(call: Callable[[], object]) -> float:
        processes.wait()
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def gather(part: torch.Tensor) -> None:
        dist.all_gather_into_tensor(torch.empty(len(part) * processes.world), part)  # FSDP allocates it each time, too

    def scatter(whole: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(torch.empty(len(whole) // processes.world), whole)

    def collectives() -> dict[str, list[Callable[[], object]]]:
        """Each with a small and a large tensor."""
        found: dict[str, list[Callable[[], object]]] = {kind: [] for kind in COLLECTIVES}
        for size in (SMALL, LARGE):
            found["all_reduce"].append(partial(dist.all_reduce, torch.ones(size)))
            found["all_gather"].append(partial(gather, torch.ones(size // processes.world)))
            found["reduce_scatter"].append(partial(scatter, torch.ones(size)))
        return found

    def without_communication(model: Any) -> Any:
        """The placement of a step of one process: for FSDP, sharded over itself, with all its copies."""
        if parallel == "ddp":
            return Whole(model)
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (processes.world, 1), mesh_dim_names=("all", "one"))
        return Sharded(model, processes, mesh["one"])

    torch.set_num_threads(threads)
    if parallel == "fsdp":
        return_freed_memory()
    with joined(torch.device("cpu")) as processes:
        trained(build("gpt", shape(64, 1)), None)()  # libraries are loaded before the memory is counted
        before = resident("VmRSS")
        step = trained(build("gpt", shape(width, layers)), None)
        began, waited = time.perf_counter(), waiting()
        seconds = [step()[0] for _ in range(STEPS)]
        waited = (waiting() - waited) / (time.perf_counter() - began)
        peak = resident("VmHWM") - before
        found: dict[str, Any] = {"memory": peak, "tokens": rows * CONTEXT, "waited": waited}
        if processes.world > 1:  # in turn, so that all have the same share of the machine
            single = build("gpt", shape(width, layers))
            single_step = trained(single, without_communication(single))
            singles: list[tuple[float, float]] = []
            times: dict[str, list[list[float]]] = {}
            seconds = []
            for _ in range(STEPS):
                processes.wait()
                singles.append(single_step())
                seconds.append(seconds_of(step))
                for name, calls in collectives().items():
                    times.setdefault(name, []).append([seconds_of(call) for call in calls])
            found["single"], found["optimizer"] = (median(column[1:]) for column in zip(*singles, strict=True))
            for name, pairs in times.items():
                latency, large = (median(column[1:]) for column in zip(*pairs, strict=True))
                found[name] = [latency, 4 * (LARGE - SMALL) / max(1e-9, large - latency)]
        found["seconds"] = median(seconds[1:])
        if processes.first:
            print(json.dumps(found))


def waiting() -> float:
    """Seconds in which this process was ready and had no core."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def shape(width: int, layers: int) -> dict[str, int]:
    return {"vocabulary": VOCABULARY, "context": CONTEXT, "width": width, "layers": layers, "heads": width // 64}


def resident(name: str) -> int:
    """VmRSS, the memory of this process, or VmHWM, its peak; in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measure(
    size: str, *, processes: int = 1, rows: int = ROWS, parallel: str = "ddp", threads: int = 1
) -> dict[str, Any]:
    """Start the processes and return what the first one prints."""
    width, layers = SIZES[size]
    arguments = [__file__, "--worker", *map(str, (width, layers, rows, parallel, threads))]
    command = [sys.executable, *arguments]
    if processes > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += arguments
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def speeds() -> dict[str, float]:
    """Tokens per second on a batch of 4 * ROWS rows, and the ratios to one process with two threads."""
    found = {"1 thread": 0.0, "2 threads": 0.0, "2 processes": 0.0, "4 processes": 0.0}
    waited = dict.fromkeys(found, 1.0)
    for _ in range(REPEATS):
        for name in found:
            count, kind = int(name[0]), name[2:]
            processes, threads = (1, count) if kind.startswith("thread") else (count, 1)
            one = measure("10M", processes=processes, rows=4 * ROWS // processes, threads=threads)
            found[name] = max(found[name], processes * one["tokens"] / one["seconds"])
            waited[name] = min(waited[name], one["waited"])
    ratios = {f"ratio, {name}": found[name] / found["2 threads"] for name in ("2 processes", "4 processes")}
    return found | ratios | {f"waited, {name}": share for name, share in waited.items()}


def steps(about: Any) -> dict[str, Any]:
    """Measured and simulated seconds of a step of a 10M gpt."""
    from chainrule.training.collectives import Collective, Network
    from chainrule.training.planning import communicating_step

    found: dict[str, Any] = {}
    for processes in (2, 4):
        for parallel in ("ddp", "fsdp"):
            one = measure("10M", processes=processes, parallel=parallel)
            network = Network(**{kind: Collective(*one[kind]) for kind in COLLECTIVES}, overlaps=False)
            spared = one["optimizer"] * (1 - 1 / processes) if parallel == "fsdp" else 0.0
            simulated = communicating_step(one["single"] - spared, about, parallel, 1, network)
            found[f"{processes} {parallel}"] = {
                "measured": one["seconds"], "simulated": simulated.seconds, "compute": simulated.compute,
                "communication": simulated.communication, "ratio": simulated.seconds / one["seconds"],
                "waited": one["waited"], "MB/s": {kind: one[kind][1] / 1e6 for kind in COLLECTIVES},
            }  # fmt: skip
    return found


def memory(sizes: list[str]) -> dict[str, Any]:
    """Predicted and measured peak memory of one process, in bytes."""
    from chainrule.config import TrainConfig
    from chainrule.training.planning import activation_bytes, shape_of, state_bytes

    found: dict[str, Any] = {}
    for size in sizes:
        about = shape_of(shape(*SIZES[size]))
        states = state_bytes(about, "ddp", 1, TrainConfig(optimizer="adamw"))
        predicted = states + activation_bytes(about, ROWS, half=False)
        measured = measure(size)["memory"]
        found[size] = {"parameters": about.parameters, "predicted": predicted, "measured": measured,
                       "ratio": predicted / measured}  # fmt: skip
    return found


def sharding(size: str) -> dict[str, float]:
    """Peak memory of a process of two, in bytes."""
    peaks = {parallel: measure(size, processes=2, rows=1, parallel=parallel)["memory"] for parallel in ("ddp", "fsdp")}
    return {**peaks, "ratio": peaks["ddp"] / peaks["fsdp"]}


def main() -> None:
    from chainrule.training.planning import shape_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model only")
    parser.add_argument("--only", choices=["memory", "sharding", "speed", "steps"], help="measure nothing else")
    options = parser.parse_args()
    parts: dict[str, Callable[[], Any]] = {
        "memory": lambda: memory(["10M"] if options.quick else list(SIZES)),
        "sharding": lambda: sharding("10M" if options.quick else "50M"),
        "speed": speeds,
        "steps": lambda: steps(shape_of(shape(*SIZES["10M"]))),
    }
    chosen = list(parts) if options.only is None else [options.only]
    print(json.dumps({name: parts[name]() for name in chosen}, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    else:
        main()
