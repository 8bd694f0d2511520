"""A text for models of its words: word2vec."""

from __future__ import annotations

from typing import Any, final

from chainrule.config import RunConfig
from chainrule.data.batching import Chunks
from chainrule.interface.base import SparseUpdates, Trainable
from chainrule.material.base import Lessons
from chainrule.material.encoders import EncoderMaterial
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter

LINE_END = "\n"


@final
class WordMaterial(EncoderMaterial):
    """Texts as words between line ends and the ends of documents."""

    @property
    def vocabularies(self) -> dict[str, Any]:
        ends = [self.tokenizer.eos]
        if (line_end := self.tokenizer.encode(LINE_END).tolist()) and line_end != [self.tokenizer.unknown]:
            ends += line_end[:1] if len(line_end) == 1 else []
        return super().vocabularies | {"unknown": self.tokenizer.unknown, "ends": ends}

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        assert isinstance(model, SparseUpdates)
        feed = Chunks(self.corpus, config.train.batch_tokens, model.noise_width, config.seed)
        return Lessons(feed, WholeSequences)
