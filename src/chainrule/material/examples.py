"""What is short and said of a text: what the materials of labels, tags and answers have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from chainrule.config import DataConfig, RunConfig, Settings
from chainrule.data.batching import Pairs
from chainrule.data.corpus import Tokens
from chainrule.data.parallel import PairedCorpus
from chainrule.errors import ConfigError
from chainrule.features.encoders import EmbedderVectors
from chainrule.interface.base import Trainable
from chainrule.interface.capabilities import FitsStatistics
from chainrule.interface.conditional import Conditional
from chainrule.material.base import HeldOut, Lessons, Material
from chainrule.runs import Run
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Reporter


class ExampleMaterial(Material):
    """Targets to predict from texts. `tokenizer` is that of the texts."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        train: PairedCorpus,
        held_out: Mapping[str, PairedCorpus],
        names: Mapping[str, str],
        warnings: tuple[str, ...],
        embedder: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer, self.train, self.splits, self.warnings = tokenizer, train, dict(held_out), warnings
        self.embedder = embedder or {}  # settings of the run that reads for a new model
        self.corpus = train.target
        self.held_out = {split: HeldOut(pairs.target, pairs.source, names[split]) for split, pairs in held_out.items()}
        self.watched = self.held_out["validation"]

    @property
    def bytes_per_token(self) -> None:
        """A label is no text."""
        return

    def settings(self, config: DataConfig) -> DataConfig:
        return config.model_copy(update={"unit": "documents"})

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        assert isinstance(model, Conditional)
        if self.embedder:
            take_encoder(model, config.model["encoder_run"])
        if isinstance(model, FitsStatistics):
            train, *held_out = (self._cut(pairs, model.source_context) for pairs in (self.train, *self.splits.values()))
            progress = partial(reporter.preparing, "features of the texts")
            model.fit_statistics(train, held_out=chain.from_iterable(held_out), progress=progress)
        feed = Pairs(self.train, config.train.batch_tokens, config.seed, longest=(model.source_context, model.context))
        if feed.left_out:
            reporter.note(
                f"{feed.left_out:,} of {self.train.pairs:,} training examples have more tokens than the model can read "
                "and are left out"
            )
        return Lessons(feed, WholeSequences)

    def _cut(self, pairs: PairedCorpus, limit: int | None) -> Iterable[tuple[Tokens, Tokens]]:
        """Pairs with as much of each source as the model can read."""
        return ((source[:limit], target) for source, target in pairs.ids())

    @abstractmethod
    def compare(self, run: Run, split: str, progress: Callable[[float], None]) -> Settings:
        """The score of a run on a split."""

    def score(self, run: Run, reporter: Reporter) -> None:
        for split, pairs in self.splits.items():
            reporter.begin(f"scoring the {split} data")
            try:
                result = self.compare(run, split, lambda share: reporter.update(share, {}))
            finally:
                reporter.end()
            run.keep_score(result, pairs.target, self.held_out[split].name, split=split)

    def reversed(self) -> NoReturn:
        raise ConfigError("labels, tags and answers are not read from their end; leave out the direction")


def encoder_tokenizer(config: RunConfig) -> Tokenizer | None:
    """The tokenizer that comes with the encoder; none where the encoder is learned here."""
    if (folder := config.model.get("features")) is not None:
        return HuggingFace.read(Path(folder) / "tokenizer.json")
    if (run := config.model.get("encoder_run")) is not None:
        return RunFolder(Path(run)).tokenizer()
    return None


def embedder_settings(config: RunConfig) -> dict[str, Any]:
    """What the settings of a new model say of the run that reads for it."""
    if (run := config.model.get("encoder_run")) is None:
        return {}
    stored = RunFolder(Path(run)).config()
    return {"embedder": {"family": stored.family, **stored.model}}


def take_encoder(model: Trainable, run: str) -> None:
    """Give a new model the weights of the run that reads for it."""
    for part in model.children():
        if isinstance(part, EmbedderVectors):
            RunFolder(Path(run)).read_weights(part.model)
