"""Questions, passages and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from chainrule.config import RunConfig
from chainrule.data.squad import PreparedQuestions, prepare_squad
from chainrule.evaluation.reading import ReadingScore
from chainrule.interface.base import Trainable
from chainrule.material.examples import ExampleMaterial, embedder_settings, encoder_tokenizer
from chainrule.runs import ReadingRun, Run
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Record


@final
class ReadingMaterial(ExampleMaterial):
    """Spans to predict from questions and passages."""

    def __init__(self, prepared: PreparedQuestions, embedder: Mapping[str, Any]) -> None:
        super().__init__(
            prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings, embedder
        )
        self.questions, self._places = prepared.questions, prepared.cutter.length

    @classmethod
    def open(cls, config: RunConfig, stored: RunFolder | None) -> ReadingMaterial:
        """Read the data; a run that goes on has its vocabulary already."""
        known = encoder_tokenizer(config) if stored is None else stored.tokenizer()
        prepared = prepare_squad(config.data, config.tokenizer, tokenizer=known, seed=config.seed)
        return cls(prepared, embedder_settings(config) if stored is None else {})

    @property
    def vocabularies(self) -> dict[str, Any]:
        return {
            "vocabulary": self._places + 1,
            "source_vocabulary": self.tokenizer.vocabulary,
            "separator": self.tokenizer.eos,
            **self.embedder,
        }

    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        return dict

    def compare(self, run: Run, split: str, progress: Callable[[float], None]) -> ReadingScore:
        assert isinstance(run, ReadingRun)
        return run.compare(self.questions[split], self.splits[split], progress=progress)
