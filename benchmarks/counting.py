"""Counting n-grams in bounded memory: MB/s, peak memory, and the time to open the table.

    python benchmarks/counting.py --text wikitext-2/train.txt.gz --megabytes 300 [--memory 2GB] [--order 5]
        [--tokenizer words] [--workers 1,2] [--prune 0,0,1] [--bits 32] [--only encode] [--workplace FOLDER] [--json]
    python benchmarks/counting.py --text wikitext-2/train.txt.gz --megabytes 10000    # 10 GB: 30 GB of disk

The text is the lines of the given ones, repeated in a new random order each time until it has the size. It is encoded
from scratch with each number of workers, tokenizer and validation split included, and counted, smoothed and scored with
`--memory` by each number of workers; one process opens the run and scores a piece of text; each is measured by itself.
CPU seconds are those of the process and its workers. `waited` is how long a process that was ready to run had no core,
at most: other work on the machine, or more processes than cores. Memory is the peak of what the process and its workers
allocated together (anonymous), for each stage, too, and of all that was resident in the process, with mapped parts of
files, which the system can take back. A text of at most --equal megabytes is also trained without a limit, and both
models and their bits/byte are compared; a larger one is trained once, by the largest number of workers. What was
measured so far is written to standard error.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PIECE = "the first of the two parts of the book was published in the same year , and the second in the next .\n" * 50


def write_text(paths: list[Path], size: int, file: Path) -> None:
    lines = [line for path in paths for line in _open(path) if line.strip()]
    order, written = random.Random(0), 0
    with file.open("w", encoding="utf-8") as out:
        while written < size:
            order.shuffle(lines)
            for line in lines:
                written += len(line.encode())
                out.write(line)
                if written >= size:
                    break


def _open(path: Path) -> list[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.readlines()


class Watch(threading.Thread):
    """Watches this process and its workers: their memory in bytes, and the seconds in which they waited for a core."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.anonymous = 0
        self.waited: dict[int, float] = {}
        self.stages: dict[str, dict[str, float]] = {}  # when each ended, and its peak memory
        self.began = time.perf_counter()

    def in_stage(self, name: str) -> None:
        """The work of a stage goes on, or begins."""
        if name not in self.stages:
            self.look()  # what was allocated before has been freed, or is still needed
        self.stages.setdefault(name, {"end": 0.0, "anonymous": 0})["end"] = time.perf_counter() - self.began

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(0.05)

    def look(self) -> None:
        anonymous = 0
        for process in (os.getpid(), *_children()):
            try:
                anonymous += _status("RssAnon", process)
                self.waited[process] = int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
            except (OSError, StopIteration):  # it has ended
                continue
        self.anonymous = max(self.anonymous, anonymous)
        for stage in list(self.stages.values())[-1:]:
            stage["anonymous"] = max(stage["anonymous"], anonymous)


def _children() -> list[int]:
    return [int(child) for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()]


