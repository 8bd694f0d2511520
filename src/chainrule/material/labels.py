"""Texts and their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from chainrule.config import RunConfig
from chainrule.data.examples import PreparedExamples, shortened
from chainrule.data.labelled import prepare_labelled
from chainrule.evaluation.labels import LabelScore
from chainrule.evaluation.likelihood import protocol_for, surprisals
from chainrule.interface.base import AutoregressiveModel, Trainable
from chainrule.interface.conditional import Conditional
from chainrule.material.base import Lessons
from chainrule.material.examples import ExampleMaterial, embedder_settings, encoder_tokenizer
from chainrule.runs import LabelRun, Run
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Record, Reporter


@final
class LabelMaterial(ExampleMaterial):
    """Labels to predict from texts."""

    def __init__(self, prepared: PreparedExamples, embedder: Mapping[str, Any]) -> None:
        super().__init__(
            prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings, embedder
        )
        self.labels = prepared.labels

    @classmethod
    def open(cls, config: RunConfig, stored: RunFolder | None) -> LabelMaterial:
        """Read the data; a run that goes on has its vocabulary and its labels already."""
        known = encoder_tokenizer(config) if stored is None else stored.tokenizer()
        labels = () if stored is None else stored.config().model.get("labels", ())
        prepared = prepare_labelled(config.data, config.tokenizer, tokenizer=known, labels=labels)
        return cls(prepared, embedder_settings(config) if stored is None else {})

    @property
    def vocabularies(self) -> dict[str, Any]:
        return {
            "vocabulary": len(self.labels),
            "source_vocabulary": self.tokenizer.vocabulary,
            "labels": self.labels,
            **self.embedder,
        }

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        """The end of a text that is too long is not read: most of what it is about stands before it."""
        assert isinstance(model, Conditional)
        if model.source_context is not None:
            self.train, long = shortened(self.train, model.source_context)
            if long:
                reporter.note(f"of {long:,} training texts only the first {model.source_context:,} tokens are read")
        return super().lessons(model, config, reporter)

    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        """The share of validation labels that are the model's first choice."""
        assert isinstance(model, AutoregressiveModel)
        corpus, source, _ = self.watched

        def figures() -> Record:
            protocol = protocol_for(model, corpus, tokens=config.train.validate_tokens)
            return {"valid_accuracy": float(surprisals(model, corpus, protocol, source=source).hits.mean())}

        return figures

    def compare(self, run: Run, split: str, progress: Callable[[float], None]) -> LabelScore:
        assert isinstance(run, LabelRun)
        return run.compare(self.splits[split], progress=progress)
