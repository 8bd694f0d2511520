"""A text for models of its words: word2vec."""

from __future__ import annotations

from typing import Any, final

from chainrule.config import RunConfig
from chainrule.interface.base import Trainable
from chainrule.material.base import Lessons
from chainrule.material.encoders import EncoderMaterial
from chainrule.models.word2vec import Word2Vec
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter
from chainrule.training.word_vectors import Stretches

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
        assert isinstance(model, Word2Vec)
        feed = Stretches(self.corpus, config.train.batch_tokens, model.chances, config.seed)
        return Lessons(feed, WholeSequences)
