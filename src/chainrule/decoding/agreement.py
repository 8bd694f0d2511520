"""Translations that two models agree on.

A model that writes from left to right knows the beginning of a sentence best, one that writes from right to left its
end. What both find likely is better than what either finds alone (Liu et al. 2016): the results of two searches are
put together, each is scored by both models, and the mean of the two scores ranks them.
"""

from __future__ import annotations

from collections.abc import Sequence

from chainrule.decoding.sentences import LONGEST, Translated, Translator
from chainrule.decoding.translation import Search


def agreed(
    one: Translator,
    other: Translator,
    texts: Sequence[str],
    search: Search,
    *,
    batch: int = 32,
    longest: int = LONGEST,
) -> list[list[Translated]]:
    """The `n_best` translations of each text that both models find likeliest, of all that either search has found.

    The models meet in the text, so they may differ in everything: direction, family and vocabulary. The score is the
    mean of theirs, each log P normalised by the model's own number of tokens; `log_prob` is the mean too.
    """
    wide = search.model_copy(update={"n_best": search.beam})
    found = [translator.translate(texts, wide, batch=batch, longest=longest) for translator in (one, other)]
    merged = [{result.text: result for result in (*first, *second)} for first, second in zip(*found, strict=True)]
    carried = [any(result.is_carried for result in results.values()) for results in merged]
    pairs = [
        (text, target)
        for text, results, as_it_is in zip(texts, merged, carried, strict=True)
        for target in ([] if as_it_is else results)
    ]
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    opinions = [translator.log_probs(sources, targets, batch=batch) for translator in (one, other)]
    scores = dict(zip(pairs, zip(*opinions, strict=True), strict=True))

    def weighed(text: str, result: Translated) -> Translated:
        both = scores[text, result.text]
        return result._replace(
            log_prob=sum(nats for nats, _ in both) / 2,
            score=sum(search.score(nats, tokens) for nats, tokens in both) / 2,
        )

    ranked = []
    for text, results, as_it_is in zip(texts, merged, carried, strict=True):
        known = list(results.values())
        if not as_it_is:
            known = sorted((weighed(text, result) for result in known), key=lambda result: -result.score)
        ranked.append(known[: search.n_best])
    return ranked
