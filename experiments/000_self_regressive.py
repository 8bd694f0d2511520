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
a passage answer a question, on COVID-QA, against always giving the more frequent label. With --features the model is
that of the notes, on frozen vectors of a pretrained BERT, which are computed once, before the time of its training
begins; without, it learns its vectors from the questions alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.types import Batch, Sequences
from claims import Case, Interval, Page, Plot, Series, Table, judge, mean_interval
from measuring import HeldOut, Setting, held_out, median, ratio, run_experiment, text_data, timed, use_of_context

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
                Interval(*saved_beyond(nats, model, other, near)),
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
            [Case("both are 192 wide", ratio(times[regressive], times[lstm]).minus(1), "times as long, less 1")],
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
            [Case("both are 192 wide", ratio(times[regressive], times[attentive]).minus(1), "times as long, less 1")],
        ),
    ]


def saved_beyond(nats: dict[str, dict[int, np.ndarray]], model: str, other: str, near: int) -> Interval:
    """The nats that text beyond a distance saves in one model more than in another, on the same tokens."""
    longest = max(nats[model])
    mine, theirs = (nats[name][near] - nats[name][longest] for name in (model, other))
    return mean_interval(mine - theirs)


def trained(setting: Setting) -> dict[str, HeldOut]:
    options, data = text_data(setting)
    found = {}
    for name, (family, model) in MODELS.items():
        run = setting.train(family, family, share=0.27, settings={"model": model, "data": data}, **options)
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
    """Train until the validation accuracy no longer rises, and compare with the more frequent label."""
    data, valid, test = question_files(setting)
    model = {"features": setting.features} if setting.features else {}
    encoder = "those of a frozen BERT" if setting.features else "learned"
    run: Any = setting.train(
        "answers", "pair_classifier", share=0.19, data=data, valid=valid,
        settings={"model": model, "data": {"negatives": 3}, "train": {"best_by": "accuracy", "patience": 6}},
    )  # fmt: skip
    score = run.score(test, progress=False)
    records = run.folder.records("metrics.jsonl")
    accuracies = [(one["step"], one["valid_accuracy"]) for one in records if "valid_accuracy" in one]
    right = np.zeros(score.examples)
    right[: round(score.accuracy * score.examples)] = 1
    accuracy = mean_interval(right)
    steps = max(one["step"] for one in records)
    best = max(accuracies, key=lambda pair: pair[1])[0] if accuracies else steps
    page.tables.append(
        Table(
            "Does the passage answer the question?",
            [
                {
                    "vectors of the texts": encoder,
                    "pairs": score.examples,
                    "accuracy": accuracy,
                    "more frequent label": score.majority,
                    "macro-F1": score.macro_f1,
                    "steps": steps,
                    "step of the best validation": best,
                }
            ],
        )
    )
    if len(accuracies) > 1:
        line = {"validation accuracy": Series(*zip(*accuracies, strict=True))}
        page.plots.append(Plot("answers", "Accuracy on validation pairs", "step", "accuracy", line))
    better = [Case(f"vectors are {encoder}", accuracy.minus(score.majority), "accuracy above the more frequent label")]
    page.verdicts.append(judge("Attention over both texts tells whether a passage answers a question", better))


def question_files(setting: Setting) -> tuple[str, str, str]:
    """Questions for training, validation and test; contexts of the three are different."""
    if setting.quick:
        lines = [f"what is {word}\t{word} is a {'thing' if index % 2 else 'place'}\t{'yes' if index % 2 else 'no'}"
                 for index, word in enumerate("abcdefghij" * 6)]  # fmt: skip
        files = []
        for name, part in (("train", lines[:40]), ("valid", lines[40:50]), ("test", lines[50:])):
            files.append(setting.runs / f"{name}.tsv")
            files[-1].write_text("\n".join(part) + "\n", encoding="utf-8")
        return tuple(map(str, files))  # type: ignore[return-value]
    folder = setting.data("covid-qa")
    found: dict[str, Any] = json.loads(gzip.decompress((folder / "covid-qa-train.json.gz").read_bytes()))
    held = len(found["data"]) // 10
    parts = {"train": found["data"][held:], "valid": found["data"][:held]}
    for name, articles in parts.items():
        file = Path(setting.runs / f"{name}.json")
        file.write_text(json.dumps({**found, "data": articles}), encoding="utf-8")
    return str(setting.runs / "train.json"), str(setting.runs / "valid.json"), str(folder / "covid-qa-dev.json.gz")


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=("language", "answers"), training=0.65)
