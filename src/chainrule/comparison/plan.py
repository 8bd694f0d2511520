"""What a comparison will do, decided before it begins and kept in plan.json: who runs, how large, for how long."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field

from chainrule.comparison.subject import Subject
from chainrule.config import DataConfig, Settings, TrainConfig
from chainrule.families import build, family
from chainrule.interface.base import NeuralModel

TRAINING_SHARE = 0.7  # of the minutes of a comparison; the rest is for scoring, mixing and measuring
WIDTHS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
TOKENS_A_PARAMETER = 2.0  # seen in training: fewer and the model is too large for its budget, more and too small
EFFICIENCY = 0.45  # share of the speed of a plain matrix product that training reaches
STEPS = 1200  # that a training should have at least
SMALLEST_BATCH = 512  # tokens; fewer do not fill the products
ROWS = 8  # that a batch should have at least; a context is made shorter for it
MANY_PASSES = 4.0  # over the data, from which on a model needs dropout
MANY_TOKENS = 1000  # in a vocabulary: words rather than characters, whose longer n-grams are seldom seen twice


class Leg(Settings):
    """One family's part."""

    family: str
    model: dict[str, Any] = Field({}, description="settings of the model")
    train: dict[str, Any] = Field({}, description="settings of its training")


class Plan(Settings):
    """The whole comparison, before it is run."""

    format: Literal[1] = 1
    command: str = Field(description="what reproduces it")
    data: DataConfig
    tokenizer: str
    seed: int
    threads: int = Field(description="of each leg")
    jobs: int = Field(description="legs that run side by side")
    minutes: float | None = Field(description="for the whole comparison")
    leg_minutes: float | None = Field(description="of them, the training of each leg")
    tokens: int | None = Field(description="or training tokens, for each leg")
    overrides: list[str] = Field([], description="settings that the user has chosen")
    legs: list[Leg]

    @property
    def budget(self) -> str:
        """What each leg is given, for a reader."""
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        if self.tokens is not None:
            return f"{self.tokens:,} training tokens each, on {threads}"
        return f"{self.leg_minutes:.3g} minutes of training each, on {threads}, {self.jobs} at a time"


def make_plan(
    names: Sequence[str],
    *,
    subject: Subject,
    minutes: float | None,
    tokens: int | None,
    threads: int,
    chosen: Mapping[str, Mapping[str, Any]],
    **settings: Any,
) -> Plan:
    """Share the time out, and choose a size for every family. What the user has `chosen` for one of them stands."""
    runners = sum(map(is_neural, names))
    jobs = max(1, min(runners, (os.cpu_count() or 1) // threads))
    leg_minutes = None
    if minutes is not None:
        leg_minutes = minutes * TRAINING_SHARE / max(1, math.ceil(runners / jobs))
    return Plan(
        minutes=minutes,
        leg_minutes=leg_minutes,
        tokens=tokens,
        threads=threads,
        jobs=jobs,
        legs=legs(
            names,
            train_tokens=len(subject.train),
            sizes=subject.sizes,
            operations=None if leg_minutes is None else leg_minutes * 60 * speed(threads),
            tokens=tokens,
            chosen=chosen,
        ),
        **settings,
    )


def is_neural(name: str) -> bool:
    """Whether a family is trained by gradients, so that a budget means something to it."""
    return issubclass(family(name), NeuralModel)


def width_for(name: str, sizes: Mapping[str, Any], operations: float) -> int:
    """The width of a family that suits a budget of floating-point operations.

    A model of P parameters takes about 6 P operations for each token of training. The best size for a budget is near
    the one at which it sees a few tokens for each of its parameters (Hoffmann et al., 2022, find some twenty for large
    corpora read once; small ones, read several times by models that learn fast, want fewer).
    """
    wanted = math.sqrt(operations / 6 / TOKENS_A_PARAMETER)
    return min(WIDTHS, key=lambda width: abs(math.log(weights(name, sizes, width) / wanted)))


def weights(name: str, sizes: Mapping[str, Any], width: int) -> int:
    """Parameters of a family at a width, counted without making them; `sizes` follow from the data."""
    with torch.device("meta"):
        model = build(name, {**sizes, "width": width})
    return sum(parameter.numel() for parameter in model.parameters())


def speed(threads: int, seconds: float = 0.3) -> float:
    """Operations a second that training may count on: a share of what a matrix product reaches on this machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.randn(512, 512), torch.randn(512, 512)
        torch.mm(left, right)
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            torch.mm(left, right)
            done += 1
        return EFFICIENCY * done * 2 * 512**3 / (time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)


def dropout(passes: float) -> float:
    """More passes over the same text want more of it."""
    if passes < MANY_PASSES:
        return 0.0
    return 0.1 if passes < 2 * MANY_PASSES else 0.2 if passes < 4 * MANY_PASSES else 0.3


def batch_for(name: str, seen: float) -> int:
    """Tokens in a step: the family's own, or fewer where there would be too few steps."""
    kind = family(name)
    assert issubclass(kind, NeuralModel)
    usual: int = kind.recipe.get("batch_tokens", TrainConfig().batch_tokens)
    wanted = int(2 ** round(math.log2(max(1.0, seen) / STEPS)))
    return max(SMALLEST_BATCH, min(usual, wanted))


def legs(
    families: Iterable[str],
    *,
    sizes: Callable[[str], Mapping[str, Any]],
    train_tokens: int,
    operations: float | None,
    tokens: int | None,
    chosen: Mapping[str, Mapping[str, Any]],
) -> list[Leg]:
    """A size for every family, from the operations or the tokens that each will have."""
    found = []
    for name in families:
        given = chosen.get(name, {})
        settings, training = dict(given.get("model", {})), dict(given.get("train", {}))
        known = sizes(name)
        if not is_neural(name):
            if "order" in family(name).Config.model_fields:
                settings.setdefault("order", 7 if known["vocabulary"] < MANY_TOKENS else 5)
            found.append(Leg(family=name, model=settings, train=training))
            continue
        seen = float(tokens or 0)  # where every model sees the same text, its size is the family's own
        if operations is not None:
            if "width" not in settings:
                settings["width"] = width_for(name, known, operations)
            seen = operations / 6 / weights(name, known, settings["width"])
        training.setdefault("batch_tokens", batch_for(name, seen))
        settings = {**fitting(name, seen / train_tokens, training["batch_tokens"]), **settings}
        found.append(Leg(family=name, model=settings, train=training))
    return found


def fitting(name: str, passes: float, batch_tokens: int) -> dict[str, Any]:
    """Settings of a neural family besides its width: they follow from the passes over the text, and from the batch."""
    settings: dict[str, Any] = {"dropout": dropout(passes)}
    context = family(name).Config.model_fields.get("context")
    if context is not None:
        settings["context"] = min(context.default, max(1, batch_tokens // ROWS))
    return settings


def counted_first(names: Sequence[str]) -> list[str]:
    """Count models are done in seconds, so that a first result comes early."""
    return sorted(names, key=is_neural)
