"""Training of word vectors against gensim: words per second, and the quality of the vectors.

    python benchmarks/word2vec.py --text wikitext-2/train.txt.gz [--text …] [--algorithm skip_gram|cbow] [--words 0]
        [--epochs 5] [--threads 1] [--analogies questions-words.txt] [--pairs wordsim353.tsv] [--clock wall|cpu]
        [--methods gensim,numba,products] [--rounds 1] [--seed 0] [--rate R] [--noise N] [--json]

Both train on the same words (those with at least 5 occurrences) and lines, with the same width, window, number of
negatives, subsampling threshold, epochs, threads and linear schedule from the default rate of the algorithm. Only
training is timed: the text is in memory, the vocabulary built and Numba's code compiled. `--words N` repeats or
truncates the texts to N words. A training is long, so each is timed once; `--rounds` takes the median of several,
interleaved. On a machine with other load, `--clock cpu` measures the processor time of all threads.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from chainrule.config import TrainConfig
from chainrule.data.batching import Chunks, Position
from chainrule.data.corpus import Corpus
from chainrule.evaluation.embeddings import (
    WordVectors,
    read_analogies,
    read_similarities,
    score_analogies,
    score_similarities,
)
from chainrule.models.word2vec import UpdateStep, Word2Vec, Word2VecConfig, compiled_step, matrix_step
from chainrule.objectives import Noise
from chainrule.training.schedule import rate
from timing import CLOCKS, Work, seconds

RATES = {"skip_gram": 0.025, "cbow": 0.075}
"""Ours. Gensim uses 0.025, its default, for both; its gradient of CBOW is larger by the number of context words."""
GENSIM_RATE = 0.025
MIN_COUNT = 5  # occurrences of a word


class Text(NamedTuple):
    """Sentences as words, and the same text as token ids: 0 ends a line, 1 is an unknown word."""

    words: list[str]
    sentences: list[list[str]]
    tokens: np.ndarray


def read(paths: list[Path], count: int) -> Text:
    lines = [line.split() for path in paths for line in _open(path) if line.strip()]
    if count:
        total = sum(map(len, lines))
        lines *= -(-count // total)
        ends = np.cumsum([len(line) for line in lines])
        lines = lines[: int(np.searchsorted(ends, count)) + 1]
    counts = Counter(word for line in lines for word in line)
    del counts["<unk>"]
    words = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    ids = {word: index for index, word in enumerate(words, start=2)}
    tokens = np.array([index for line in lines for index in (*(ids.get(word, 1) for word in line), 0)])
    return Text(words, [[word for word in line if word in ids] for line in lines], tokens)


def _open(path: Path) -> list[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.readlines()


class Training(NamedTuple):
    """Word vectors, ready to be trained."""

    run: Work
    vectors: Callable[[], WordVectors]


def common_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"width": arguments.width, "window": 5, "negatives": 5, "subsample": 1e-3}


def ours(text: Text, arguments: argparse.Namespace, make_step: Callable[[Word2Vec], UpdateStep]) -> Training:
    vocabulary = len(text.words) + 2
    corpus = Corpus.of_tokens(text.tokens, vocabulary)
    learning_rate = arguments.rate or RATES[arguments.algorithm]
    settings = TrainConfig.parse({**Word2Vec.recipe, "learning_rate": learning_rate})
    torch.manual_seed(arguments.seed)
    model = Word2Vec(
        Word2VecConfig(
            vocabulary=vocabulary,
            algorithm=arguments.algorithm,
            noise=arguments.noise,
            unknown=1,
            ends=(0,),
            **common_settings(arguments),
        )
    )
    model.init_output_bias(Noise(corpus.counts(vocabulary)).unigram_logits)
    step, feed = make_step(model), Chunks(corpus, settings.batch_tokens, model.noise_width, seed=arguments.seed)
    steps = feed.batches_per_epoch(0)

    def run() -> None:
        for epoch in range(arguments.epochs):
            for index in range(steps):
                fraction = rate(settings, (epoch * steps + index) / (arguments.epochs * steps))
                step(model.sample_windows(*feed.batch(Position(epoch, index))), fraction * settings.learning_rate)

    return Training(run, lambda: WordVectors(text.words, model.inputs.detach().numpy()[2:]))


def peer(text: Text, arguments: argparse.Namespace) -> Training:
    from gensim.models import Word2Vec as Gensim

    settings = common_settings(arguments)
    model = Gensim(
        vector_size=settings["width"],
        window=settings["window"],
        negative=settings["negatives"],
        sample=settings["subsample"],
        sg=int(arguments.algorithm == "skip_gram"),
        workers=arguments.threads,
        alpha=arguments.rate or GENSIM_RATE,
        min_count=1,
        seed=1 + arguments.seed,
    )
    model.build_vocab(text.sentences)
    return Training(
        lambda: model.train(text.sentences, total_examples=model.corpus_count, epochs=arguments.epochs),
        lambda: WordVectors(model.wv.index_to_key, model.wv.vectors),
    )


def quality(vectors: WordVectors, arguments: argparse.Namespace) -> dict[str, float | None]:
    """Scores on the given evaluation files."""
    found: dict[str, float | None] = {}
    if arguments.pairs is not None:
        found["spearman"] = score_similarities(vectors, read_similarities(arguments.pairs)).spearman
    if arguments.analogies is not None:
        found["analogies"] = score_analogies(vectors, read_analogies(arguments.analogies)).total.accuracy
    return found


def measured(text: Text, arguments: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Each method in each round, from new vectors."""
    methods: dict[str, Callable[[], Training]] = {
        "gensim": lambda: peer(text, arguments),
        "numba": lambda: ours(text, arguments, lambda model: compiled_step(model, threads=arguments.threads)),
        "products": lambda: ours(text, arguments, matrix_step),
    }
    chosen = [name for name in methods if name in arguments.methods]
    words = arguments.epochs * sum(map(len, text.sentences))
    clock = CLOCKS[arguments.clock]
    times: dict[str, list[float]] = {name: [] for name in chosen}
    rows: dict[str, dict[str, float | None]] = {}
    for _ in range(arguments.rounds):
        for name in chosen:
            training = methods[name]()
            times[name].append(seconds(training.run, clock))
            rows[name] = {
                "words_per_second": words / statistics.median(times[name]),
                **quality(training.vectors(), arguments),
            }
    for name in chosen:
        pairs = zip(times[chosen[0]], times[name], strict=True)
        rows[name]["ratio"] = statistics.median(first / own for first, own in pairs)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, action="append", required=True, help="text file, plain or .gz; repeatable")
    parser.add_argument("--words", type=int, default=0, help="repeat or truncate the texts to N words; 0: as they are")
    parser.add_argument("--algorithm", choices=RATES, default="skip_gram")
    parser.add_argument("--methods", default="gensim,numba,products", help="which to measure, comma-separated")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, help="initial learning rate of both; by default that of each method")
    parser.add_argument("--noise", type=int, help="noise words per word; by default that of the model")
    parser.add_argument("--analogies", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the sum over all threads")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    text = read(arguments.text, arguments.words)
    words, vocabulary = sum(map(len, text.sentences)), len(text.words)
    _compile()
    rows = measured(text, arguments)
    if arguments.json:
        about = {"threads": arguments.threads, "clock": arguments.clock, "words": words, "vocabulary": vocabulary}
        print(json.dumps({**about, "algorithm": arguments.algorithm, "rows": rows}, indent=2))
        return
    print(f"{arguments.algorithm}, {words:,} words, vocabulary of {vocabulary:,}, {arguments.epochs} epochs")
    print(f"{arguments.threads} thread(s), {arguments.clock} clock")
    print(f"{'':12}{'words/s':>12}{'ratio':>8}{'WordSim':>10}{'analogies':>11}")
    for name, row in rows.items():
        scores = (f"{row[score]:.3f}" if row.get(score) is not None else "–" for score in ("spearman", "analogies"))
        similarity, analogies = scores
        print(f"{name:12}{row['words_per_second']:12,.0f}{row['ratio']:8.2f}{similarity:>10}{analogies:>11}")


def _compile() -> None:
    """Let Numba compile, which it does at the first call."""
    for algorithm in RATES:
        model = Word2Vec(Word2VecConfig(vocabulary=4, width=4, algorithm=algorithm))
        compiled_step(model)(model.sample_windows(np.array([2, 3]), np.zeros((2, model.noise_width))), 0.0)


if __name__ == "__main__":
    main()
