"""n-gram models against KenLM: scoring, and generation, on the same tables in the same run.

    python benchmarks/ngram.py --train train.txt.gz --test test.txt.gz [--order 5] [--repeats 5] [--tokens 20000]
        [--json]

The model is trained on the words of one text and scores another. KenLM's Python module reads the same model as an ARPA
file, and is asked for the same tokens, one call per token, as its users do; the sums of the scores are compared. Where
KenLM is not installed, ratios are to our own scores. Turns are interleaved; a ratio is the median of the ratios in a
turn. One thread.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chainrule.data.corpus import Corpus
from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.evaluation.likelihood import score
from chainrule.interop.arpa import write_arpa
from chainrule.interop.exchange import token_names
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.tokenizers import train_tokenizer
from chainrule.tokenizers.base import Tokenizer
from chainrule.types import Sequences
from timing import Work, compare_with_first, seconds, set_threads


def read(path: Path) -> str:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return str(file.read())


def trained(text: str, order: int) -> tuple[Tokenizer, NGram, float]:
    """A tokenizer, a model and the seconds of counting and estimating."""
    tokenizer = train_tokenizer("words", lambda: iter([text]))
    tokens = torch.from_numpy(tokenizer.encode(text).astype(np.int64))
    model = NGram(NGramConfig(vocabulary=tokenizer.vocabulary, order=order)).eval()
    began = time.perf_counter()
    model.observe(Sequences.full(tokens[None]))
    model.estimate()
    return tokenizer, model, time.perf_counter() - began


class KenLM:
    """KenLM's Python module on an ARPA file of the model."""

    def __init__(self, model: NGram, names: list[str]) -> None:
        import kenlm

        self._kenlm = kenlm
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.arpa")
            write_arpa(model, names, file)
            unigrams = file.read_text(encoding="utf-8").split("\\1-grams:\n", 1)[1].split("\n", len(names))
            self.words = [line.split("\t")[1] for line in unigrams[: len(names)]]
            self.model = kenlm.Model(str(file))

    def score(self, words: list[str]) -> float:
        """The sum of the log-probabilities, in nats, of a text from its beginning."""
        before, after = self._kenlm.State(), self._kenlm.State()
        self.model.BeginSentenceWrite(before)
        base_score, total = self.model.BaseScore, 0.0
        for word in words:
            total += base_score(before, word, after)
            before, after = after, before
        return total * math.log(10)


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    tokenizer, model, training = trained(read(arguments.train), arguments.order)
    ids = tokenizer.encode(read(arguments.test)).astype(np.int64)
    corpus, row = Corpus.of_tokens(ids, tokenizer.vocabulary), Sequences.full(torch.from_numpy(ids)[None])
    works: dict[str, Work] = {}
    difference = None
    if find_spec("kenlm") is not None:
        peer = KenLM(model, token_names(tokenizer))
        words = [peer.words[index] for index in ids.tolist()]
        ours, theirs = float(model.score_tokens(row).log_probs.double().sum()), peer.score(words)
        difference = abs(ours - theirs) / len(ids)
        works["KenLM"] = lambda: peer.score(words)
    works |= {
        "scores": lambda: model.score_tokens(row),
        "scores and accuracy": lambda: score(model, corpus),
    }
    found: dict[str, Any] = {
        "order": arguments.order,
        "vocabulary": tokenizer.vocabulary,
        "tokens": len(ids),
        "training_seconds": training,
        "difference": difference,
        "scoring": compare_with_first(works, len(ids), arguments.repeats),
    }
    for name, sampling, count in (
        ("greedy", GREEDY, arguments.tokens),
        ("sampled", Sampling(), arguments.tokens // 20),
    ):
        found[name] = count / _generation(model, sampling, count)
    return found


def _generation(model: NGram, sampling: Sampling, count: int) -> float:
    def work() -> None:
        generate_tokens(model, [[5]], length=count, sampling=sampling, seeds=[0])

    work()
    return seconds(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="text file, plain or .gz")
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20_000, help="generated greedily; a twentieth is sampled")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    set_threads(1)
    found = measured(arguments)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(f"order {found['order']}, {found['vocabulary']:,} words, {found['tokens']:,} tokens")
    print(f"counting and estimating {found['training_seconds']:.1f} s")
    print(f"{'':22}{'tokens/s':>12}{'ratio':>8}")
    for name, (speed, ratio) in found["scoring"].items():
        print(f"{name:22}{speed:12,.0f}{ratio:8.2f}")
    for name in ("greedy", "sampled"):
        print(f"{name + ' generation':22}{found[name]:12,.0f}")
    if found["difference"] is not None:
        print(f"scores differ from KenLM's by {found['difference']:.1e} nats/token")


if __name__ == "__main__":
    main()
