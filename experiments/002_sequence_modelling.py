"""Recurrent networks, their training and their search: gradients, memory, peepholes, attention, NCE, beam, features.

    python experiments/002_sequence_modelling.py [--quick] [--minutes 30] [--threads 2] [--parts gradient recall …]

The notes say that the gradient of an RNN fades in about 7 steps and that an LSTM remembers about 100; that peepholes
are better at the price of more parameters; that attention helps where the source is long; that noise-contrastive
estimation makes training faster; that beam search finds better sentences than greedy search; and that word2vec and
ELMo give words better vectors than those learned with the task.

gradient: the norm of the derivative of a hidden vector by the state d steps before, on random inputs, relative to one
step; faded means below a hundredth, about means within a factor of 2. recall: a symbol, d random symbols of another
alphabet, and the first one is to be named. One layer of each cell is trained twice: on each distance by itself, where
all that it learns is by the gradient over this distance, and on all distances from short to long, with as many steps
in all. Both for two initialisations of the recurrent matrix: orthogonal, as in the package, and uniform within
1/√width, as in PyTorch. The other parts train models of the package on WikiText-2, Multi30k and SST-2: language models
and translation for equal times, classifiers for equal numbers of steps, since vectors are compared there and not speed.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.decoding import Search
from claims import Case, Interval, Page, Plot, Series, Table, exact, judge, mean_interval
from measuring import Setting, held_out, run_experiment, text_data
from recalling import gradients, recall
from translating import BLEU_UNIT, bleu, bleu_gain, pairs, translations

CLASSIFIER_STEPS = 300
PARTS = ("gradient", "recall", "peephole", "attention", "noise", "beam", "features")


def experiment(setting: Setting) -> Page:
    page = setting.page(
        __file__, "Recurrent networks, their training and their search", "WikiText-2, Multi30k and SST-2"
    )
    if not {"peephole", "attention", "noise", "beam", "features"} & set(setting.parts):
        page.setting["data"] = "synthetic"
    if setting.includes("gradient"):
        gradients(setting, page)
    if setting.includes("recall"):
        recall(setting, page)
    if setting.includes("peephole"):
        peepholes(setting, page)
    if setting.includes("attention") or setting.includes("beam"):
        attention_and_beam(setting, page)
    if setting.includes("noise"):
        noise(setting, page)
    if setting.includes("features"):
        features(setting, page)
    return page


# Language models: peepholes, noise-contrastive estimation


def peepholes(setting: Setting, page: Page) -> None:
    options, data = text_data(setting)
    width = 256
    models = {
        "lstm": {"cell": "lstm", "width": width},
        "peephole, diagonal": {"cell": "lstm_peephole", "width": width},
        "peephole, matrix": {"cell": "lstm_full_peephole", "width": width},
        "lstm, as many parameters": {"cell": "lstm", "width": round(width * math.sqrt(11 / 8) / 8) * 8},
    }
    found = {}
    for number, (name, model) in enumerate(models.items()):
        settings = {"model": {**model, "layers": 1}, "data": data}
        run = setting.train(f"peephole-{number}", "recurrent", share=0.04, settings=settings, **options)
        found[name] = held_out(run, setting.size(60_000, 1500))
    rows = [{"cell": name, "parameters": one.parameters, "bits/byte": one.bits} for name, one in found.items()]
    page.tables.append(Table("Peepholes at equal training time", rows))
    cases = [
        Case(
            f"the peepholes are a {kind} and the LSTM has {size}",
            found[f"peephole, {kind}"].gain_over(found[other]),
            "bits/byte",
        )
        for kind in ("diagonal", "matrix")
        for size, other in (("the same width", "lstm"), ("as many parameters", "lstm, as many parameters"))
    ]
    page.verdicts.append(judge("Peepholes predict better than a plain LSTM", cases))
    growth = [
        Case(
            f"they are a {kind}",
            exact(found[f"peephole, {kind}"].parameters / found["lstm"].parameters),
            "times the parameters of an LSTM of the same width",
            above=1.9,
            below=2.1,
        )
        for kind in ("diagonal", "matrix")
    ]
    page.verdicts.append(judge("Peepholes double the parameters", growth))


def noise(setting: Setting, page: Page) -> None:
    options, data = text_data(setting)
    objectives: dict[str, dict[str, Any]] = {
        "maximum likelihood": {"objective": "likelihood"},
        "NCE, noise by frequency": {"objective": "nce"},
        "NCE, uniform noise": {"objective": "nce", "noise": "uniform"},
    }
    found = {}
    for number, (name, train) in enumerate(objectives.items()):
        settings = {"train": train, "model": {"width": 256}, "data": data}
        run = setting.train(
            f"noise-{number}", "recurrent", share=0.06, settings=settings, tokenizer="words:20000", **options
        )
        found[name] = held_out(run, setting.size(60_000, 1500))
    trained = {name: int(str(one.trained["training tokens"])) for name, one in found.items()}
    rows = [
        {"objective": name, "training tokens in the same time": trained[name], "bits/byte": one.bits}
        for name, one in found.items()
    ]
    page.tables.append(Table("Noise-contrastive estimation against maximum likelihood, 20,000 words", rows))
    likelihood, *noises = found
    kinds = {name: f"the noise is drawn {'uniformly' if 'uniform' in name else 'by frequency'}" for name in noises}
    faster = [
        Case(kinds[name], exact(trained[name] / trained[likelihood]), "times as many tokens", above=1.0)
        for name in noises
    ]
    page.verdicts.append(judge("NCE reads more text in the same time than maximum likelihood", faster))
    better = [Case(kinds[name], found[name].gain_over(found[likelihood]), "bits/byte") for name in noises]
    page.verdicts.append(judge("NCE predicts better than maximum likelihood at equal time", better))


# Translation: attention and beam search


def attention_and_beam(setting: Setting, page: Page) -> None:
    data = pairs(setting)
    runs = {
        attention: setting.train(
            f"seq2seq-{attention}", "seq2seq", share=0.24, settings={"model": {"attention": attention}}, **data.options
        )
        for attention in ("dot", "none")
    }
    sources, references = data.held_out(setting.size(1000, 30))
    if setting.includes("attention"):
        by_length(
            page, {name: translations(run, sources, Search(beam=1)) for name, run in runs.items()}, sources, references
        )
    if setting.includes("beam"):
        by_width(setting, page, runs["dot"], sources, references)


def by_length(page: Page, found: Mapping[str, list[str]], sources: list[str], references: list[str]) -> None:
    lengths = np.array([len(source.split()) for source in sources])
    edges = np.quantile(lengths, (0, 0.25, 0.5, 0.75, 1)).round().astype(int).tolist()
    rows, cases = [], []
    for low, high in zip(edges, [*edges[1:-1], edges[-1] + 1], strict=False):
        chosen = np.flatnonzero((lengths >= low) & (lengths < high)).tolist()
        if len(chosen) < 2:
            continue
        picked = {name: [texts[index] for index in chosen] for name, texts in found.items()}
        right = [references[index] for index in chosen]
        rows.append(
            {"source words": f"{low} to {high - 1}", "sentences": len(chosen),
             "BLEU with attention": bleu(picked["dot"], right), "BLEU without": bleu(picked["none"], right)}
        )  # fmt: skip
        cases.append(
            Case(f"sources have {low} to {high - 1} words", bleu_gain(picked["dot"], picked["none"], right), BLEU_UNIT)
        )
    page.tables.append(Table("BLEU by source length, greedy search", rows))
    page.verdicts.append(judge("Attention translates better", cases))


def by_width(setting: Setting, page: Page, run: Any, sources: list[str], references: list[str]) -> None:
    widths = (1, 2) if setting.quick else (1, 2, 5, 10)
    found = {width: translations(run, sources, Search(beam=width)) for width in widths}
    rows = [{"beam width": width, "BLEU": bleu(texts, references)} for width, texts in found.items()]
    page.tables.append(Table("Beam search by width", rows))
    cases = [
        Case(f"the beam is {width} wide", bleu_gain(found[width], found[1], references), BLEU_UNIT)
        for width in widths[1:]
    ]
    page.verdicts.append(judge("Beam search translates better than greedy search", cases))


# Features


def features(setting: Setting, page: Page) -> None:
    """Accuracy of a classifier by the number of training texts, with words learned or pretrained."""
    if setting.quick:
        source = [f"{'good fine' if index % 2 else 'bad poor'} word{index % 7}\t{index % 2}" for index in range(60)]
        test = source[40:]
    else:
        folder = setting.data("sst2")
        source, test = (
            gzip.decompress((folder / f"{name}.tsv.gz").read_bytes()).decode().splitlines() for name in ("train", "dev")
        )
        source, test = [line for line in source if not line.startswith("sentence\t")], test[-2000:]
    texts, held, valid = (setting.runs / name for name in ("texts.txt", "test.tsv", "valid.tsv"))
    texts.write_text("".join(f"{line.split(chr(9))[0]}\n" for line in source), encoding="utf-8")
    held.write_text("\n".join(test) + "\n", encoding="utf-8")
    order = np.random.default_rng(setting.seed).permutation(len(source))
    chosen = [source[index] for index in order]
    sizes = (20, 40) if setting.quick else (100, 300, 1000, 3000)
    valid.write_text("\n".join(chosen[-setting.size(500, 10) :]) + "\n", encoding="utf-8")
    pretrained = {
        "word2vec": setting.train("word2vec", "word2vec", share=0.03, data=str(texts), tokenizer="words:8000"),
        "elmo": setting.train(
            "elmo", "elmo", share=0.15, data=str(texts), tokenizer="words:8000",
            settings={"model": {"width": 128}, "data": {"unit": "documents"}},
        ),
    }  # fmt: skip
    found: dict[str, dict[int, Interval]] = {name: {} for name in ("learned", *pretrained)}
    right: dict[tuple[str, int], np.ndarray] = {}
    for size in sizes:
        file = setting.runs / f"{size}.tsv"
        file.write_text("\n".join(chosen[:size]) + "\n", encoding="utf-8")
        for name in found:
            model = {"encoder_run": str(pretrained[name].path)} if name in pretrained else {}
            right[name, size] = correct(setting, f"{name}-{size}", file, valid, held, model)
            found[name][size] = mean_interval(right[name, size])
    rows = [{"training texts": size, **{name: points[size] for name, points in found.items()}} for size in sizes]
    page.tables.append(Table("Accuracy on SST-2 by the number of training texts", rows))
    title = "Learning curves with learned and pretrained words"
    lines = {name: Series.of(points) for name, points in found.items()}
    page.plots.append(Plot("features", title, "training texts", "accuracy", lines, log_x=True))
    for name in pretrained:
        cases = [
            Case(f"{size:,} texts are labelled", mean_interval(right[name, size] - right["learned", size]), "accuracy")
            for size in sizes
        ]
        page.verdicts.append(judge(f"Vectors of {name} are better than words learned with the task", cases))


def correct(setting: Setting, name: str, file: Path, valid: Path, held: Path, model: dict[str, Any]) -> np.ndarray:
    """Whether a classifier trained on a file labels each held-out text correctly."""
    tokenizer = {} if model else {"tokenizer": "words"}
    settings = {"model": model, "train": {"best_by": "accuracy", "batch_tokens": 512}}
    run: Any = setting.train(
        f"classifier-{name}", "classifier", steps=CLASSIFIER_STEPS, settings=settings, data=str(file), valid=str(valid),
        **tokenizer,
    )  # fmt: skip
    texts, labels = zip(*(line.split("\t")[:2] for line in held.read_text(encoding="utf-8").splitlines()), strict=True)
    return np.array(
        [float(one is not None and one.label == label) for one, label in zip(run.predict(texts), labels, strict=True)]
    )


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=PARTS, training=0.64)
