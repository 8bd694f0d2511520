"""How good translations are, measured against references by the tools that the field compares with.

BLEU (Papineni et al. 2002) counts the word n-grams that a translation shares with its reference, chrF (Popović 2015)
the character n-grams. Both come from sacrebleu (Post 2018), cased, with the signature that says how they were
computed: a BLEU without its signature cannot be compared with another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from chainrule.config import Settings
from chainrule.decoding import Search, TranslatedText, Translator
from chainrule.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

TOKENIZERS = {"zh": "zh"}
"""Languages that need another cut into words than 13a, the tokenizer of the WMT evaluations; Chinese has no spaces."""

AT_ONCE = 8  # batches between two reports of progress


class TranslationScore(Settings):
    """The numbers, and what they rest on."""

    bleu: float = Field(description="0 to 100, of the whole corpus")
    chrf: float = Field(description="0 to 100, of the whole corpus")
    exact_match: float = Field(description="share of translations that equal their reference")
    nats_per_token: float = Field(description="mean of −log P(y_t | y_<t, source) over the references, EOS among them")
    tokens: int = Field(description="target tokens that this mean is over")
    sentences: int
    carried: int = Field(description="sources that were empty or too long, and so not translated")
    cut: int = Field(description="translations that reached the limit on their length")
    unscored: int = Field(description="pairs too long for the model: not part of nats_per_token")
    bleu_signature: str = Field(description="how BLEU was computed")
    chrf_signature: str
    search: Search


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], *, target_language: str = ""
) -> dict[str, float | str]:
    """BLEU and chrF with their signatures, and the share of translations that equal their reference.

    `target_language` is a code such as "de" or "zh-CN"; only Chinese is treated differently. White space around a
    text does not count against a match.
    """
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} translations came with {len(references)} references; give one reference to each"
        )
    if not references:
        raise DataError("there is nothing to score: no translations were given; give at least one")
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


def metrics(target_language: str) -> tuple[Metric, Metric]:
    """BLEU and chrF, for a language; refused where sacrebleu is missing."""
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
    """Translate the sources, compare with the references, and ask how likely the references were."""
    if len(sources) != len(references):
        raise DataError(f"{len(sources)} sources came with {len(references)} references; give one reference to each")
    metrics(target_language)  # what is missing is said before the work, not after it

    best: list[TranslatedText] = []
    for found in translator.translate_stream(sources, search, batch=batch, window=AT_ONCE * batch):
        best.append(found[0])
        if progress is not None:
            progress(len(best) / len(sources))
    figures: dict[str, Any] = corpus_scores([one.text for one in best], references, target_language=target_language)
    opinions = translator.log_probs(sources, references, batch=batch)
    possible = [(nats, tokens) for nats, tokens in opinions if nats > -math.inf]
    tokens = sum(count for _, count in possible)
    return TranslationScore(
        **figures,
        nats_per_token=-sum(nats for nats, _ in possible) / max(1, tokens),
        tokens=tokens,
        sentences=len(references),
        carried=sum(one.is_untranslated for one in best),
        cut=sum(one.finished == "length" for one in best),
        unscored=len(opinions) - len(possible),
        search=search,
    )
