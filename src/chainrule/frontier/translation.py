"""Translation workload: greedy search, beam search, speculative decoding and parallel decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from chainrule.data.cache import fingerprint
from chainrule.decoding import Search, TranslatedText
from chainrule.decoding.drafts import Drafter
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.translation import corpus_scores, metrics
from chainrule.frontier.workload import (
    BRANCHES,
    DecodedItem,
    DecodingMethod,
    Quality,
    Workload,
    distinct_names,
    gammas_of,
    run_descriptions,
    run_identity,
)
from chainrule.interface.capabilities import BlockPredictor
from chainrule.interface.conditional import ParallelModel
from chainrule.tasks.translation import TranslationRun

PASSES = (1, 2, 4, 10)
QUALITY_BATCH = 16  # batch size where speed is not measured
GREEDY = "greedy"


class Sentences(NamedTuple):
    """Source sentences with their reference translations."""

    sources: list[str]
    references: list[str]
    language: str  # of the references; "" if unknown


class TranslationMethod(DecodingMethod):
    """Translation by one search, with or without a draft, which does not change the output."""

    def __init__(
        self,
        run: str,
        opened: TranslationRun,
        sentences: Sentences,
        label: str,
        search: Search,
        draft: TranslationRun | str | None = None,
    ) -> None:
        super().__init__(run, opened.config.family, label, reference=None if draft is None else GREEDY)
        self.opened, self.sentences, self.search, self.draft = opened, sentences, search, draft
        self.translator = opened.translator()

    def decode(self, items: Sequence[int], batch: int) -> list[DecodedItem]:
        found = self._translate([self.sentences.sources[item] for item in items], batch)
        return [DecodedItem(best.text, best.tokens) for best in found]

    def measure_quality(self) -> Quality:
        sources, references, language = self.sentences
        metrics(language)  # raises before the work if sacrebleu is missing
        texts = [best.text for best in self._translate(sources, QUALITY_BATCH)]
        found: dict[str, Any] = corpus_scores(texts, references, target_language=language)
        return Quality(
            metrics={"BLEU": found["bleu"], "chrF": found["chrf"]},
            signatures={"BLEU": found["bleu_signature"], "chrF": found["chrf_signature"]},
        )

    def _translate(self, texts: Sequence[str], batch: int) -> list[TranslatedText]:
        found = self.translator.translate_texts(texts, self.search, batch=batch, draft=self._drafter)
        return [best for best, *_ in found]

    @cached_property
    def _drafter(self) -> Drafter | None:
        return None if self.draft is None else self.opened.drafter(self.draft)


class TranslationWorkload(Workload):
    """Sentences to translate, with their references."""

    item, throughput = "sentence", "sentences"
    metric, higher_is_better = "BLEU", True

    def __init__(
        self,
        runs: Sequence[TranslationRun],
        sources: Sequence[str],
        references: Sequence[str],
        *,
        beam: int = 5,
        passes: Sequence[int] = PASSES,
        draft: TranslationRun | None = None,
        limit: int | None = None,
        gammas: Sequence[float] = BRANCHES,
    ) -> None:
        """Use the first `limit` sentences, or all of them."""
        if len(sources) != len(references):
            raise DataError(f"got {len(sources)} sources and {len(references)} references; give one reference to each")
        if not sources:
            raise DataError("the file of sources is empty; give at least one line")
        if not passes or min(passes) < 1:
            raise ConfigError(f"numbers of passes must be at least 1 (got {list(passes)}); for example 1,2,4,10")
        self.runs, self.names = runs, distinct_names(runs)
        language = next(filter(None, (run.config.data.target_language for run in runs)), "")
        self.sentences = Sentences(list(sources[:limit]), list(references[:limit]), language)
        self.size = len(self.sentences.sources)
        self.beam, self.draft = beam, draft
        self.methods = [
            TranslationMethod(name, run.with_gamma(gamma), self.sentences, label, search, drafting)
            for name, run in zip(self.names, runs, strict=True)
            for gamma in gammas_of(run, gammas)
            for label, search, drafting in self._searches(run, gamma, passes)
        ]

    def _searches(
        self, run: TranslationRun, gamma: float | None, passes: Sequence[int]
    ) -> Iterator[tuple[str, Search, TranslationRun | str | None]]:
        """The decoding methods of a run: label, search and draft. Drafts are for the learned γ of a hybrid."""
        model = run.model
        if gamma is not None:
            for label, search in self._searches_at(gamma):
                yield f"γ {gamma:g}, {label}", search, None
            return
        if isinstance(model, ParallelModel):
            if model.fixed_schedule is not None:
                yield model.fixed_schedule, Search(), None
                return
            for count in passes if model.default_budget.passes > 1 else [1]:
                yield f"{count} pass{'es' if count > 1 else ''}", Search(passes=count, beam=1), None
            if self.beam > 1 and model.default_budget.beam > 1:
                yield f"1 pass, beam {self.beam}", Search(beam=self.beam), None
        else:
            yield GREEDY, Search(beam=1), None
            if isinstance(model, BlockPredictor):
                yield "speculative", Search(beam=1), "self"
            if self.draft is not None:
                yield f"draft {self.draft.path.name}", Search(beam=1), self.draft
            if self.beam > 1:
                yield f"beam {self.beam}", Search(beam=self.beam), None

    def _searches_at(self, gamma: float) -> Iterator[tuple[str, Search]]:
        """The decoding methods of a hybrid at a fixed γ."""
        if gamma == 1:
            yield "one pass", Search(beam=1)
            return
        yield GREEDY, Search(beam=1)
        if self.beam > 1:
            yield f"beam {self.beam}", Search(beam=self.beam)

    def protocol(self) -> dict[str, Any]:
        return {
            "runs": run_descriptions(self.names, self.runs),
            "sentences": self.size,
            "quality": f"on all {self.size:,} sentences, batch size {QUALITY_BATCH}",
            "speed": "from text to text, tokenization and detokenization included",
        }

    def identity(self) -> dict[str, Any]:
        return {
            "choice of runs": [run_identity(run) for run in self.runs],
            "choice of decoding methods": [method.name for method in self.methods],
            "text": fingerprint("lines", self.sentences.sources, self.sentences.references),
        }
