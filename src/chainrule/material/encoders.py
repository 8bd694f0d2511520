"""A text for models that read it whole and learn by an objective of their own: elmo, bert."""

from __future__ import annotations

from typing import final

from chainrule.config import RunConfig, TrainConfig
from chainrule.data.batching import Documents, Feed, Windows
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.evaluation.objective import objective_score
from chainrule.interface.base import Model, OwnObjective, Trainable
from chainrule.material.base import Lessons
from chainrule.material.text import OneText
from chainrule.runs import Run
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter
from chainrule.types import Batch

SEGMENT = 64  # tokens of a stream in a row, for models that have no context
SPECIAL = {"[CLS]": "start", "[SEP]": "end", "[MASK]": "mask"}  # of a BERT's own vocabulary -> settings of bert


def row_length(model: Model, settings: TrainConfig) -> int:
    """Tokens that are read together at most."""
    length = settings.segment or model.context or SEGMENT
    if model.context is not None and length > model.context:
        raise ConfigError(
            f"train.segment {length} is longer than model.context {model.context}; lower the one or raise the other"
        )
    return length


def text_feed(corpus: Corpus, length: int, settings: TrainConfig, seed: int) -> Feed[Batch]:
    """Documents, or windows of a stream, that begin afresh in every row."""
    if corpus.unit == "documents":
        return Documents(corpus, settings.batch_tokens, length, seed)
    return Windows(corpus, max(1, settings.batch_tokens // length), length, seed)


class EncoderMaterial(OneText):
    """Texts to read as a whole."""

    @property
    def bytes_per_token(self) -> None:
        return None

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        length = row_length(model, config.train)
        return Lessons(text_feed(self.corpus, length, config.train, config.seed), WholeSequences)

    def validate(self, model: Trainable, settings: TrainConfig) -> float:
        assert isinstance(model, OwnObjective)
        length = row_length(model, settings)
        return objective_score(
            model, self.watched.corpus, length=length, tokens=settings.validate_tokens
        ).nats_per_token

    def score(self, run: Run, reporter: Reporter) -> None:
        assert isinstance(run.model, OwnObjective)
        length = row_length(run.model, run.config.train)
        for split, (corpus, _, name) in self.held_out.items():
            reporter.begin(f"scoring the {split} data")
            try:
                result = objective_score(
                    run.model, corpus, length=length, progress=lambda share: reporter.update(share, {})
                )
            finally:
                reporter.end()
            run.keep_score(result, corpus, name, split=split)


@final
class ClozeMaterial(EncoderMaterial):
    """... some tokens of which are hidden."""

    @property
    def vocabularies(self) -> dict[str, int]:
        """A vocabulary that was made for a BERT has ids for what is no text; any other gets some past its end."""
        sizes, tokenizer = super().vocabularies, self.tokenizer
        if not isinstance(tokenizer, HuggingFace):
            return sizes
        own = {setting: tokenizer.id_of(name) for name, setting in SPECIAL.items()}
        return sizes | {setting: place for setting, place in own.items() if place is not None}
