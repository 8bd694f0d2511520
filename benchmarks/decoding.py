"""Greedy decoding of a GPT-2 against its peers, with the same weights in one run: transformers and CTranslate2.

    python benchmarks/decoding.py [--threads 1] [--repeats 5] [--sizes 0.87M 10.9M 23M] [--batch 1 16] [--json]

All sides have the same weights, exchanged through a Hugging Face folder, and generate 200 tokens after BOS. Float32 on
all sides must give the same tokens before timing starts. Turns are interleaved (see timing.py). Each round also
measures the read speed of one core, the bound of a step at batch 1, which reads every weight once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import ctranslate2
import numpy as np
import torch
import transformers

from chainrule.kernels.quantization import quantized
from chainrule.models.gpt import GPT
from gpt import BOS, SIZES, generate_ours, generate_theirs, same_models
from timing import Work, set_threads, time_rounds

GENERATED = 200  # tokens per row
BATCHES = (1, 16)
OURS, OURS_INT8, TRANSFORMERS = "chainrule", "chainrule int8", "transformers"
PEER, PEER_INT8, READING = "CTranslate2", "CTranslate2 int8", "reading"
AGAINST = {OURS: (TRANSFORMERS, PEER), OURS_INT8: (PEER_INT8,)}
READ_BYTES = 256 << 20


class Measurement(NamedTuple):
    size: str
    batch: int
    speeds: dict[str, float]  # tokens per second
    ratios: dict[str, float]  # median of the ratios within a round
    read_gigabytes: float  # per second, by one core
    read_share: float | None  # of the time of a float32 step at batch 1, what reading the weights takes at that speed


def converted(model: Any, folder: Path, quantization: str) -> ctranslate2.Generator:
    """The model in CTranslate2's format."""
    model.save_pretrained(folder)
    vocabulary = {f"t{index}": index for index in range(model.config.vocab_size)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", **{f"{name}_token": f"t{BOS}" for name in ("bos", "eos", "unk")}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    target = folder / quantization
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(target), quantization=quantization)
    threads = torch.get_num_threads()
    return ctranslate2.Generator(str(target), compute_type=quantization, inter_threads=1, intra_threads=threads)


def generate_peer(generator: ctranslate2.Generator, rows: int, length: int) -> list[list[int]]:
    found = generator.generate_batch(
        [[f"t{BOS}"]] * rows, max_length=length, min_length=length, beam_size=1, include_prompt_in_result=False
    )
    return [result.sequences_ids[0] for result in found]


def same_start(model: GPT, generator: ctranslate2.Generator) -> None:
    """CTranslate2 never chooses BOS, which is also its EOS, so the comparison ends there."""
    (ours,), (theirs,) = generate_ours(model, 1, 40), generate_peer(generator, 1, 40)
    count = ours.index(BOS) if BOS in ours else len(ours)
    assert ours[:count] == theirs[:count], "CTranslate2 generates other tokens"


def weight_bytes(model: GPT) -> int:
    """What a step reads: every matrix, but of an embedding or position table only a row."""
    tables = 0 if model.config.shares_embeddings else model.config.rows * model.config.width
    tables += model.config.context * model.config.width  # positions
    return 4 * (sum(parameter.numel() for parameter in model.parameters()) - tables)


def measure(name: str, batches: list[int], repeats: int) -> list[Measurement]:
    ours, theirs = same_models(SIZES[name])
    small = quantized(ours)
    memory = np.ones(READ_BYTES // 4, dtype=np.float32)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        peers = {kind: converted(theirs, Path(folder), kind) for kind in ("float32", "int8")}
        same_start(ours, peers["float32"])
        for rows in batches:
            works: dict[str, Work] = {
                OURS: lambda rows=rows: generate_ours(ours, rows, GENERATED),
                OURS_INT8: lambda rows=rows: generate_ours(small, rows, GENERATED),
                TRANSFORMERS: lambda rows=rows: generate_theirs(theirs, rows, GENERATED),
                PEER: lambda rows=rows: generate_peer(peers["float32"], rows, GENERATED),
                PEER_INT8: lambda rows=rows: generate_peer(peers["int8"], rows, GENERATED),
                READING: memory.max,
            }
            rounds = [dict(zip(works, times, strict=True)) for times in time_rounds(list(works.values()), repeats)]
            found.append(summary(name, rows, rounds, weight_bytes(ours)))
    return found


def summary(name: str, rows: int, rounds: list[dict[str, float]], size: int) -> Measurement:
    speeds = {
        work: rows * GENERATED / statistics.median(times[work] for times in rounds)
        for work in rounds[0]
        if work != READING
    }
    ratios = {
        f"{one} / {other}": statistics.median(times[other] / times[one] for times in rounds)
        for one, others in AGAINST.items()
        for other in others
    }
    read = statistics.median(READ_BYTES / times[READING] for times in rounds)
    share = statistics.median(size / READ_BYTES * times[READING] * GENERATED / times[OURS] for times in rounds)
    return Measurement(name, rows, speeds, ratios, read / 1e9, share if rows == 1 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found = [row for name in arguments.sizes for row in measure(name, arguments.batch, arguments.repeats)]
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "rows": [row._asdict() for row in found]}, indent=2))
        return
    names = list(found[0].speeds)
    print(
        f"{arguments.threads} thread(s); tokens/s, greedy\n{'size':7}{'batch':>6}"
        + "".join(f"{one:>18}" for one in names)
    )
    for row in found:
        print(f"{row.size:7}{row.batch:6}" + "".join(f"{row.speeds[one]:18,.0f}" for one in names))
    for row in found:
        ratios = "; ".join(f"{name} {ratio:.2f}" for name, ratio in row.ratios.items())
        share = "" if row.read_share is None else f"; {row.read_share:.0%} of {row.read_gigabytes:.1f} GB/s"
        print(f"{row.size:7}{row.batch:6}  {ratios}{share}")


if __name__ == "__main__":
    main()
