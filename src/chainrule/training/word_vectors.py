"""Training of word vectors: the general loop, with steps of its own.

A step touches a few rows of two large tables, and a million words pass in a second: gradients as large as the tables,
and an optimizer that goes through all of them, would take many times as long (docs/adr/0015-word-vectors.md). So a step
here reads a stretch of text and moves the vectors at once, by plain gradient descent as published. Budget, schedule,
validation, records, saving and resuming are those of `training.loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import torch

from chainrule.data.batching import Feed, Position
from chainrule.data.corpus import Corpus
from chainrule.models.word2vec import Numbers, Word2Vec
from chainrule.nn.negative_sampling import Integers, Lesson
from chainrule.training.learner import Loss
from chainrule.training.loop import Trainer
from chainrule.training.progress import Record
from chainrule.training.word_steps import learn_by_products

Learn = Callable[[Lesson, float], float]
"""Move the vectors by a lesson at a rate, and give the loss."""


class Stretch(NamedTuple):
    """A piece of the text, and what chance makes of it."""

    ids: Integers  # (N,)
    chance: Numbers  # (N, 2 + C), see `Word2Vec.lesson`


@final
class Stretches(Feed[Stretch]):
    """The text from its beginning to its end, so that whatever its size only a piece is held in memory."""

    def __init__(self, corpus: Corpus, size: int, chances: int, seed: int) -> None:
        super().__init__(seed, rank=0, world=1)
        self.corpus, self.size, self.chances = corpus, size, chances

    def batches_per_epoch(self, epoch: int) -> int:
        return -(-len(self.corpus) // self.size)

    def batch(self, position: Position) -> Stretch:
        begin = position.index * self.size
        ids = self.corpus.tokens[begin : begin + self.size].astype(np.int64)
        return Stretch(ids, np.random.default_rng((self.seed, *position)).random((len(ids), self.chances)))

    def tokens(self, position: Position) -> int:
        return min(self.size, len(self.corpus) - position.index * self.size)


class WordVectorTrainer(Trainer):
    """A run of `word2vec`.

    With one thread a resumed run is bit for bit the uninterrupted one. Compiled steps of several threads do not wait
    for each other, so that no two runs are quite alike.
    """

    def learn(self, batch: Stretch, rate_factor: float) -> Loss:
        assert isinstance(self.model, Word2Vec)
        lesson = self.model.lesson(*batch)
        return Loss(fastest(self.model)(lesson, rate_factor * self.config.learning_rate), len(batch.ids))

    def selection_score(self, nats: float, metrics: Record) -> float:
        """The last weights are the best ones: vectors go on getting better when the loss of new text does not."""
        return -float(self.at.step)


def fastest(model: Word2Vec) -> Learn:
    """Compiled steps where Numba is installed and the vectors are in its reach; else products of matrices."""
    reachable = model.device.type == "cpu" and model.inputs.dtype == torch.float32
    if reachable and find_spec("numba") is not None:
        return compiled(model, threads=torch.get_num_threads())
    return lambda lesson, rate: learn_by_products(model, lesson, rate)


def compiled(model: Word2Vec, *, threads: int = 1) -> Learn:
    """Steps by Numba, in as many threads, each with a part of a lesson."""
    from chainrule.training import word_kernels

    kernel = word_kernels.skip_gram if model.config.algorithm == "skip_gram" else word_kernels.cbow
    inputs, outputs = model.inputs.detach().numpy(), model.outputs.detach().numpy()  # views, not copies

    def learn(lesson: Lesson, rate: float) -> float:
        return float(kernel(inputs, outputs, *lesson, model.config.block, float(model.config.negatives), rate))

    if threads == 1:
        return learn

    def in_parts(lesson: Lesson, rate: float) -> float:
        edges = np.linspace(0, len(lesson.words), threads + 1).astype(int).tolist()
        parts = [lesson.part(begin, end) for begin, end in pairwise(edges)]
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(lambda part: learn(part, rate), parts))

    return in_parts
