"""What recurrent layers keep over a distance: the gradient of untrained ones, and what trained ones recall."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from chainrule.nn.recurrent import CELLS, RecurrentLayer
from claims import Case, Interval, Page, Plot, Series, Table, judge, mean_interval
from measuring import Setting

INITIALISATIONS = ("orthogonal", "uniform")
FADED = 0.01
RNN_STEPS, LSTM_STEPS = 7, 100  # what the notes say
FACTOR = 2.0  # "about": within this factor
KEYS, FILLERS = 8, 8
RECALL_STEPS, RECALL_TRAININGS = 200, 3  # for every distance; trainings of the two cells that the notes speak of
ALONE = "one distance"
CURRICULA = {ALONE: "alone", "all distances, from short to long": "curriculum"}  # with the names of their plots
LEARNED = 0.05  # nats, mean of about 10 steps: the training ends

Recalls: TypeAlias = dict[tuple[str, str, str], dict[int, np.ndarray]]
"""Accuracies (trainings,) by cell, initialisation and curriculum, then by distance."""
Measure: TypeAlias = Callable[[Mapping[int, np.ndarray], Mapping[int, np.ndarray]], np.ndarray]
"""A function of the accuracies of an RNN and of an LSTM by distance."""


# Gradients


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
        page.plots.append(
            Plot(f"gradient-{initialisation}", title, "steps", "relative norm", shown, True, True, FADED**3)
        )
    for cell, name, stated in (("rnn", "RNN", RNN_STEPS), ("lstm", "LSTM", LSTM_STEPS)):
        near = [
            Case(f"the initialisation is {one}", faded[cell, one], "steps", stated / FACTOR, stated * FACTOR)
            for one in INITIALISATIONS
        ]
        page.verdicts.append(judge(f"The gradient of an untrained {name} fades in about {stated} steps", near))
    longer = [
        Case(
            f"the initialisation is {one}",
            ratio_of(faded["lstm", one], faded["rnn", one]),
            "times as many steps",
            above=1.0,
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


def ratio_of(first: Interval, second: Interval) -> Interval:
    """A conservative interval: the ends of one against the opposite ends of the other."""
    return Interval(first.value / second.value, first.low / second.high, first.high / second.low)


# Recall


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


def trained_recaller(
    cell: str, initialisation: str, distances: Iterable[int], width: int, until: float = 0.0
) -> Recaller:
    """A model after one step on each of the distances, or until the recent loss is below a number of nats."""
    model = Recaller(cell, initialisation, width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    recent = 1.0
    for distance in distances:
        symbols = recall_batch(distance, 32)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(symbols), symbols[:, 0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = 0.9 * recent + 0.1 * float(loss.detach())
        if recent < until:
            break
    return model


def short_to_long(longest: int, steps: int, seed: int) -> list[int]:
    """Distances of a curriculum: log-uniform up to a limit that grows to the longest in two thirds of the steps."""
    limits = longest * np.minimum(1.0, 1.5 * np.arange(1, steps + 1) / steps)
    drawn = np.random.default_rng(seed).uniform(0.0, np.log(np.maximum(limits, 1.0)))
    return [round(distance) for distance in np.exp(drawn).tolist()]


def recall_accuracies(
    cell: str, initialisation: str, curriculum: str, distances: Sequence[int], seed: int, setting: Setting
) -> list[float]:
    """Of a model for each distance, or, from short to long, of one model with as many steps as all of these."""
    torch.manual_seed(seed)
    steps, width = setting.size(RECALL_STEPS, 3), setting.size(64, 8)
    if curriculum == ALONE:
        models = [
            trained_recaller(cell, initialisation, repeat(distance, steps), width, until=LEARNED)
            for distance in distances
        ]
    else:
        lengths = short_to_long(distances[-1], steps * len(distances), seed)
        models = [trained_recaller(cell, initialisation, lengths, width)] * len(distances)
    return [recall_accuracy(model, distance) for model, distance in zip(models, distances, strict=True)]


@torch.no_grad()
def recall_accuracy(model: Recaller, distance: int) -> float:
    symbols = recall_batch(distance, 200)
    return float((model(symbols).argmax(1) == symbols[:, 0]).double().mean())


def recall(setting: Setting, page: Page) -> None:
    distances = (4, 8) if setting.quick else (3, RNN_STEPS, 2 * RNN_STEPS, 28, LSTM_STEPS)
    found: Recalls = {}
    rows = []
    for curriculum in CURRICULA:
        for initialisation in INITIALISATIONS:
            for cell in CELLS:
                trainings = setting.size(RECALL_TRAININGS if cell in ("rnn", "lstm") else 1, 1)
                right = np.array(
                    [
                        recall_accuracies(cell, initialisation, curriculum, distances, setting.seed + number, setting)
                        for number in range(trainings)
                    ]
                )
                found[cell, initialisation, curriculum] = dict(zip(distances, right.T, strict=True))
                means = {
                    f"{distance} steps": float(one) for distance, one in zip(distances, right.mean(0), strict=True)
                }
                named = {"trained on": curriculum, "initialisation": initialisation, "cell": cell}
                rows.append({**named, "trainings": trainings, **means})
                print(f"recall {cell} {initialisation} {curriculum}", flush=True)
    page.tables.append(Table(f"Accuracy of recall by distance; a guess has {1 / KEYS:g}", rows))
    for curriculum, name in CURRICULA.items():
        lines = {
            f"{cell}, {initialisation}": Series.of({distance: mean_interval(one) for distance, one in points.items()})
            for (cell, initialisation, how), points in found.items()
            if how == curriculum
        }
        page.plots.append(
            Plot(
                f"recall-{name}", f"Recall, trained on {curriculum}", "steps in between", "accuracy", lines, log_x=True
            )
        )
    recall_verdicts(page, found, distances)


def recall_verdicts(page: Page, found: Recalls, distances: Sequence[int]) -> None:
    """By the accuracies (trainings,) of each cell and distance; trainings of two cells have the same seeds."""
    far, past = distances[-1], distances[min(2, len(distances) - 1)]

    def cases(measure: Measure, unit: str, above: float = 0.0) -> list[Case]:
        return [
            Case(
                f"it is trained on {curriculum} and the initialisation is {one}",
                mean_interval(measure(found["rnn", one, curriculum], found["lstm", one, curriculum])),
                unit,
                above,
            )
            for curriculum in CURRICULA
            for one in INITIALISATIONS
        ]

    page.verdicts += [
        judge(f"An LSTM remembers {far} steps", cases(lambda rnn, lstm: lstm[far], "accuracy", above=0.9)),
        judge(f"An RNN has forgotten after {past} steps", cases(lambda rnn, lstm: 1 - rnn[past], "wrong", above=0.1)),
        judge(
            "An LSTM recalls better than an RNN, in the mean of all distances",
            cases(lambda rnn, lstm: np.mean([lstm[one] - rnn[one] for one in distances], 0), "accuracy"),
        ),
    ]
