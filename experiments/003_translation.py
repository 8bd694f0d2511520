"""AT, FAT, seq2seq, Transformer and hybrid at one budget: BLEU, speed and size.

    python experiments/003_translation.py [--quick] [--minutes 30] [--threads 2]

The notes propose the Autoregressive Transformer (AT), which is cheaper than a seq2seq model, and the Fast
Autoregressive Transformer (FAT), which is said to be as fast as it, to decode in both directions, to train somewhat
more slowly and to be smaller than BERT.

All families are trained on Multi30k, English to German, for the same time, and translate test_2016_flickr greedily,
one sentence at a time. "fat, right to left" generates from the last word; "fat, both directions" ranks the candidates
of both models by both. Training speed is training tokens in the same time.
"""

from __future__ import annotations

from typing import Any

from chainrule.decoding import Search
from chainrule.tasks.base import parameters
from claims import Case, Page, Plot, Series, Table, exact, judge
from measuring import Setting, median, ratio, run_experiment, timed
from translating import BLEU_UNIT, bleu, bleu_gain, pairs, translations

BERT_BASE = 110_000_000  # parameters (Devlin et al., 2019)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "seq2seq": ("seq2seq", {}),
    "AT": ("autoregressive_transformer", {}),
    "Transformer": ("transformer", {}),
    "hybrid": ("hybrid", {}),
    "fat": ("fat", {}),
    "fat, right to left": ("fat", {"direction": "right_to_left"}),
}
BOTH = "fat, both directions"


def experiment(setting: Setting) -> Page:
    page = setting.page(__file__, "Translation at one budget", "Multi30k")
    data = pairs(setting)
    runs: dict[str, Any] = {}
    for number, (name, (family, model)) in enumerate(MODELS.items()):
        share = 1 / len(MODELS)
        runs[name] = setting.train(f"model-{number}", family, share=share, settings={"model": model}, **data.options)
    sources, references = data.held_out(setting.size(1000, 20))
    found = {name: translations(run, sources, Search(beam=1)) for name, run in runs.items()}
    agreed = runs["fat"].translate(sources, Search(beam=5), agree_with=runs["fat, right to left"])
    found[BOTH] = [one[0].text for one in agreed]
    found["fat, beam 5"] = translations(runs["fat"], sources, Search(beam=5))
    few = sources[: setting.size(30, 2)]
    works = {
        name: (lambda run=run: [list(run.translate(one, Search(beam=1))) for one in few]) for name, run in runs.items()
    }
    times = timed(works, setting.size(5, 1), setting)
    tokens = {name: run.folder.records("metrics.jsonl")[-1].get("tokens", 0) for name, run in runs.items()}
    rows = [
        {
            "model": name, "BLEU": bleu(texts, references),
            "parameters": parameters(runs[name].model) if name in runs else "",
            "training tokens": tokens.get(name, ""),
            "sentences/s, one at a time": len(few) / median(times[name]) if name in times else "",
        }
        for name, texts in found.items()
    ]  # fmt: skip
    page.tables.append(Table("Five families, both directions of FAT", rows))
    curves = {name: learning_curve(run) for name, run in runs.items()}
    title = "Validation loss by training time"
    page.plots.append(Plot("learning", title, "seconds of training", "nats per target token", curves))

    def speed(first: str, second: str) -> Case:
        return Case(f"it is compared with {second}", ratio(times[second], times[first]), "times as fast", above=1.0)

    def better(first: str, second: str) -> Case:
        gain = bleu_gain(found[first], found[second], references)
        return Case(f"it is compared with {second}", gain, BLEU_UNIT)

    def trained(first: str, second: str) -> Case:
        more = exact(tokens[first] / max(1, tokens[second]))
        return Case(f"it is compared with {second}", more, "times as many tokens in the same time", above=1.0)

    def smaller(first: str, second: str) -> Case:
        times = exact(parameters(runs[second].model) / parameters(runs[first].model))
        return Case(f"it is compared with {second}", times, "times as small", above=1.0)

    size = exact(BERT_BASE / parameters(runs["fat"].model))
    page.verdicts += [
        judge("AT decodes faster", [speed("AT", "seq2seq")]),
        judge("AT trains faster", [trained("AT", "seq2seq")]),
        judge("AT has fewer parameters", [smaller("AT", "seq2seq")]),
        judge("FAT decodes faster", [speed("fat", other) for other in ("seq2seq", "AT", "Transformer")]),
        judge("FAT translates better", [better("fat", other) for other in ("seq2seq", "AT", "Transformer", "hybrid")]),
        judge("Both directions of FAT translate better than one", [better(BOTH, "fat, beam 5")]),
        judge("FAT trains more slowly", [trained(other, "fat")._replace(where=f"it is compared with {other}")
                                        for other in ("seq2seq", "AT", "Transformer")]),
        judge("FAT is smaller than BERT", [Case("BERT is the base model", size, "times as small", above=1.0)]),
    ]  # fmt: skip
    return page


def learning_curve(run: Any) -> Series:
    """The loss on the validation data by the seconds of training before it."""
    records = [one for one in run.folder.records("metrics.jsonl") if "valid_nats_per_token" in one]
    return Series([one["seconds"] for one in records], [one["valid_nats_per_token"] for one in records])


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=("all",), training=0.87)
