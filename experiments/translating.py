"""Translation in the experiments: the pairs, the translations of a run, and BLEU with intervals."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from chainrule.data.builtin import date_pairs
from chainrule.decoding import Search
from claims import Interval
from measuring import Setting

BLEU_UNIT = "BLEU"
DRAWS = 1000
TOKENIZER = "bpe:4000"  # shared by both languages


@dataclass(frozen=True)
class Pairs:
    """Parallel data: the options that train on it, and sources with references to validate and to test with."""

    options: dict[str, Any]
    valid: tuple[list[str], list[str]]
    test: tuple[list[str], list[str]]

    def validation(self, count: int) -> tuple[list[str], list[str]]:
        return self.valid[0][:count], self.valid[1][:count]

    def held_out(self, count: int) -> tuple[list[str], list[str]]:
        return self.test[0][:count], self.test[1][:count]


def pairs(setting: Setting) -> Pairs:
    """Multi30k, English to German; with --quick, built-in dates."""
    if setting.quick:
        valid, test = (
            tuple(list(side) for side in zip(*date_pairs()[split], strict=True)) for split in ("validation", "test")
        )
        return Pairs({"data": "builtin:dates"}, valid, test)
    folder = setting.data("multi30k")
    options = {"source": str(folder / "train.en.gz"), "target": str(folder / "train.de.gz"), "tokenizer": TOKENIZER}
    options |= {"valid_source": str(folder / "val.en.gz"), "valid_target": str(folder / "val.de.gz")}
    return Pairs(options, _sides(folder, "val"), _sides(folder, "test_2016_flickr"))


def _sides(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """The lines of both sides of a split of Multi30k."""
    english, german = (
        gzip.decompress((folder / f"{name}.{language}.gz").read_bytes()).decode().splitlines()
        for language in ("en", "de")
    )
    return english, german


def translations(run: Any, sources: Sequence[str], search: Search) -> list[str]:
    return [found[0].text for found in run.translate(sources, search)]


@cache
def _metric() -> BLEU:
    return BLEU(effective_order=True)


def _statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(N, 10): matched and all n-grams of each order, and the lengths of both sides, by sentence."""
    rows = []
    for one, other in zip(hypotheses, references, strict=True):
        found = _metric().sentence_score(one.strip(), [other.strip()])
        rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
    return np.array(rows)


def _bleu(statistics: np.ndarray) -> float:
    total = statistics.sum(0).tolist()
    return float(BLEU.compute_bleu(total[:4], total[4:8], total[8], total[9], smooth_method="exp").score)


def _draws(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(count, size=(DRAWS, count))


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return _bleu(_statistics(hypotheses, references))


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Interval:
    """BLEU of the corpus, with the interval by resampling sentences."""
    rows = _statistics(hypotheses, references)
    low, high = np.quantile([_bleu(rows[draw]) for draw in _draws(len(rows))], (0.025, 0.975))
    return Interval(_bleu(rows), float(low), float(high))


def bleu_gain(first: Sequence[str], second: Sequence[str], references: Sequence[str]) -> Interval:
    """BLEU of the first less that of the second, by paired resampling of sentences (Koehn, 2004)."""
    one, other = _statistics(first, references), _statistics(second, references)
    found = [_bleu(one[draw]) - _bleu(other[draw]) for draw in _draws(len(one))]
    low, high = np.quantile(found, (0.025, 0.975))
    return Interval(_bleu(one) - _bleu(other), float(low), float(high))
