"""Sentences and the tags of their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, final

import numpy as np

from chainrule.config import RunConfig
from chainrule.data.batching import by_length
from chainrule.data.conllu import END_OF_WORD, prepare_tagged
from chainrule.data.examples import PreparedExamples
from chainrule.decoding.beam import beam_search
from chainrule.evaluation.labels import LabelScore
from chainrule.interface.base import Trainable
from chainrule.material.base import Lessons
from chainrule.material.examples import ExampleMaterial
from chainrule.models.tagger import Tagger
from chainrule.runs import Run, TagRun
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Record, Reporter
from chainrule.types import Sequences

KNOWN_FROM = 2  # times that a word must stand in the training data; rarer ones show what unknown words are like
TAGGED = 300  # validation sentences that are tagged at each validation


@final
class TagMaterial(ExampleMaterial):
    """Tags to predict from words."""

    def __init__(self, prepared: PreparedExamples) -> None:
        super().__init__(prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings)
        self.labels = prepared.labels
        self.separator = int(self.tokenizer.encode(END_OF_WORD)[0])
        counts = Counter(
            word.tobytes()
            for row in prepared.train.source.documents()
            for word in np.split(np.asarray(row, np.int32), np.flatnonzero(np.asarray(row) == self.separator) + 1)
            if len(word)
        )
        self.known = sorted(word for word, count in counts.items() if count >= KNOWN_FROM)

    @classmethod
    def open(cls, config: RunConfig, stored: RunFolder | None) -> TagMaterial:
        """Read the data; a run that goes on has its characters and its tags already."""
        known = None if stored is None else stored.tokenizer()
        labels = () if stored is None else stored.config().model.get("labels", ())
        return cls(prepare_tagged(config.data, config.tokenizer, tokenizer=known, labels=labels))

    @property
    def vocabularies(self) -> dict[str, Any]:
        return {
            "vocabulary": len(self.labels),
            "source_vocabulary": self.tokenizer.vocabulary,
            "labels": self.labels,
            "separator": self.separator,
            "words": len(self.known),
        }

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        assert isinstance(model, Tagger)
        if self.known:
            words = Sequences.pack([np.frombuffer(word, np.int32).tolist() for word in self.known])
            model.spelled.know(words.to(model.device))
        return super().lessons(model, config, reporter)

    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        """The share of right tags in the first validation sentences, each tag chosen after those before it."""
        assert isinstance(model, Tagger)
        pairs = [
            (source.tolist(), target.tolist()) for source, target in islice(self.splits["validation"].ids(), TAGGED)
        ]

        def figures() -> Record:
            right = 0
            for group in by_length([len(source) for source, _ in pairs], 64, config.train.batch_tokens * 4):
                sources, targets = zip(*(pairs[row] for row in group), strict=True)
                lengths = [len(target) for target in targets]
                found = beam_search(
                    model, [[]] * len(group), width=1, length=lengths, source=Sequences.pack(sources, model.device)
                )
                for (one, *_), target in zip(found, targets, strict=True):
                    right += sum(tag == wanted for tag, wanted in zip(one.ids, target, strict=True))
            return {"valid_accuracy": right / sum(len(target) for _, target in pairs)}

        return figures

    def compare(self, run: Run, split: str, progress: Callable[[float], None]) -> LabelScore:
        assert isinstance(run, TagRun)
        return run.compare(self.splits[split], progress=progress)
