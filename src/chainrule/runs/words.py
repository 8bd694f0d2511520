"""Runs of word vectors: which words are alike?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
from chainrule.runs.embeddings import EmbeddingRun


@dataclass(frozen=True, kw_only=True)
class WordRun(EmbeddingRun):
    """A model with one vector for each word. It embeds texts as well, by their words."""

    does = "knows words by their vectors"
    use = "chainrule words {run} nearest WORD"

    @cached_property
    def vectors(self) -> WordVectors:
        """All words with their vectors, for neighbours and analogies."""
        assert isinstance(self.model, Word2Vec)
        return WordVectors(*named_vectors(self.model, self.tokenizer))

    def score_words(
        self, path: Path, *, restricted: int = RESTRICTED, progress: Callable[[float], None] | None = None
    ) -> AnalogyScore | SimilarityScore:
        """Against a file of analogies (questions-words) or of pairs with their similarity (WordSim-353)."""
        if is_analogies(path):
            return score_analogies(self.vectors, read_analogies(path), restricted=restricted, progress=progress)
        return score_similarities(self.vectors, read_similarities(path))
