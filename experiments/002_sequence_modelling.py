"""Recurrent networks, their training and their search: gradients, memory, peepholes, attention, NCE, beam, features.

    python experiments/002_sequence_modelling.py [--quick] [--minutes 30] [--threads 2] [--parts gradient recall …]

The notes say that the gradient of an RNN fades in about 7 steps and that an LSTM remembers about 100; that peepholes
are better at the price of more parameters; that attention helps where the source is long; that noise-contrastive
estimation makes training faster; that beam search finds better sentences than greedy search; and that word2vec and
ELMo give words better vectors than those learned with the task.

gradient: the norm of the derivative of a hidden vector by the state d steps before, on random inputs, relative to one
step; faded means below a hundredth, about means within a factor of 2. recall: a symbol, d random symbols of another
alphabet, and the first one is to be named; one layer of each cell is trained on distances up to 128 at once. Both for
two initialisations of the recurrent matrix: orthogonal, as in the package, and uniform within 1/√width, as in
PyTorch. The other parts train models of the package on WikiText-2, Multi30k and SST-2.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from chainrule.decoding import Search
from chainrule.nn.recurrent import CELLS, RecurrentLayer
from claims import Case, Interval, Page, Plot, Series, Table, exact, judge, mean_interval
from measuring import Setting, held_out, run_experiment, text_data
from translating import BLEU_UNIT, bleu, bleu_gain, pairs, translations

INITIALISATIONS = ("orthogonal", "uniform")
FADED = 0.01
RNN_STEPS, LSTM_STEPS = 7, 100  # what the notes say
FACTOR = 2.0  # "about": within this factor
KEYS, FILLERS = 8, 8
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


# Gradients and memory


def layer_of(cell: str, initialisation: str, width: int) -> RecurrentLayer:
    layer = CELLS[cell](width, width)
    if initialisation == "uniform":
        torch.nn.init.uniform_(layer.recurrent_weight, -(width**-0.5), width**-0.5)
    return layer


def gradient_norms(cell: str, initialisation: str, distances: list[int], width: int, draws: int) -> np.ndarray:
    """(draws, distances): ‖∂(v·h_t)/∂state_{t−d}‖ for a random direction v, relative to d = 1."""
    found = np.zeros((draws, len(distances)))
    for draw in range(draws):
        layer = layer_of(cell, initialisation, width)
        with torch.no_grad():
            _, state = layer(torch.randn(32, 1, width), layer.initial(1))
        states = [tuple(part.requires_grad_() for part in state)]
        for inputs in torch.randn(max(distances), 1, width):
            states.append(layer.cell(inputs, states[-1], layer.recurrent_weight))
        before = [part for distance in distances for part in states[-1 - distance]]
        parts = torch.autograd.grad((states[-1][0] * torch.randn(1, width)).sum(), before)
        squares = np.array([float(part.square().sum()) for part in parts])
        found[draw] = np.sqrt(squares.reshape(len(distances), -1).sum(1))
    return found / found[:, :1]


def gradients(setting: Setting, page: Page) -> None:
    distances = [1, 2, 4, 8] if setting.quick else [1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224]
    width, draws = setting.size(128, 8), setting.size(20, 3)
    rows, lines, faded = [], {}, {}
    for initialisation in INITIALISATIONS:
        for cell in CELLS:
            torch.manual_seed(setting.seed)
            norms = gradient_norms(cell, initialisation, distances, width, draws)
            faded[cell, initialisation] = mean_interval([fading_step(row, distances) for row in norms])
            points = {distance: mean_interval(norms[:, index]) for index, distance in enumerate(distances)}
            lines[f"{cell}, {initialisation}"] = Series.of(points)
            rows.append(
                {
                    "cell": cell,
                    "initialisation": initialisation,
                    **{f"{distance} steps": points[distance].value for distance in distances[1::3]},
                    "faded after": faded[cell, initialisation],
                }
            )
    page.tables.append(Table("Gradient norm by distance, relative to one step", rows))
    for initialisation in INITIALISATIONS:
        shown = {name: line for name, line in lines.items() if name.endswith(initialisation)}
        title = f"Gradient norm by distance, {initialisation} initialisation"
        page.plots.append(Plot(f"gradient-{initialisation}", title, "steps", "relative norm", shown, True, True))
    near = [
        Case(f"the initialisation is {one}", within(faded["rnn", one], RNN_STEPS), "times to spare")
        for one in INITIALISATIONS
    ]
    page.verdicts.append(judge(f"The gradient of an untrained RNN fades in about {RNN_STEPS} steps", near))
    longer = [
        Case(
            f"the initialisation is {one}",
            ratio_of(faded["lstm", one], faded["rnn", one]).minus(1),
            "times as many steps, less 1",
        )
        for one in INITIALISATIONS
    ]
    page.verdicts.append(judge("The gradient of an untrained LSTM fades later than that of an RNN", longer))


def fading_step(norms: np.ndarray, distances: list[int]) -> float:
    """The first distance with less than a hundredth of the norm, between measured ones on a log scale."""
    below = np.flatnonzero(norms < FADED)
    if not len(below):
        return float(distances[-1])
    last = int(below[0])
    high, low = math.log(norms[last - 1]), math.log(max(norms[last], 1e-30))
    part = (high - math.log(FADED)) / (high - low)
    return distances[last - 1] + part * (distances[last] - distances[last - 1])


def within(steps: Interval, stated: float) -> Interval:
    """Positive if the steps are the stated ones within a factor: the margin on the nearer side, as a ratio."""
    margins = sorted(FACTOR / max(step / stated, stated / step) - 1 for step in (steps.low, steps.high))
    value = FACTOR / max(steps.value / stated, stated / steps.value) - 1
    return Interval(value, min(value, margins[0]), max(value, margins[1]))


def ratio_of(first: Interval, second: Interval) -> Interval:
    """A conservative interval: the ends of one against the opposite ends of the other."""
    return Interval(first.value / second.value, first.low / second.high, first.high / second.low)


class Recaller(torch.nn.Module):
    """One recurrent layer that names the first symbol after the last."""

    def __init__(self, cell: str, initialisation: str, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(KEYS + FILLERS, width)
        self.layer = layer_of(cell, initialisation, width)
        self.readout = torch.nn.Linear(width, KEYS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layer(self.embedding(symbols.t()), self.layer.initial(len(symbols)))
        logits: torch.Tensor = self.readout(hidden[-1])
        return logits


def recall_batch(distance: int, rows: int) -> torch.Tensor:
    """(B, 1 + distance): a key and `distance` fillers."""
    fillers = KEYS + torch.randint(FILLERS, (rows, distance))
    return torch.cat([torch.randint(KEYS, (rows, 1)), fillers], dim=1)


def trained_recaller(cell: str, initialisation: str, setting: Setting) -> Recaller:
    torch.manual_seed(setting.seed)
    model = Recaller(cell, initialisation, setting.size(64, 8))
    steps, longest = setting.size(1500, 3), setting.size(128, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(steps):
        reached = max(1.0, longest * min(1.0, 1.5 * (step + 1) / steps))  # the longest distance so far
        symbols = recall_batch(round(math.exp(np.random.default_rng(step).uniform(0, math.log(reached)))), 32)
        optimizer.zero_grad()
        F.cross_entropy(model(symbols), symbols[:, 0]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: Recaller, distance: int, rows: int) -> Interval:
    symbols = recall_batch(distance, rows)
    return mean_interval((model(symbols).argmax(1) == symbols[:, 0]).double().numpy())


def recall(setting: Setting, page: Page) -> None:
    distances = [1, 4, 8] if setting.quick else [1, 3, 7, 14, 25, 50, 100, 128]
    rows, lines, found = [], {}, {}
    for initialisation in INITIALISATIONS:
        for cell in CELLS:
            model = trained_recaller(cell, initialisation, setting)
            points = {distance: accuracy(model, distance, setting.size(1000, 20)) for distance in distances}
            found[cell, initialisation] = points
            lines[f"{cell}, {initialisation}"] = Series.of(points)
            row = {f"{distance}": point.value for distance, point in points.items()}
            rows.append({"cell": cell, "initialisation": initialisation, **row})
            print(f"recall {cell} {initialisation}", flush=True)
    page.tables.append(Table(f"Accuracy of recall by distance; chance is {1 / KEYS:g}", rows))
    for initialisation in INITIALISATIONS:
        shown = {name: line for name, line in lines.items() if name.endswith(initialisation)}
        title = f"Recall by distance, {initialisation} initialisation"
        page.plots.append(Plot(f"recall-{initialisation}", title, "steps in between", "accuracy", shown, log_x=True))
    far = 8 if setting.quick else LSTM_STEPS
    remembers = [
        Case(f"the initialisation is {one}", found["lstm", one][far].minus(0.9), "accuracy above 0.9")
        for one in INITIALISATIONS
    ]
    page.verdicts.append(judge(f"A trained LSTM remembers for about {LSTM_STEPS} steps", remembers))
    past = 8 if setting.quick else 2 * RNN_STEPS
    forgets = [
        Case(f"the initialisation is {one}", Interval(*(0.9 - found["rnn", one][past][index] for index in (0, 2, 1))),
             f"accuracy below 0.9 at {past} steps")
        for one in INITIALISATIONS
    ]  # fmt: skip
    page.verdicts.append(judge(f"A trained RNN has forgotten after about {RNN_STEPS} steps", forgets))


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
        run = setting.train(f"peephole-{number}", "recurrent", share=0.06, settings=settings, **options)
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
    growth = exact(found["peephole, matrix"].parameters / found["lstm"].parameters - 1.9)
    page.verdicts.append(
        judge("Peepholes double the parameters", [Case("they are matrices", growth, "times as many, less 1.9")])
    )


def noise(setting: Setting, page: Page) -> None:
    options, data = text_data(setting)
    found = {}
    for objective in ("likelihood", "nce"):
        settings = {"train": {"objective": objective}, "model": {"width": 256}, "data": data}
        run = setting.train(
            f"noise-{objective}", "recurrent", share=0.1, settings=settings, tokenizer="words:20000", **options
        )
        found[objective] = held_out(run, setting.size(60_000, 1500))
    trained = {name: int(str(one.trained["training tokens"])) for name, one in found.items()}
    rows = [
        {"objective": name, "training tokens in the same time": trained[name], "bits/byte": one.bits}
        for name, one in found.items()
    ]
    page.tables.append(Table("Noise-contrastive estimation against maximum likelihood, 20,000 words", rows))
    faster = exact(trained["nce"] / trained["likelihood"] - 1)
    page.verdicts.append(
        judge("NCE reads more text in the same time", [Case("words are 20,000", faster, "times as much, less 1")])
    )
    better = [Case("the time is equal", found["nce"].gain_over(found["likelihood"]), "bits/byte")]
    page.verdicts.append(judge("NCE is better than maximum likelihood at equal time", better))


# Translation: attention and beam search


def attention_and_beam(setting: Setting, page: Page) -> None:
    data = pairs(setting)
    runs = {
        attention: setting.train(
            f"seq2seq-{attention}", "seq2seq", share=0.14, settings={"model": {"attention": attention}}, **data.options
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
    texts = setting.runs / "texts.txt"
    texts.write_text("".join(f"{line.split(chr(9))[0]}\n" for line in source), encoding="utf-8")
    held = setting.runs / "test.tsv"
    held.write_text("\n".join(test) + "\n", encoding="utf-8")
    pretrained = {
        "word2vec": setting.train("word2vec", "word2vec", share=0.05, data=str(texts), tokenizer="words"),
        "elmo": setting.train("elmo", "elmo", share=0.1, data=str(texts), tokenizer="words"),
    }
    sizes = (20, 40) if setting.quick else (100, 300, 1000, 3000)
    order = np.random.default_rng(setting.seed).permutation(len(source))
    found: dict[str, dict[int, Interval]] = {name: {} for name in ("learned", *pretrained)}
    right: dict[tuple[str, int], np.ndarray] = {}
    for size in sizes:
        file = setting.runs / f"{size}.tsv"
        file.write_text("".join(f"{source[index]}\n" for index in order[:size]), encoding="utf-8")
        for name in found:
            model = {"encoder_run": str(pretrained[name].path)} if name in pretrained else {}
            right[name, size] = correct(setting, f"{name}-{size}", file, held, model)
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


def correct(setting: Setting, name: str, file: Path, held: Path, model: dict[str, Any]) -> np.ndarray:
    """Whether a classifier trained on a file labels each held-out text correctly."""
    tokenizer = {} if model else {"tokenizer": "words"}
    settings = {"model": model, "train": {"patience": 5}}
    run: Any = setting.train(
        f"classifier-{name}", "classifier", share=0.01, settings=settings, data=str(file), **tokenizer
    )
    texts, labels = zip(*(line.split("\t")[:2] for line in held.read_text(encoding="utf-8").splitlines()), strict=True)
    return np.array(
        [float(one is not None and one.label == label) for one, label in zip(run.predict(texts), labels, strict=True)]
    )


if __name__ == "__main__":
    run_experiment(__file__, experiment, parts=PARTS)
