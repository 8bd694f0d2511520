"""Training of word vectors against gensim: words per second, and what the vectors know.

    python benchmarks/word2vec.py --text wikitext-2/train.txt.gz [--text …] [--algorithm skip_gram|cbow] [--words 0]
        [--epochs 5] [--threads 1] [--analogies questions-words.txt] [--pairs wordsim353.tsv] [--clock wall|cpu]
        [--ways gensim,numba,products] [--turns 1] [--seed 0] [--rate R] [--noise N] [--json]

Both learn from the same words (those that come up at least 5 times) between the same line ends, with the same width,
window, number of negatives, threshold of subsampling, epochs, threads and linear schedule from the rate that is usual
for the algorithm. What is measured is the training alone, of a text that is in memory, after the vocabulary is known
and Numba has compiled. `--words N` repeats or cuts the texts to N words. A figure is of one training each, since a
training is long; `--turns` takes the median of several, in turns. On a machine that others use as well, `--clock cpu`
counts the processor time of all threads instead of the time on the wall.
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
from turns import CLOCKS, Work, seconds

RATES = {"skip_gram": 0.025, "cbow": 0.075}
"""Of ours. Gensim has 0.025 for both, its own default; its gradient of cbow is larger by the number of words around."""
GENSIM_RATE = 0.025
LEAST = 5  # occurrences of a word


class Text(NamedTuple):
    """Sentences by word, and the same as tokens: 0 ends a line, 1 is an unknown word."""

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
    words = [word for word, count in counts.most_common() if count >= LEAST]
    ids = {word: index for index, word in enumerate(words, start=2)}
    tokens = np.array([index for line in lines for index in (*(ids.get(word, 1) for word in line), 0)])
    return Text(words, [[word for word in line if word in ids] for line in lines], tokens)


def _open(path: Path) -> list[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.readlines()


class Training(NamedTuple):
    """Vectors that are about to be trained."""

    run: Work
    vectors: Callable[[], WordVectors]


def same(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"width": arguments.width, "window": 5, "negatives": 5, "subsample": 1e-3}


def ours(text: Text, arguments: argparse.Namespace, way: Callable[[Word2Vec], UpdateStep]) -> Training:
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
            **same(arguments),
        )
    )
    model.init_output_bias(Noise(corpus.counts(vocabulary)).unigram_logits)
    learn, feed = way(model), Chunks(corpus, settings.batch_tokens, model.noise_width, seed=arguments.seed)
    steps = feed.batches_per_epoch(0)

    def run() -> None:
        for epoch in range(arguments.epochs):
            for index in range(steps):
                share = rate(settings, (epoch * steps + index) / (arguments.epochs * steps))
                learn(model.sample_windows(*feed.batch(Position(epoch, index))), share * settings.learning_rate)

    return Training(run, lambda: WordVectors(text.words, model.inputs.detach().numpy()[2:]))


def peer(text: Text, arguments: argparse.Namespace) -> Training:
    from gensim.models import Word2Vec as Gensim

    settings = same(arguments)
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


def knowledge(vectors: WordVectors, arguments: argparse.Namespace) -> dict[str, float | None]:
    """What the files that were given have to say."""
    found: dict[str, float | None] = {}
    if arguments.pairs is not None:
        found["spearman"] = score_similarities(vectors, read_similarities(arguments.pairs)).spearman
    if arguments.analogies is not None:
        found["analogies"] = score_analogies(vectors, read_analogies(arguments.analogies)).total.accuracy
    return found


def measured(text: Text, arguments: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Each way in each turn, from new vectors on."""
    ways: dict[str, Callable[[], Training]] = {
        "gensim": lambda: peer(text, arguments),
        "numba": lambda: ours(text, arguments, lambda model: compiled_step(model, threads=arguments.threads)),
        "products": lambda: ours(text, arguments, matrix_step),
    }
    chosen = [name for name in ways if name in arguments.ways]
    words = arguments.epochs * sum(map(len, text.sentences))
    clock = CLOCKS[arguments.clock]
    times: dict[str, list[float]] = {name: [] for name in chosen}
    rows: dict[str, dict[str, float | None]] = {}
    for _ in range(arguments.turns):
        for name in chosen:
            training = ways[name]()
            times[name].append(seconds(training.run, clock))
            rows[name] = {
                "words_per_second": words / statistics.median(times[name]),
                **knowledge(training.vectors(), arguments),
            }
    for name in chosen:
        pairs = zip(times[chosen[0]], times[name], strict=True)
        rows[name]["ratio"] = statistics.median(first / own for first, own in pairs)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", type=Path, action="append", required=True, help="a text file, perhaps .gz; repeatable"
    )
    parser.add_argument("--words", type=int, default=0, help="repeat or cut the texts to so many words; 0: as they are")
    parser.add_argument("--algorithm", choices=RATES, default="skip_gram")
    parser.add_argument("--ways", default="gensim,numba,products", help="which to measure, by commas")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, help="where the rate begins, for both; by default what is usual for each")
    parser.add_argument("--noise", type=int, help="words of noise for each word; by default the model's own")
    parser.add_argument("--analogies", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: that of all threads together")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
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
    print(f"{arguments.algorithm}, {words:,} words, {vocabulary:,} different ones, {arguments.epochs} epochs")
    print(f"{arguments.threads} thread(s), {arguments.clock} clock")
    print(f"{'':12}{'words/s':>12}{'ratio':>8}{'WordSim':>10}{'analogies':>11}")
    for name, row in rows.items():
        scores = (f"{row[score]:.3f}" if row.get(score) is not None else "–" for score in ("spearman", "analogies"))
        known, right = scores
        print(f"{name:12}{row['words_per_second']:12,.0f}{row['ratio']:8.2f}{known:>10}{right:>11}")


def _compile() -> None:
    """Numba compiles when a function is called for the first time."""
    for algorithm in RATES:
        model = Word2Vec(Word2VecConfig(vocabulary=4, width=4, algorithm=algorithm))
        compiled_step(model)(model.sample_windows(np.array([2, 3]), np.zeros((2, model.noise_width))), 0.0)


if __name__ == "__main__":
    main()
