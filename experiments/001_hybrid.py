"""The hybrid against its autoregressive and its non-autoregressive branch, with γ swept.

    python experiments/001_hybrid.py [--quick] [--minutes 30] [--threads 2] [--parts language translation]

The notes mix an autoregressive and a non-autoregressive model, P = (1 − γ) P_AR + γ P_NAR, and say that the mixture
is better than either. γ = 0 and γ = 1 are the branches of the same trained model by themselves. The mixture is tested
twice: with the gate that the model has learned, and with the fixed γ, other than 0 and 1, that is best on the
validation data.

language: hybrid_language on WikiText-2 in SentencePiece characters, as in the notes, and beside it gpt, with the same
training time. translation: hybrid on Multi30k, greedy search. Every γ is measured on the same held-out tokens and
sentences, so that differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chainrule.decoding import Search
from claims import Case, Interval, Page, Plot, Series, Table, judge
from measuring import Setting, held_out, run_experiment, text_data
from translating import BLEU_UNIT, bleu, bleu_gain, corpus_bleu, pairs, translations

GAMMAS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
BRANCHES = {"the autoregressive branch": "0", "the non-autoregressive branch": "1"}
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


def mixtures(run: Any, setting: Setting) -> dict[str, Any]:
    """The run with its own gate and with every γ."""
    return {OWN: run, **{f"{gamma:g}": run.with_gamma(gamma) for gamma in gammas(setting)}}


def inner(names: Mapping[str, Any]) -> list[str]:
    """The names of mixtures by a fixed γ."""
    return [name for name in names if name not in (OWN, *BRANCHES.values())]


def branch_cases(chosen: str, what: str, gain: Callable[[str, str], Interval], unit: str) -> list[Case]:
    """Both mixtures against both branches; `gain` is that of one name over another."""
    return [
        Case(f"{what} of {mixture} are compared with {branch}", gain(name, other), unit)
        for mixture, name in (("the learned gate", OWN), (f"γ = {chosen}, chosen on validation data,", chosen))
        for branch, other in BRANCHES.items()
    ]


def by_gamma(measured: Mapping[str, Interval]) -> dict[str, Series]:
    """The lines of a plot over γ."""
    return {
        "fixed γ": Series.of({float(name): value for name, value in measured.items() if name != OWN}),
        "learned gate": Series.of(dict.fromkeys((0.0, 1.0), measured[OWN])),
    }


def language(setting: Setting, page: Page) -> None:
    options, data = text_data(setting)
    limit = setting.size(60_000, 1500)
    run, other = (
        setting.train(
            f"language-{kind}", kind, share=0.3, settings={"data": data}, tokenizer="sentencepiece:char", **options
        )
        for kind in ("hybrid_language", "gpt")
    )
    gpt = held_out(other, limit)
    runs = mixtures(run, setting)
    found = {name: held_out(one, limit) for name, one in runs.items()}
    valid = {name: held_out(runs[name], limit // 2, validation=True).bits.value for name in inner(runs)}
    chosen = min(valid, key=lambda name: valid[name])
    rows = [{"model": "hybrid_language", "γ": name, "bits/byte": one.bits} for name, one in found.items()]
    rows.append({"model": "gpt", "γ": "", "bits/byte": gpt.bits})
    sizes = [
        {"model": name, "parameters": one.parameters, **one.trained, "bits/byte": one.bits}
        for name, one in (("hybrid_language", found[OWN]), ("gpt", gpt))
    ]
    page.tables.append(Table("Language: the hybrid and GPT at equal training time", sizes))
    page.tables.append(Table("Language: bits per byte by γ", rows))
    lines = by_gamma({name: one.bits for name, one in found.items()})
    page.plots.append(Plot("language", "Language: bits per byte by γ", "γ", "bits/byte", lines))
    cases = branch_cases(chosen, "predictions", lambda one, two: found[one].gain_over(found[two]), "bits/byte")
    page.verdicts.append(judge("The hybrid predicts text better than its branches", cases))
    beside = [Case("the training time is equal", found[OWN].gain_over(gpt), "bits/byte")]
    page.verdicts.append(judge("The hybrid predicts text better than GPT", beside))


def translation(setting: Setting, page: Page) -> None:
    data = pairs(setting)
    run: Any = setting.train("translation", "hybrid", share=0.4, **data.options)
    sources, references = data.held_out(setting.size(1000, 20))
    runs = mixtures(run, setting)
    found = {name: translations(one, sources, Search(beam=1)) for name, one in runs.items()}
    valid_sources, valid_references = data.validation(setting.size(500, 10))
    valid = {
        name: corpus_bleu(translations(runs[name], valid_sources, Search(beam=1)), valid_references)
        for name in inner(runs)
    }
    chosen = max(valid, key=lambda name: valid[name])
    scores = {name: bleu(texts, references) for name, texts in found.items()}
    page.tables.append(
        Table("Translation: BLEU by γ, greedy search", [{"γ": name, "BLEU": one} for name, one in scores.items()])
    )
    page.plots.append(Plot("translation", "Translation: BLEU by γ", "γ", "BLEU", by_gamma(scores)))
    cases = branch_cases(
        chosen, "translations", lambda one, two: bleu_gain(found[one], found[two], references), BLEU_UNIT
    )
    page.verdicts.append(judge("The hybrid translates better than its branches", cases))


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=("language", "translation"), training=0.85)
