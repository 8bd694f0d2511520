"""Finite memory, RNN, causal convolution, GPT: memory, likelihood and cost.

    python experiments/004_families.py [--quick] [--minutes 30] [--threads 2]

The notes derive four families from the chain rule, each as the remedy for the last one: a finite memory is too short,
an RNN remembers but is trained step by step, a causal convolution remembers and is trained in parallel, GPT
implements the chain rule directly, at a cost that grows with the position. All of them generate token by token.

Text: WikiText-2 in characters; images: binarised MNIST as sequences of pixels, with PixelCNN as the convolution in
two dimensions. Every family has the same training time, and the size that the package chooses for it. Contexts are
tested by replacing everything but the last tokens by text from elsewhere. Cost is measured on untrained models of
about a million parameters, one row of each length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from chainrule.decoding import GREEDY, generate_tokens
from chainrule.families import build
from chainrule.interface.base import NeuralModel
from chainrule.objectives import Likelihood
from chainrule.training.learner import WholeSequences
from chainrule.types import Batch, Sequences
from claims import Case, Page, Plot, Series, Table, judge
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

FAMILIES = ("finite_memory", "recurrent", "causal_conv", "gpt")
NAMES = {"finite_memory": "finite memory", "recurrent": "RNN (LSTM)", "causal_conv": "convolution", "gpt": "GPT",
         "pixelcnn": "PixelCNN"}  # fmt: skip
VOCABULARY = 256
Times: TypeAlias = Mapping[int, Mapping[str, list[float]]]
"""Seconds of every round, by length and family."""


def experiment(setting: Setting) -> Page:
    page = setting.page(__file__, "Finite memory, RNN, causal convolution, GPT", "WikiText-2 and binarised MNIST")
    if not {"text", "images"} & set(setting.parts):
        page.setting["data"] = "random tokens"
    models = {"text": text_models(setting)} if setting.includes("text") else {}
    if setting.includes("images"):
        models["images"] = image_models(setting)
    if "text" in models:
        contexts(setting, page, models["text"])
    if models:
        likelihoods(page, models)
    if setting.includes("cost"):
        cost(setting, page)
    return page


# Likelihood


def text_models(setting: Setting) -> dict[str, HeldOut]:
    options, data = text_data(setting)
    found = {}
    for name in FAMILIES:
        model = {"context": 256} if name == "gpt" else {}
        run = setting.train(f"text-{name}", name, share=0.13, settings={"model": model, "data": data}, **options)
        found[name] = held_out(run, setting.size(60_000, 1500))
    return found


def image_models(setting: Setting) -> dict[str, HeldOut]:
    data: dict[str, Any]
    spec, data = "builtin:digits", {"test_fraction": 0.1}
    if not setting.quick:
        spec = str(setting.data("binarized-mnist") / "binarized_mnist_packed.npz")
        data = {"test": f"{spec}:test", "shape": [28, 28]}
    found = {}
    for name in (*FAMILIES, "pixelcnn"):
        model = {"context": 784 if not setting.quick else 64} if name == "gpt" else {}
        run = setting.train(f"images-{name}", name, share=0.096, settings={"model": model, "data": data}, data=spec)
        found[name] = held_out(run, setting.size(100 * 784, 10 * 64))
    return found


def likelihoods(page: Page, models: Mapping[str, Mapping[str, HeldOut]]) -> None:
    rows = [
        {
            "data": data, "family": NAMES[name], "parameters": one.parameters, **one.trained,
            "receptive field": one.run.model.receptive_field or one.run.model.context or "unlimited",
            "bits/byte, or bits/dim": one.bits,
        }
        for data, found in models.items() for name, one in found.items()
    ]  # fmt: skip
    page.tables.append(Table("Likelihood at equal training time", rows))
    unit = "bits saved per byte or dim"
    for claim, better, worse in (
        ("An RNN, whose memory is unlimited, predicts better than a finite memory", "recurrent", "finite_memory"),
        ("A causal convolution predicts better than an RNN", "causal_conv", "recurrent"),
        ("GPT, the direct implementation of the chain rule, predicts better than a convolution", "gpt", "causal_conv"),
    ):
        cases = [
            Case(f"the data is {data}", found[better].gain_over(found[worse]), unit) for data, found in models.items()
        ]
        if better == "causal_conv" and "images" in models:
            images = models["images"]
            cases.append(Case("the convolution has two dimensions", images["pixelcnn"].gain_over(images[worse]), unit))
        page.verdicts.append(judge(claim, cases))


def contexts(setting: Setting, page: Page, found: Mapping[str, HeldOut]) -> None:
    nats = use_of_context(setting, page, {NAMES[name]: one for name, one in found.items()})
    lengths = list(nats[NAMES["gpt"]])
    memory = found["finite_memory"].run.model.receptive_field
    beyond = [length for length in lengths if memory <= length < lengths[-1]] or [lengths[-2]]

    def cases(name: str, more_than: str | None = None) -> list[Case]:
        return [
            Case(
                f"the text is more than {length} characters away",
                saved_beyond(nats, NAMES[name], length, more_than=more_than and NAMES[more_than]),
                "nats saved",
            )
            for length in beyond
        ]

    for name, title in (("recurrent", "An RNN (LSTM)"), ("causal_conv", "A causal convolution"), ("gpt", "GPT")):
        claim = f"{title} uses text beyond the {memory} characters of a finite memory"
        page.verdicts.append(judge(claim, cases(name)))
    claim = "A causal convolution uses distant text more than an RNN does"
    page.verdicts.append(judge(claim, cases("causal_conv", "recurrent")))


# Cost


def cost(setting: Setting, page: Page) -> None:
    """Seconds of training and of generating one row, by its length."""
    lengths = (16, 32) if setting.quick else (64, 128, 256, 512, 1024)
    rounds = setting.size(5, 2)
    works: dict[str, Callable[[], object]] = {}
    for length in lengths:  # all in the same rounds, so that other load on the machine affects all alike
        for name in FAMILIES:
            model = untrained(name, length, setting)
            works[f"training {length} {name}"] = gradient_of(model, length)
            works[f"scoring {length} {name}"] = scoring_of(model, length)
            works[f"decoding {length} {name}"] = generation_of(model, length)
    times = timed(works, rounds, setting)
    training, scoring, decoding = (
        {length: {name: times[f"{what} {length} {name}"] for name in FAMILIES} for length in lengths}
        for what in ("training", "scoring", "decoding")
    )
    short, long = lengths[0], lengths[-1]
    rows = [
        {
            "family": NAMES[name],
            "parameters": sum(weight.numel() for weight in untrained(name, long, setting).parameters()),
            **{f"{what}, ms/token at {length}": 1000 * median(measured[length][name]) / length
               for what, measured in (("training", training), ("scoring", scoring), ("decoding", decoding))
               for length in (short, long)},
            f"decoding, growth from {short} to {long}": ratio(decoding[long][name], decoding[short][name]),
        }
        for name in FAMILIES
    ]  # fmt: skip
    page.tables.append(Table("Cost of one row by its length", rows))
    for name, title, measured in (
        ("training", "Training: forward and backward pass over one row", training),
        ("scoring", "Scoring: the likelihood of one row, all positions at once", scoring),
        ("decoding", "Decoding: one row, greedily", decoding),
    ):
        lines = {
            NAMES[one]: Series(lengths, [1000 * median(measured[length][one]) / length for length in lengths])
            for one in FAMILIES
        }
        page.plots.append(
            Plot(name, title, "length, in tokens", "milliseconds per token", lines, log_x=True, log_y=True)
        )
    cost_verdicts(page, training, scoring, decoding)


def cost_verdicts(page: Page, training: Times, scoring: Times, decoding: Times) -> None:
    lengths = list(training)
    short, long = lengths[0], lengths[-1]
    times = "times as long"
    slower = [
        Case(
            f"a row has {length} tokens",
            ratio(training[length]["recurrent"], training[length]["causal_conv"]),
            times,
            above=1.0,
        )
        for length in lengths
    ]
    page.verdicts.append(
        judge("An RNN, trained step by step, takes longer to train than a convolution of its size", slower)
    )
    for other, measured in (("a training step on it", training), ("scoring it, all positions at once", scoring)):
        sequential = [
            Case(
                f"the family is {NAMES[name]} and a row has {length} tokens",
                ratio(decoding[length][name], measured[length][name]),
                times,
                above=1.0,
            )
            for name in ("causal_conv", "gpt")
            for length in (short, long)
        ]
        page.verdicts.append(
            judge(f"Generation stays sequential: generating a row takes longer than {other}", sequential)
        )
    grown = {
        name: [late / early for late, early in zip(decoding[long][name], decoding[short][name], strict=True)]
        for name in ("gpt", "recurrent")
    }
    case = Case(
        f"rows of {long} tokens are compared with {short}, and GPT with an RNN, whose step costs the same everywhere",
        ratio(grown["gpt"], grown["recurrent"]),
        "times the growth",
        above=1.0,
    )
    page.verdicts.append(judge("GPT computes more the later the position", [case]))


def untrained(name: str, length: int, setting: Setting) -> NeuralModel:
    """A model of the default size, about a million parameters."""
    torch.manual_seed(setting.seed)
    settings: dict[str, Any] = {"vocabulary": VOCABULARY}
    if name == "gpt":
        settings["context"] = length
    if setting.quick:
        settings |= {"width": 8, "layers": 1}
    model = build(name, settings)
    assert isinstance(model, NeuralModel)
    return model


def gradient_of(model: NeuralModel, length: int) -> Callable[[], object]:
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    learner = WholeSequences(model, Likelihood())

    def step() -> None:
        model.train().zero_grad()
        learner.gradient(Batch(Sequences.full(ids)))

    return step


def scoring_of(model: NeuralModel, length: int) -> Callable[[], object]:
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))

    def score() -> None:
        with torch.inference_mode():
            model.eval().log_prob(Batch(Sequences.full(ids)))

    return score


def generation_of(model: NeuralModel, length: int) -> Callable[[], object]:
    def generate() -> None:
        model.eval()
        generate_tokens(model, [[]], length=length, sampling=GREEDY, seeds=[0])

    return generate


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=("text", "images", "cost"))
