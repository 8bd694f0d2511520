"""Metrics of translations against references: BLEU, chrF and exact match.

BLEU (Papineni et al. 2002) compares word n-grams with the reference, chrF (Popović 2015) character n-grams. Both are
computed by sacrebleu (Post 2018), cased, and reported with their signature, without which BLEU scores are not
comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chainrule.decoding import Search, TranslatedText, Translator
from chainrule.errors import DataError, MissingExtra
from chainrule.evaluation.scores import MetricValues
from chainrule.interface.capabilities import Branched

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

TOKENIZERS = {"zh": "zh"}
"""Languages that need another tokenizer than 13a, that of the WMT evaluations; Chinese has no spaces."""

REPORT_BATCHES = 8  # batches between progress reports


class TranslationScore(MetricValues):
    """Metrics, and how they were measured."""

    bleu: float = Field(description="0 to 100, of the whole corpus")
    chrf: float = Field(description="0 to 100, of the whole corpus")
    exact_match: float = Field(description="fraction of translations that equal their reference")
    nats_per_token: float = Field(description="mean of −log P(y_t | y_<t, source) over the references, including EOS")
    tokens: int = Field(description="number of target tokens in this mean")
    sentences: int
    untranslated: int = Field(description="number of sources that were empty or too long")
    cut: int = Field(description="number of translations cut at the length limit")
    unscored: int = Field(description="number of pairs too long for the model, not in nats_per_token")
    bleu_signature: str = Field(description="sacrebleu signature")
    chrf_signature: str
    search: Search
    gamma: float | None = Field(
        None, description="hybrids: fixed weight of the non-autoregressive branch; none: the learned one"
    )


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str = ""
) -> dict[str, float | str]:
    """BLEU and chrF with their signatures, and the fraction of translations that equal their reference.

    `target_language` is a code such as "de" or "zh-CN"; only Chinese is treated differently. Surrounding white
    space is ignored.
    """
    if len(hypotheses) != len(references):
        raise DataError(f"got {len(references)} references for {len(hypotheses)} translations; give one reference each")
    if not references:
        raise DataError("no translations to score; give at least one")
    bleu, chrf = metrics(target_language)
    ours, theirs = ([text.strip() for text in texts] for texts in (hypotheses, references))
    equal = sum(one == other for one, other in zip(ours, theirs, strict=True))
    return {
        "bleu": float(bleu.corpus_score(ours, [theirs]).score),
        "chrf": float(chrf.corpus_score(ours, [theirs]).score),
        "exact_match": equal / len(theirs),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


class SentenceStatistics(NamedTuple):
    """The statistics of each sentence whose sums are all that a corpus metric needs."""

    counts: npt.NDArray[np.float64]  # (N, K)
    score: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]  # (R, K) sums -> (R,) scores


def sentence_statistics(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str = ""
) -> dict[str, SentenceStatistics]:
    """BLEU and chrF as functions of statistics of the sentences, so that sentences can be resampled."""
    ours, theirs = ([text.strip() for text in texts] for texts in (hypotheses, references))

    def statistics(metric: Metric) -> SentenceStatistics:
        def score(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            rows = np.rint(sums).astype(int).tolist()
            return np.array([metric._compute_score_from_stats(row).score for row in rows])

        return SentenceStatistics(np.array(metric._extract_corpus_statistics(ours, [theirs]), np.float64), score)

    bleu, chrf = metrics(target_language)
    return {"bleu": statistics(bleu), "chrf": statistics(chrf)}


def metrics(target_language: str) -> tuple[Metric, Metric]:
    """BLEU and chrF for a language. Raises MissingExtra without sacrebleu."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise MissingExtra("scoring translations with sacrebleu", "translation") from None
    language = target_language.replace("_", "-").partition("-")[0].lower()
    settings: dict[str, Any] = {"tokenize": TOKENIZERS.get(language, "13a")}
    return BLEU(**settings), CHRF()


def score_translations(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    search: Search,
    *,
    target_language: str = "",
    batch: int = 32,
    progress: Callable[[float], None] | None = None,
) -> TranslationScore:
    """Translate the sources, compare them with the references, and compute the likelihood of the references."""
    if len(sources) != len(references):
        raise DataError(f"got {len(references)} references for {len(sources)} sources; give one reference each")
    metrics(target_language)  # a missing package is reported before the work

    best: list[TranslatedText] = []
    for found in translator.translate_stream(sources, search, batch=batch, window=REPORT_BATCHES * batch):
        best.append(found[0])
        if progress is not None:
            progress(len(best) / len(sources))
    metrics_found: dict[str, Any] = corpus_scores(
        [one.text for one in best], references, target_language=target_language
    )
    log_probs = translator.log_probs(sources, references, batch=batch)
    possible = [(nats, tokens) for nats, tokens in log_probs if nats > -math.inf]
    tokens = sum(count for _, count in possible)
    return TranslationScore(
        **metrics_found,
        nats_per_token=-sum(nats for nats, _ in possible) / max(1, tokens),
        tokens=tokens,
        sentences=len(references),
        untranslated=sum(one.is_untranslated for one in best),
        cut=sum(one.finished == "length" for one in best),
        unscored=len(log_probs) - len(possible),
        search=search,
        gamma=translator.model.fixed_gamma if isinstance(translator.model, Branched) else None,
    )
