"""Realistic results of a comparison: eight models on a small prose text, with synthetic surprisals."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from chainrule.comparison.analysis import analyse, count_words, interval
from chainrule.comparison.results import BudgetCurve, ComparisonResults, ComparisonRow, FailedFamily, LearningPoint
from chainrule.tokenizers.chars import Chars

SUBJECTS = ("the old keeper", "my sister", "a grey heron", "the ferryman", "no one in the village", "the schoolmaster")
VERBS = ("watched", "had long forgotten", "would not speak of", "mended", "drew a map of", "walked out to")
OBJECTS = ("the lighthouse", "the harbour wall", "the winter road", "her father's boat", "the mill", "the far shore")
ENDINGS = (
    " before the rain came.",
    ", and said so.\n",
    " while the lamps were lit;",
    ".",
    " as if it were Sunday.\n\n",
    "!",
)

SUMMARIES = {
    "mixture": "a weighted mean of the models below, gated by context",
    "gpt": "a Transformer decoder with rotary positions",
    "recurrent": "an LSTM with tied embeddings",
    "self_regressive": "two LSTMs, the second of which reads the expected embedding of the first",
    "attentive_conv": "self-attention over local convolutions",
    "causal_conv": "gated dilated causal convolutions",
    "ngram": "interpolated modified Kneser–Ney",
    "finite_memory": "one network over the last few tokens",
}
BITS = dict(zip(SUMMARIES, (2.021, 2.118, 2.147, 2.161, 2.234, 2.281, 2.317, 2.604), strict=True))
TRAINED = tuple(name for name in SUMMARIES if name not in ("mixture", "ngram"))


def prose(sentences: int, seed: int) -> str:
    """Random sentences in the style of a novel."""
    draw = np.random.default_rng(seed)
    parts = []
    for _ in range(sentences):
        words = " ".join(choices[draw.integers(len(choices))] for choices in (SUBJECTS, VERBS, OBJECTS))
        parts.append(words[0].upper() + words[1:] + ENDINGS[draw.integers(len(ENDINGS))] + " ")
    return "".join(parts)


@pytest.fixture(scope="session")
def tokenizer() -> Chars:
    return Chars.train(None, lambda: [prose(400, seed=1)])


def surprisal(name: str, text: str, seed: int) -> npt.NDArray[np.float64]:
    """(N,) nats: higher at the start of words, with passages that are easier for this model."""
    draw = np.random.default_rng(seed)
    starts = np.array([1.0, *(3.2 if before.isspace() else 0.6 for before in text[:-1])])
    difficulty = np.repeat(draw.gamma(8.0, 1 / 8.0, size=len(text) // 60 + 1), 60)[: len(text)]
    nats = starts * difficulty * draw.gamma(1.2, 1.0, size=len(text))
    scaled: npt.NDArray[np.float64] = nats * (BITS[name] * math.log(2) / nats.mean())
    return scaled


def _row(name: str, nats: npt.NDArray[np.float64], order: int) -> ComparisonRow:
    seconds = 0.0 if name == "mixture" else 1.9 if name == "ngram" else 72.0 + order
    steps = np.geomspace(1.5, seconds, 24) if name in TRAINED else []
    return ComparisonRow(
        name=name,
        kind="mixture" if name == "mixture" else "family",
        summary=SUMMARIES[name],
        run=f"runs/{name}",
        settings={"width": 192, "layers": 4, "dropout": 0.1} if name in TRAINED else {},
        parts={"gpt": 0.46, "ngram": 0.29, "recurrent": 0.21, "causal_conv": 0.04} if name == "mixture" else {},
        parameters=(3_411_000, 1_812_480, 1_204_736, 1_398_016, 955_136, 872_448, 482_311, 151_040)[order],
        nats_per_token=BITS[name] * math.log(2),
        bits_per_byte=BITS[name],
        interval=interval(nats, len(nats)),
        perplexity=2 ** BITS[name],
        word_perplexity=2 ** (5.6 * BITS[name]),
        accuracy=0.55,
        train_tokens=1_003_854,
        train_tokens_per_second=0.0
        if name == "mixture"
        else (0, 41_200, 62_900, 33_800, 38_100, 57_300, 1.1e6, 149e3)[order],
        decode_tokens_per_second=(410, 1_450, 3_120, 1_310, 1_280, 1_390, 21_400, 5_240)[order],
        seconds=seconds,
        memory_bytes=(0, 612, 540, 566, 580, 571, 310, 420)[order] * 10**6,
        curve=[
            LearningPoint(
                seconds=float(at),
                tokens=int(at * 50_000),
                bits_per_byte=float(BITS[name] + 2.6 / (1 + at / 3) - 2.6 / (1 + seconds / 3)),
            )
            for at in steps
        ],
        sample=prose(9, seed=100 + order),
    )


@pytest.fixture(scope="session")
def results(tokenizer: Chars) -> ComparisonResults:
    text = prose(160, seed=7)
    ids = tokenizer.encode(text)
    nats = {name: surprisal(name, text, seed) for seed, name in enumerate(SUMMARIES)}
    nats["mixture"] = 0.25 * (nats["gpt"] + nats["recurrent"] + nats["ngram"] + nats["mixture"])
    nats["mixture"] *= BITS["mixture"] * math.log(2) / nats["mixture"].mean()
    training = tokenizer.encode(prose(400, seed=1) + "lighthouse " * 2000)
    return ComparisonResults(
        data="novel.txt",
        tokenizer="chars",
        command="chainrule compare --data novel.txt --tokenizer chars --minutes 10 --threads 2 --out novel-comparison",
        version="0.1.0",
        created="2025-03-01T12:00:00+00:00",
        machine="x86_64, 2 processors, 2 threads for each model",
        budget="10 minutes in all, 75 s for each family",
        threads=2,
        train_tokens=1_003_854,
        held_out_bytes=len(text),
        rows=[_row(name, nats[name], order) for order, name in enumerate(SUMMARIES)],
        failures=[FailedFamily(name="pixelcnn", reason="width 130 is not divisible by heads 4; try 128 or 132")],
        best="mixture",
        recommendation=(
            "Pick the mixture of gpt, ngram, recurrent and causal_conv: 2.021 bits/byte, 4.6% fewer than gpt, the best "
            "single family. If speed matters, pick recurrent: it decodes 7.6 times as fast at 6.2% more bits."
        ),
        protocol={
            "training_data": "novel.txt",
            "test_data": "the last 0.1 of novel.txt",
            "interval": "95 %, circular block bootstrap over the test text",
            "random_seed": 0,
            "scoring": {
                "gpt": {"method": "windows", "context": 256, "stride": 128, "carry_over": False},
                "ngram": {"method": "carried", "carry_over": True},
            },
        },
        analysis=analyse(nats, ids, tokenizer, count_words(training, tokenizer), leading=["gpt", "recurrent", "ngram"]),
    )


@pytest.fixture(scope="session")
def budget_curve() -> BudgetCurve:
    return BudgetCurve(
        data="novel.txt",
        command="chainrule compare --data novel.txt --minutes 20 --budget-curve --out novel-budgets",
        minutes=[0.5, 1, 2, 5, 10, 20],
        bits_per_byte={
            "ngram": [2.317, 2.317, 2.317, 2.317, 2.317, 2.317],
            "recurrent": [2.61, 2.42, 2.29, 2.19, 2.147, 2.131],
            "gpt": [2.83, 2.55, 2.34, 2.2, 2.118, 2.061],
            "causal_conv": [2.74, 2.51, 2.38, 2.31, 2.281, 2.266],
            "self_regressive": [None, 2.6, 2.39, 2.23, 2.161, 2.14],
        },
        leaders=["ngram", "ngram", "recurrent", "recurrent", "gpt", "gpt"],
        recommendation=(
            "Best single family by total budget: ngram at 0.5 to 1 min, recurrent at 2 to 5 min, gpt at 10 to 20 min."
        ),
    )
