"""Runs of translation: what is it in the other language?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import RunConfig
from chainrule.data.cleaning import sentence
from chainrule.data.corpus import Corpus
from chainrule.data.parallel import PairedCorpus, PairTokenizers, encode_pairs
from chainrule.data.source import normalisation_of
from chainrule.decoding import Alignment, Search, TranslatedText, Translator
from chainrule.decoding.drafts import Drafter, LookaheadDrafter, ModelDrafter
from chainrule.decoding.translator import BUFFERED_LINES, MAX_SOURCE_TOKENS
from chainrule.errors import ConfigError, DecodingError
from chainrule.evaluation.translation import TranslationScore, score_translations
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.interface.capabilities import is_right_to_left
from chainrule.interface.conditional import ParallelModel
from chainrule.runs.base import TokenRun
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome
from chainrule.types import Sequences


@dataclass(frozen=True, kw_only=True)
class TranslationRun(TokenRun):
    """A model of a target given a source, with the vocabularies of both."""

    does = "translates"
    use = "chainrule translate {run} < my.txt"

    source_tokenizer: Tokenizer

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None) -> Self:
        assert isinstance(model, AutoregressiveModel | ParallelModel)
        return cls(
            folder=folder,
            config=config,
            model=model,
            outcome=outcome,
            tokenizer=folder.tokenizer(),
            source_tokenizer=folder.source_tokenizer(),
        )

    @property
    def tokenizers(self) -> PairTokenizers:
        """The vocabularies of both sides."""
        return PairTokenizers(self.source_tokenizer, self.tokenizer)

    def corpus(
        self, text: str | None, data: str | None, source: str | None = None
    ) -> tuple[Corpus, Corpus | None, str]:
        if (text is None) == (data is None):
            raise ConfigError("give either a text or data to score, and not both")
        pairs = self._pairs(text, data, source)
        corpus = reversed_corpus(pairs.target) if is_right_to_left(self.model) else pairs.target
        return corpus, pairs.source, data or "text"

    def _pairs(self, text: str | None, data: str | None, source: str | None) -> PairedCorpus:
        if text is None:
            assert data is not None
            return encode_pairs(self.config.data, self.tokenizers, data, source)
        if source is None:
            raise ConfigError("a translation is as likely as its source makes it; give the source of the text, too")
        return PairedCorpus.of_pair(self._sentence(source), self._sentence(text), self.tokenizers)

    def encode_source(self, texts: Sequence[str]) -> Sequences:
        """Sources as a model takes them: normalised as in training, each closed by EOS. An empty text is EOS alone."""
        tokenizer = self.tokenizers.source
        return Sequences.pack([[*tokenizer.encode(self._sentence(text)), tokenizer.eos] for text in texts])

    def _sentence(self, text: str) -> str:
        return sentence(text, normalisation_of(self.config.data))

    def translate(
        self,
        texts: str | Iterable[str | TranslatedText],
        search: Search | None = None,
        *,
        batch: int = 32,
        longest: int = MAX_SOURCE_TOKENS,
        copy_unknown: bool = False,
        agree_with: TranslationRun | None = None,
        draft: TranslationRun | str | None = None,
        window: int = BUFFERED_LINES,
    ) -> Iterator[list[TranslatedText]]:
        """The best translations of each text, best first, in the order of the texts; any number of texts may come.

        Empty texts stay empty, and texts of more than `longest` tokens go through as they are: `finished` says so.
        With `agree_with`, what both runs find is ranked by both, say one that writes from left to right and one that
        writes from right to left. A `draft` makes greedy search faster and changes nothing else (see `drafter`).
        """
        return self.translator().translate_stream(
            [texts] if isinstance(texts, str) else texts,
            search or Search(),
            batch=batch,
            longest=longest,
            copy_unknown=copy_unknown,
            agree_with=None if agree_with is None else agree_with.translator(),
            draft=None if draft is None else self.drafter(draft),
            window=window,
        )

    def drafter(self, draft: TranslationRun | str) -> Drafter:
        """Who guesses ahead: "self", what the model has planned from the source alone; or a smaller run."""
        if draft == "self":
            return LookaheadDrafter(self.autoregressive)
        if isinstance(draft, str):
            raise ConfigError(f"the draft is {draft!r}; give a run, or 'self'")
        one_vocabulary = all(
            one.to_json() == other.to_json() for one, other in zip(draft.tokenizers, self.tokenizers, strict=True)
        )
        if not one_vocabulary or is_right_to_left(draft.model) != is_right_to_left(self.model):
            raise DecodingError(
                f"{str(draft.path)!r} has {'another direction' if one_vocabulary else 'other vocabularies'} than "
                f"{str(self.path)!r}, so it cannot draft for it; give a run with the same tokenizers and direction"
            )
        return ModelDrafter(draft.autoregressive)

    def score_translations(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        search: Search | None = None,
        *,
        batch: int = 32,
        target_language: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> TranslationScore:
        """BLEU, chrF and exact match of translations of the sources, and how likely the references are."""
        return score_translations(
            self.translator(),
            sources,
            references,
            search or Search(),
            target_language=target_language or self.config.data.target_language or "",
            batch=batch,
            progress=progress,
        )

    def align(self, source: str, target: str | None = None, *, beam: int = 5) -> Alignment:
        """Where each token of a translation, the model's own unless one is given, has looked in the source."""
        if target is None:
            [[best, *_]] = self.translate(source, Search(beam=beam))
            if best.is_untranslated:
                raise DecodingError(f"the source is {best.finished}; give a sentence that the model can translate")
            target = best.text
        return self.translator().align(source, target)

    def translator(self) -> Translator:
        """The model with the vocabularies of both sides, and texts normalised as in training."""
        source, target = self.tokenizers
        return Translator(self.model, source, target, self._sentence)

    def about(self) -> dict[str, Any]:
        return super().about() | {
            "source": self.config.data.source,
            "distil_from": self.config.data.distil_from,
            "source_vocabulary": self.source_tokenizer.vocabulary,
            "source_tokenizer": self.config.source_tokenizer or self.config.tokenizer,
            "cleaning": self.folder.cleaning(),
            "bleu": next((one for one in reversed(self.folder.records("metrics.jsonl")) if "valid_bleu" in one), None),
        }