def _status(name: str, process: int | str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def in_process(work: str, **arguments: Any) -> dict[str, Any]:
    """Do one of the works below in a process of its own; its result, with seconds and peak memory."""
    command = [sys.executable, __file__, "--work", work, "--arguments", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(work, {"workers": arguments.get("workers")} | found, file=sys.stderr, flush=True)
    return found


def do(work: str, arguments: dict[str, Any]) -> None:
    import numba  # noqa: F401
    import torch

    import chainrule.api  # noqa: F401

    torch.set_num_threads(1)
    watch = Watch()
    watch.look()
    before = _status("RssAnon")
    watch.start()
    waited = watch.waited[os.getpid()]
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    began = time.perf_counter()
    found = WORKS[work](watch, **arguments)
    seconds = time.perf_counter() - began
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) - cpu
    watch.look()
    watch.waited[os.getpid()] -= waited
    times = {"seconds": seconds, "cpu": used, "waited": max(watch.waited.values())}
    memory = {"anonymous": watch.anonymous, "resident": _status("VmHWM"), "imports": before}
    print(json.dumps({**times, **memory, "stages": watch.stages, **found}))


def encode(watch: Watch, text: str, tokenizer: str, workers: int) -> dict[str, Any]:
    from chainrule.config import DataConfig
    from chainrule.data.corpus import prepare

    data = DataConfig(train=text, valid_fraction=0.01, workers=workers)
    train = prepare(data, tokenizer, progress=lambda stage, done, total: watch.in_stage(stage)).train
    digest = hashlib.sha256(train.tokens[: 1 << 24].data).hexdigest()
    return {"tokens": len(train), "begin": digest}


def train(
    watch: Watch, text: str, tokenizer: str, out: str, memory: str | None, model: dict[str, Any], workers: int
) -> dict[str, Any]:
    import chainrule
    from chainrule.training.progress import Reporter

    class Stages(Reporter):
        name = ""

        def begin(self, label: str) -> None:
            self.name = label
            watch.in_stage(label)

        def update(self, progress: float | None, record: Any) -> None:
            watch.in_stage(self.name)

        def end(self) -> None:
            watch.in_stage(self.name)
            watch.in_stage("after " + self.name)

    settings = {"data": {"valid_fraction": 0.01, "workers": workers}, "model": model}
    run = chainrule.train(
        "ngram", data=text, tokenizer=tokenizer, out=out, memory=memory, settings=settings, reporter=Stages()
    )
    weights = Path(out, "model.safetensors")
    with weights.open("rb") as file:  # in pieces: it is not to count as memory of the training
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    scores = run.folder.records("scores.jsonl")
    return {
        "n-grams": run.model.sizes,
        "table": weights.stat().st_size,
        "sha256": digest,
        "bits_per_byte": scores[-1]["bits_per_byte"],
    }


def open_run(watch: Watch, out: str) -> dict[str, Any]:
    import chainrule

    began = time.perf_counter()
    run = chainrule.load(out)
    opened = time.perf_counter()
    run.score(text=PIECE, progress=False)
    return {"open": opened - began, "first_score": time.perf_counter() - opened}


WORKS = {"encode": encode, "train": train, "open": open_run}


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    text = folder / "text.txt"
    write_text(arguments.text, arguments.megabytes * 10**6, text)
    size = text.stat().st_size / 1e6
    model = {"order": arguments.order, "bits": arguments.bits, "prune": arguments.prune}
    shared = {"text": str(text), "tokenizer": arguments.tokenizer}
    found: dict[str, Any] = {"megabytes": size, "memory": arguments.memory, **model}
    found["encode"] = {}
    for workers in arguments.workers:
        shutil.rmtree(os.environ["CHAINRULE_CACHE"], ignore_errors=True)
        found["encode"][workers] = in_process("encode", **shared, workers=workers)
    found["train"] = {}
    equal = arguments.megabytes <= arguments.equal
    if arguments.only == "encode":
        return found
    for workers in arguments.workers if equal else [max(arguments.workers)]:
        shutil.rmtree(folder / "run", ignore_errors=True)
        limits = {"memory": arguments.memory, "model": model, "workers": workers}
        found["train"][workers] = in_process("train", **shared, out=str(folder / "run"), **limits)
    found["open"] = in_process("open", out=str(folder / "run"))
    if equal:
        found["unlimited"] = in_process(
            "train", **shared, out=str(folder / "free"), memory=None, model=model, workers=1
        )
    return found


def show(found: dict[str, Any]) -> None:
    size = found["megabytes"]
    encoded = found["encode"]
    tokens = {(row["tokens"], row["begin"]) for row in encoded.values()}
    count = " or ".join(f"{count:,}" for count, _ in sorted(tokens))
    print(f"{size:,.0f} MB, {count} tokens, order {found['order']}, --memory {found['memory']}")
    print(f"{'':18}{'seconds':>10}{'CPU':>9}{'waited':>9}{'MB/s':>8}{'allocated MB':>14}{'resident MB':>13}")
    rows = {
        f"{work}, {workers} worker{'s' * (workers > 1)}": row
        for work in ("encode", "train")
        for workers, row in found[work].items()
    }
    if (free := found.get("unlimited")) is not None:
        rows["without a limit"] = free
    for name, row in rows.items():
        memory = f"{row['anonymous'] / 1e6:14,.0f}{row['resident'] / 1e6:13,.0f}"
        times = f"{row['seconds']:10.1f}{row['cpu']:9.1f}{row['waited']:9.1f}"
        print(f"{name:18}{times}{size / row['seconds']:8.1f}{memory}")
    for name, row in rows.items():
        stages = (
            f"{stage} until {one['end']:.1f} s, {one['anonymous'] / 1e6:,.0f} MB"
            for stage, one in row["stages"].items()
        )
        print(f"{name}: " + "; ".join(stages))
    print(f"tokens with every number of workers: {'the same' if len(tokens) == 1 else 'DIFFERENT'}")
    trained = list(found["train"].values())
    if not trained:
        return
    imports = trained[0]["imports"] / 1e6
    print(f"of the allocated memory, Python, torch and Numba take {imports:,.0f} MB")
    train, opened = trained[0], found["open"]
    print(f"{sum(train['n-grams']):,} n-grams, a table of {train['table'] / 1e6:,.0f} MB")
    print(f"opened in {opened['open']:.2f} s, the first score in {opened['first_score']:.2f} s more")
    every = trained if free is None else [*trained, free]
    same = "the same" if len({row["sha256"] for row in every}) == 1 else "DIFFERENT"
    scores = ", ".join(str(row["bits_per_byte"]) for row in every)
    print(f"bits/byte {scores}{'; the last without a limit' * (free is not None)}; {same} bit for bit")


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, action="append", help="text file, plain or .gz; repeatable")
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--equal", type=int, default=300, help="largest text that is also counted without a limit")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--tokenizer", default="words")
    parser.add_argument("--workers", type=numbers, default=[1, 2], help="numbers of processes, separated by commas")
    parser.add_argument("--prune", type=numbers, default=[])
    parser.add_argument("--bits", type=int, choices=[16, 32], default=32)
    parser.add_argument("--workplace", type=Path, help="folder for text, cache and runs; by default a temporary one")
    parser.add_argument("--only", choices=["encode"], help="count nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--work", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        do(arguments.work, json.loads(arguments.arguments))
        return
    if not arguments.text:
        parser.error("give --text FILE")
    with tempfile.TemporaryDirectory(dir=arguments.workplace) as name:
        os.environ["CHAINRULE_CACHE"] = str(Path(name, "cache"))
        found = measured(arguments, Path(name))
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
