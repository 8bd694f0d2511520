"""Training and cached greedy decoding of `gpt` in the GPT-2 layout against Hugging Face's GPT2LMHeadModel.

    python benchmarks/gpt.py [--threads 1] [--repeats 5] [--sizes 0.87M 10.9M 23M] [--json]

Both sides have the same weights, exchanged through a Hugging Face folder, and must give the same logits before timing
starts. Training is forward, cross entropy and backward on rows of 256 tokens. Decoding generates 200 tokens after BOS,
by `chainrule.decoding.generation` and by `GPT2LMHeadModel.generate`. Timing is by interleaved rounds (see timing.py).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
import transformers

from chainrule.decoding.generation import generate_tokens
from chainrule.decoding.sampling import GREEDY
from chainrule.interop.huggingface import read_gpt2
from chainrule.models.gpt import GPT
from chainrule.types import Batch, Sequences
from timing import compare_speed, set_threads

BOS = 0
SEGMENT = 256  # tokens per row in training
GENERATED = 200  # tokens per row in decoding
BATCHES = (1, 16)


class Size(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int


SIZES = {"0.87M": Size(4, 128, 4, 65), "10.9M": Size(6, 384, 6, 65), "23M": Size(6, 512, 8, 8000)}


class Measurement(NamedTuple):
    size: str
    task: str
    batch: int
    ours: float  # tokens per second
    transformers: float
    ratio: float


def same_models(size: Size) -> tuple[GPT, Any]:
    """The same random model in both libraries."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=512,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=BOS,
        eos_token_id=None,
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = read_gpt2(Path(folder))
    ids = torch.randint(size.vocabulary, (2, 64))
    with torch.no_grad():
        torch.testing.assert_close(our_logits(ours, ids), their_logits(theirs, ids), rtol=0, atol=1e-4)
        assert generate_ours(ours, 1, 20) == generate_theirs(theirs, 1, 20)
    return ours, theirs


def our_logits(model: GPT, ids: torch.Tensor) -> torch.Tensor:
    return model.logits(Batch(Sequences.full(ids)))


def their_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    inputs = torch.cat([torch.full_like(ids[:, :1], BOS), ids[:, :-1]], dim=1)
    return model(inputs, use_cache=False).logits


def train(model: torch.nn.Module, logits: Callable[[Any, torch.Tensor], torch.Tensor], ids: torch.Tensor) -> None:
    model.train().zero_grad()
    F.cross_entropy(logits(model, ids).flatten(0, 1), ids.flatten()).backward()
    model.eval()


def generate_ours(model: GPT, rows: int, length: int) -> list[list[int]]:
    generated = generate_tokens(model, [[]] * rows, length=length, sampling=GREEDY, seeds=range(rows))
    return [row.ids for row in generated]


def generate_theirs(model: Any, rows: int, length: int) -> list[list[int]]:
    start = torch.full((rows, 1), BOS)
    generated = model.generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=length, do_sample=False, pad_token_id=BOS
    )
    return generated[:, 1:].tolist()


def measure(name: str, repeats: int) -> list[Measurement]:
    ours, theirs = same_models(SIZES[name])
    found = []
    for rows in BATCHES:
        ids = torch.randint(SIZES[name].vocabulary, (rows, SEGMENT))
        speeds = compare_speed(
            lambda ids=ids: train(ours, our_logits, ids),
            lambda ids=ids: train(theirs, their_logits, ids),
            ids.numel(),
            repeats,
        )
        found.append(Measurement(name, "training", rows, *speeds))
    for rows in BATCHES:
        speeds = compare_speed(
            lambda rows=rows: generate_ours(ours, rows, GENERATED),
            lambda rows=rows: generate_theirs(theirs, rows, GENERATED),
            rows * GENERATED,
            repeats,
        )
        found.append(Measurement(name, "decoding", rows, *speeds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found = [row for name in arguments.sizes for row in measure(name, arguments.repeats)]
    if arguments.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        rows = [row._asdict() for row in found]
        print(json.dumps({"threads": arguments.threads, **versions, "rows": rows}, indent=2))
        return
    print(
        f"{arguments.threads} thread(s), torch {torch.__version__}, transformers {transformers.__version__}; tokens/s"
    )
    print(f"{'size':8}{'task':10}{'batch':>6}{'chainrule':>12}{'transformers':>14}{'ratio':>8}")
    for size, task, batch, ours, theirs, ratio in found:
        print(f"{size:8}{task:10}{batch:6}{ours:12,.0f}{theirs:14,.0f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
