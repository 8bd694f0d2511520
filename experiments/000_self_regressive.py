"""The self-regressive model and convolution with attention against one LSTM; questions about COVID-19.

    python experiments/000_self_regressive.py [--quick] [--minutes 30] [--threads 2] [--parts language answers]
        [--features models/bert]

The notes say that a self-regressive model, which feeds its predictions to a second LSTM, captures longer dependencies
than one LSTM and is slow to train, and that convolution with attention captures still longer ones and is faster to
train. They end with a model that labels pairs of texts about COVID-19, trained until the validation accuracy no
longer rises.

language: the three models with the same width and training time on WikiText-2 in characters. How far back a
prediction depends on the text is measured by replacing everything but the last tokens by text from elsewhere: the
nats that each doubling of the true context saves. Speed is that of a training step on the same tokens. answers: does
a passage answer a question, on COVID-QA, against always giving the more frequent label; beside it a model that finds
the answer in the article, against the sentence that shares most words with the question. With --features the models
are those of the notes, on frozen vectors of a pretrained BERT, which are computed once, before the time of their
training begins; without, they learn their vectors from the questions alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.types import Batch, Sequences
from claims import Case, Interval, Page, Plot, Series, Table, judge, mean_interval
from measuring import (
    HeldOut,
    Setting,
    held_out,
    median,
    ratio,
    run_experiment,
    saved_beyond,
    text_data,
    timed,
    use_of_context,
)  # fmt: skip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "one LSTM": ("recurrent", {"cell": "lstm", "layers": 1, "width": 192}),
    "self-regressive": ("self_regressive", {"width": 192}),
    "convolution and attention": ("attentive_conv", {"width": 192, "context": 256}),
}
STEP_ROWS, STEP_LENGTH = 16, 128  # tokens of the step that is timed


def experiment(setting: Setting) -> Page:
    title = "The self-regressive model, and convolution with attention"
    page = setting.page(__file__, title, "WikiText-2 and COVID-QA")
    if setting.includes("language"):
        language(setting, page)
    if setting.includes("answers"):
        answers(setting, page)
    return page


# Language


def language(setting: Setting, page: Page) -> None:
    found = trained(setting)
    times = timed({name: step_of(one.run.model, setting) for name, one in found.items()}, setting.size(9, 2), setting)
    tokens = STEP_ROWS * STEP_LENGTH
    rows = [
        {
            "model": name, "parameters": one.parameters, "training tokens/s": round(tokens / median(times[name])),
            "bits/byte": one.bits,
        }
        for name, one in found.items()
    ]  # fmt: skip
    page.tables.append(Table("Three language models of one width at equal training time", rows))
    verdicts(page, found, use_of_context(setting, page, found), times)


def verdicts(
    page: Page, found: dict[str, HeldOut], nats: dict[str, dict[int, np.ndarray]], times: dict[str, list[float]]
) -> None:
    lstm, regressive, attentive = MODELS

    def further(model: str, other: str) -> list[Case]:
        """By what the text saves that is further away than each distance: more in the one model than in the other?"""
        longest = max(nats[model])
        return [
            Case(
                f"the text is more than {near} characters away",
                saved_beyond(nats, model, near, more_than=other),
                "nats saved",
            )
            for near in (4, 8, 16, 32, 64)
            if near < longest
        ]

    page.verdicts += [
        judge("The self-regressive model uses text further away than one LSTM does", further(regressive, lstm)),
        judge(
            "The self-regressive model predicts better than one LSTM",
            [Case("the training time is equal", found[regressive].gain_over(found[lstm]), "bits/byte")],
        ),
        judge(
            "The self-regressive model trains more slowly than one LSTM",
            [Case("both are 192 wide", ratio(times[regressive], times[lstm]), "times as long", above=1.0)],
        ),
        judge(
            "Convolution with attention uses text further away than the self-regressive model does",
            further(attentive, regressive),
        ),
        judge(
            "Convolution with attention predicts better than the self-regressive model",
            [Case("the training time is equal", found[attentive].gain_over(found[regressive]), "bits/byte")],
        ),
        judge(
            "Convolution with attention trains faster than the self-regressive model",
            [Case("both are 192 wide", ratio(times[regressive], times[attentive]), "times as long", above=1.0)],
        ),
    ]


def trained(setting: Setting) -> dict[str, HeldOut]:
    options, data = text_data(setting)
    found = {}
    for name, (family, model) in MODELS.items():
        run = setting.train(family, family, share=0.24, settings={"model": model, "data": data}, **options)
        found[name] = held_out(run, setting.size(60_000, 1500))
    return found


def step_of(model: Any, setting: Setting) -> Callable[[], object]:
    """A training step, forward and backward, without the optimizer."""
    length = setting.size(STEP_LENGTH, 16)
    ids = torch.randint(model.vocabulary, (STEP_ROWS, length), generator=torch.Generator().manual_seed(0))
    learner = WholeSequences(model, Likelihood())

    def step() -> None:
        model.train().zero_grad()
        learner.gradient(Batch(Sequences.full(ids)))

    return step


# Answers


def answers(setting: Setting, page: Page) -> None:
    """The model of the notes, trained until the validation accuracy no longer rises, beside a reader of spans."""
    files = question_files(setting)
    model = {"features": setting.features} if setting.features else {}
    encoder = "those of a frozen BERT" if setting.features else "learned"
    run: Any = setting.train(
        "answers", "pair_classifier", share=0.12, data=files.train, valid=files.valid,
        settings={"model": model, "data": {"negatives": 3}, "train": {"best_by": "accuracy", "patience": 6}},
    )  # fmt: skip
    score = run.score(files.test, progress=False)
    reader: Any = setting.train(
        "reader", "reader", share=0.16, data=files.spans, valid=files.valid_spans,
        settings={"model": model, "data": {"negatives": 3}},
    )  # fmt: skip
    read = reader.score(files.test_spans, progress=False)
    records = run.folder.records("metrics.jsonl")
    accuracies = [(one["step"], one["valid_accuracy"]) for one in records if "valid_accuracy" in one]
    accuracy = proportion(score.accuracy, score.examples)
    steps = max(one["step"] for one in records)
    best = max(accuracies, key=lambda pair: pair[1])[0] if accuracies else steps
    told, found, boundaries = "the passage has the answer: accuracy", "F1 of the answer", "exact match"
    rows = [
        {"model": "pair_classifier", told: accuracy, boundaries: "", found: ""},
        {"model": "reader", told: proportion(read.answerability, read.passages), boundaries: read.exact_match,
         found: read.f1},
        {"model": "reader, most probable span", told: "", boundaries: read.likeliest_exact_match,
         found: read.likeliest_f1},
        {"model": "more frequent label, or the sentence that shares most words", told: score.majority,
         boundaries: read.sentence_exact_match, found: read.sentence_f1},
    ]  # fmt: skip
    page.tables.append(Table(f"Questions about COVID-19, vectors of the texts {encoder}", rows))
    stopped = {"pairs": score.examples, "macro-F1": score.macro_f1, "steps": steps, "step of the best validation": best}
    page.tables.append(Table("The pair_classifier, with early stopping", [stopped]))
    if len(accuracies) > 1:
        line = {"validation accuracy": Series(*zip(*accuracies, strict=True))}
        page.plots.append(Plot("answers", "Accuracy on validation pairs", "step", "accuracy", line))
    better = [Case(f"vectors are {encoder}", accuracy, "accuracy", above=score.majority)]
    page.verdicts.append(judge("Attention over both texts tells whether a passage answers a question", better))


def proportion(value: float, count: int) -> Interval:
    """A fraction of independent examples, with its interval."""
    right = np.zeros(count)
    right[: round(value * count)] = 1
    return mean_interval(right)


class QuestionFiles(NamedTuple):
    """Data for training, validation and test, whose contexts are different: labelled pairs, and spans of contexts."""

    train: str
    valid: str
    test: str
    spans: str
    valid_spans: str
    test_spans: str


def question_files(setting: Setting) -> QuestionFiles:
    if setting.quick:
        words = "abcdefghij" * 6
        lines = [f"what is {word}\t{word} is a {'thing' if index % 2 else 'place'}\t{'yes' if index % 2 else 'no'}"
                 for index, word in enumerate(words)]  # fmt: skip
        spans = [_question(word, "thing" if index % 2 else "place") for index, word in enumerate(words)]
        parts = {"train": slice(40), "valid": slice(40, 50), "test": slice(50, None)}
        for name, part in parts.items():
            (setting.runs / f"{name}.tsv").write_text("\n".join(lines[part]) + "\n", encoding="utf-8")
            (setting.runs / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": spans[part]}]}))
        return QuestionFiles(*(str(setting.runs / f"{name}.{kind}") for kind in ("tsv", "json") for name in parts))
    folder = setting.data("covid-qa")
    found: dict[str, Any] = json.loads(gzip.decompress((folder / "covid-qa-train.json.gz").read_bytes()))
    held = len(found["data"]) // 10
    for name, articles in (("train", found["data"][held:]), ("valid", found["data"][:held])):
        file = setting.runs / f"{name}.json"
        file.write_text(json.dumps({**found, "data": articles}), encoding="utf-8")
    files = (str(setting.runs / "train.json"), str(setting.runs / "valid.json"), str(folder / "covid-qa-dev.json.gz"))
    return QuestionFiles(*files, *files)


def _question(word: str, kind: str) -> dict[str, Any]:
    """A paragraph of SQuAD with one question."""
    context = f"{word} is a {kind}"
    answer = {"text": kind, "answer_start": context.index(kind, 6)}
    return {"context": context, "qas": [{"id": word, "question": f"what is {word}", "answers": [answer]}]}


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=("language", "answers"), training=0.55)
