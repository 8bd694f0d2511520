"""Word vectors: one vector for each word, whatever its context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from chainrule.config import RunConfig
from chainrule.data.batching import Chunks
from chainrule.evaluation.embeddings import (
    RESTRICTED,
    AnalogyScore,
    SimilarityScore,
    WordVectors,
    is_analogies,
    read_analogies,
    read_similarities,
    score_analogies,
    score_similarities,
)
from chainrule.interop.word2vec import named_vectors
from chainrule.models.word2vec import Word2Vec
from chainrule.tasks.base import Task
from chainrule.tasks.embeddings import EmbeddingRun, EncoderData
from chainrule.tasks.text import prepare_text
from chainrule.tasks.training_data import TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Fraction, Reporter, shown_fraction

LINE_END = "\n"


@dataclass(frozen=True, kw_only=True, repr=False)
class WordVectorRun(EmbeddingRun[Word2Vec]):
    """A model with one vector for each word. It also embeds texts, by their words."""

    model_type = Word2Vec
    does = "has a vector for each word"
    use = "chainrule words {run} nearest WORD"

    @cached_property
    def vectors(self) -> WordVectors:
        """All words with their vectors, for nearest neighbours and analogies."""
        return WordVectors(*named_vectors(self.model, self.tokenizer))

    def score_words(
        self, path: Path, *, restricted: int = RESTRICTED, progress: Fraction | bool | None = True
    ) -> AnalogyScore | SimilarityScore:
        """Score a file of analogies (questions-words) or of word pairs with similarities (WordSim-353)."""
        if is_analogies(path):
            with shown_fraction(progress, "scoring") as report:
                return score_analogies(self.vectors, read_analogies(path), restricted=restricted, progress=report)
        return score_similarities(self.vectors, read_similarities(path))


@final
class WordVectorData(EncoderData[Word2Vec, WordVectorRun]):
    """Text as words, cut at line ends and at the ends of documents."""

    model_type = Word2Vec
    run_type = WordVectorRun

    @property
    def model_settings(self) -> dict[str, Any]:
        ends = [self.tokenizer.eos]
        if (line_end := self.tokenizer.encode(LINE_END).tolist()) and line_end != [self.tokenizer.unknown]:
            ends += line_end[:1] if len(line_end) == 1 else []
        return super().model_settings | {"unknown": self.tokenizer.unknown, "ends": ends}

    def batches(self, model: Word2Vec, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        feed = Chunks(self.corpus, config.train.batch_tokens, model.noise_width, config.seed)
        return TrainingBatches(feed, WholeSequences)


class WordVectorsTask(Task):
    """Static vectors of words."""

    run = WordVectorRun
    missing_data = "no training data was given; name a file, a folder, builtin:prose or hub:NAME with --data"

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> WordVectorData:
        return WordVectorData(prepare_text(config, reporter, stored), config)
