"""The hybrid against its autoregressive and its non-autoregressive branch, with γ swept.

    python experiments/001_hybrid.py [--quick] [--minutes 30] [--threads 2] [--parts language translation]

The notes mix an autoregressive and a non-autoregressive model, P = (1 − γ) P_AR + γ P_NAR, and say that the mixture
is better than either. γ = 0 and γ = 1 are the branches of the same trained model by themselves.

language: hybrid_language on WikiText-2 in SentencePiece characters, as in the notes, and beside it gpt, with the same
training time. translation: hybrid on Multi30k, greedy search. Every γ is measured on the same held-out tokens and
sentences, so that differences are paired.
"""

from __future__ import annotations

from typing import Any

from chainrule.decoding import Search
from claims import Case, Page, Plot, Series, Table, judge
from measuring import HeldOut, Setting, held_out, run_experiment, text_data
from translating import BLEU_UNIT, bleu, bleu_gain, pairs, translations

GAMMAS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
BRANCHES = {"the autoregressive branch": 0.0, "the non-autoregressive branch": 1.0}
OWN = "learned"


def experiment(setting: Setting) -> Page:
    page = setting.page(__file__, "The hybrid and its two branches", "WikiText-2 and Multi30k")
    if setting.includes("language"):
        language(setting, page)
    if setting.includes("translation"):
        translation(setting, page)
    return page


def gammas(setting: Setting) -> tuple[float, ...]:
    return (0.0, 0.5, 1.0) if setting.quick else GAMMAS


def language(setting: Setting, page: Page) -> None:
    options, data = text_data(setting)
    limit = setting.size(60_000, 1500)
    run, other = (
        setting.train(
            f"language-{kind}", kind, share=1 / 3, settings={"data": data}, tokenizer="sentencepiece:char", **options
        )
        for kind in ("hybrid_language", "gpt")
    )
    gpt = held_out(other, limit)
    found: dict[float | str, HeldOut] = {OWN: held_out(run, limit)}
    for gamma in gammas(setting):
        found[gamma] = held_out(run.with_gamma(gamma), limit)
    rows = [{"model": "hybrid_language", "γ": str(gamma), "bits/byte": one.bits} for gamma, one in found.items()]
    rows.append({"model": "gpt", "γ": "", "bits/byte": gpt.bits})
    sizes = [
        {"model": name, "parameters": one.parameters, **one.trained, "bits/byte": one.bits}
        for name, one in (("hybrid_language", found[OWN]), ("gpt", gpt))
    ]
    page.tables.append(Table("Language: the hybrid and GPT at equal training time", sizes))
    page.tables.append(Table("Language: bits per byte by γ", rows))
    lines = {
        "fixed γ": Series.of({gamma: found[gamma].bits for gamma in gammas(setting)}),
        "learned gate": Series.of(dict.fromkeys((0.0, 1.0), found[OWN].bits)),
    }
    page.plots.append(Plot("language", "Language: bits per byte by γ", "γ", "bits/byte", lines))
    cases = [
        Case(f"the text is compared with {name}", found[OWN].gain_over(found[gamma]), "bits/byte")
        for name, gamma in BRANCHES.items()
    ]
    page.verdicts.append(judge("The hybrid predicts text better than its branches", cases))
    beside = [Case("the training time is equal", found[OWN].gain_over(gpt), "bits/byte")]
    page.verdicts.append(judge("The hybrid predicts text better than GPT", beside))


def translation(setting: Setting, page: Page) -> None:
    data = pairs(setting)
    run: Any = setting.train("translation", "hybrid", share=1 / 3, **data.options)
    sources, references = data.held_out(setting.size(1000, 20))
    found = {OWN: translations(run, sources, Search(beam=1))}
    found |= {str(gamma): translations(run.with_gamma(gamma), sources, Search(beam=1)) for gamma in gammas(setting)}
    scores = {gamma: bleu(texts, references) for gamma, texts in found.items()}
    page.tables.append(
        Table("Translation: BLEU by γ, greedy search", [{"γ": gamma, "BLEU": one} for gamma, one in scores.items()])
    )
    lines = {
        "fixed γ": Series.of({gamma: scores[str(gamma)] for gamma in gammas(setting)}),
        "learned gate": Series.of(dict.fromkeys((0.0, 1.0), scores[OWN])),
    }
    page.plots.append(Plot("translation", "Translation: BLEU by γ", "γ", "BLEU", lines))
    cases = [
        Case(f"translations are compared with {name}", bleu_gain(found[OWN], found[str(gamma)], references), BLEU_UNIT)
        for name, gamma in BRANCHES.items()
    ]
    page.verdicts.append(judge("The hybrid translates better than its branches", cases))


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=("language", "translation"))
