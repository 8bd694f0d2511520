"""A text for models that fill gaps: spans are cut out of it as it is read, and are to be written again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import numpy as np

from chainrule.config import RunConfig
from chainrule.data.batching import cut_documents
from chainrule.data.corpus import Corpus, Prepared, Tokens
from chainrule.data.permutation import draw
from chainrule.data.spans import Corrupted, Corruption
from chainrule.interface.base import Trainable
from chainrule.material.base import HeldOut, Lessons
from chainrule.material.encoders import text_feed
from chainrule.material.text import OneText
from chainrule.models.t5 import SENTINELS, T5Config
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter

COUNTED = 1 << 17  # tokens of the training text whose gaps show how frequent each token is in a target
SEED = 0  # of the gaps in held-out text, whatever the seed of the run: so that runs compare


@final
class SpanMaterial(OneText):
    """Texts to restore, each span from what stands around it.

    Held-out text has the same gaps in every run, and its figures are about what was cut out: nats per token of the
    targets, bits per byte of the text that is hidden.
    """

    def __init__(self, prepared: Prepared, config: RunConfig) -> None:
        super().__init__(prepared, config)
        words, sentinels = self.tokenizer.vocabulary, config.model.get("sentinels", SENTINELS)
        self._sizes = {"vocabulary": words + sentinels, "source_vocabulary": words + sentinels}
        settings = T5Config.parse({**config.model, **self._sizes}, where="model")
        self.corruption = Corruption(
            sentinels=range(words, words + sentinels),
            eos=self.tokenizer.eos,
            share=settings.corruption_rate,
            mean=settings.mean_span_length,
        )
        self.length = self._fitting(settings.context, config.train.segment)
        self.watched = self._with_gaps(self.held_out["validation"], config.train.validate_tokens)
        self.held_out = {split: self._with_gaps(held) for split, held in self.held_out.items()}
        self.corpus = self._with_gaps(HeldOut(prepared.train, None, "training"), COUNTED).corpus

    @property
    def vocabularies(self) -> dict[str, int]:
        return self._sizes

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        texts = text_feed(self.prepared.train, self.length, config.train, config.seed)
        return Lessons(Corrupted(texts, self.corruption, config.seed), WholeSequences)

    def _fitting(self, context: int, wanted: int | None) -> int:
        """Tokens of a text whose source and target both fit, closed by EOS: a gap may be as long as its sentinel."""
        length = min(wanted or context, context - 1)
        while sum(self.corruption.counts(length)) + 1 > context:
            length -= 1
        return length

    def _with_gaps(self, held: HeldOut, tokens: int | None = None) -> HeldOut:
        """A text, or its first tokens, as pairs in memory."""
        pairs = [
            self.corruption.corrupt(piece, draw(SEED, 0, f"spans of piece {number}"))
            for number, piece in enumerate(self._pieces(held.corpus, tokens))
        ]
        vocabulary = self._sizes["vocabulary"]
        targets = Corpus.of_rows([pair.target for pair in pairs], vocabulary)
        hidden = [self.tokenizer.decode(span) for pair in pairs for span in self.corruption.spans_of(pair)]
        return held._replace(
            corpus=replace(
                targets,
                bytes=sum(len(text.encode()) for text in hidden),
                characters=sum(map(len, hidden)),
                words=sum(len(text.split()) for text in hidden),
            ),
            source=Corpus.of_rows([pair.source for pair in pairs], vocabulary),
        )

    def _pieces(self, corpus: Corpus, tokens: int | None) -> Iterator[Tokens]:
        """The text in rows as long as those of training."""
        limit = min(len(corpus), tokens or len(corpus))
        edges = np.array([0, limit]) if corpus.offsets is None else np.asarray(corpus.offsets)
        starts, lengths = cut_documents(edges, self.length)
        for start, length in zip(starts[starts < limit], lengths[starts < limit], strict=True):
            yield corpus.tokens[start : start + length]
