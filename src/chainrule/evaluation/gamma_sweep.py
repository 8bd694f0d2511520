"""Likelihood and BLEU of a hybrid as a function of the mixing weight γ of its two branches.

The weights are those of one trained model; only γ varies. γ = 0 and γ = 1 are the branches by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chainrule.config import Settings
from chainrule.decoding import Search, Translator
from chainrule.errors import ConfigError, MissingExtra
from chainrule.evaluation.translation import score_translations
from chainrule.models.hybrid import HybridModel

GAMMAS = tuple(step / 10 for step in range(11))


class SweepPoint(Settings):
    """Metrics at one γ; None is the model's own γ, which may depend on the context."""

    gamma: float | None
    nats_per_token: float
    bleu: float
    chrf: float


def sweep_gamma(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    gammas: Sequence[float] = GAMMAS,
    search: Search | None = None,
    target_language: str = "",
    progress: Callable[[SweepPoint], None] | None = None,
) -> list[SweepPoint]:
    """Score held-out pairs with the model's own γ, and with each of `gammas`."""
    model = translator.model
    if not isinstance(model, HybridModel):
        raise ConfigError(f"{type(model).__name__} has no γ; use a run of hybrid")
    points = []
    for gamma in (None, *gammas):
        at_gamma = translator if gamma is None else replace(translator, model=model.with_gamma(gamma))
        found = score_translations(
            at_gamma, sources, references, search or Search(beam=1), target_language=target_language
        )
        points.append(SweepPoint(gamma=gamma, nats_per_token=found.nats_per_token, bleu=found.bleu, chrf=found.chrf))
        if progress is not None:
            progress(points[-1])
    return points


def draw_sweep(points: Sequence[SweepPoint], file: Path) -> None:
    """Plot nats/token and BLEU over γ; dashed lines are the model's own γ."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plotting a sweep of γ", "plots") from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    swept = [point for point in points if point.gamma is not None]
    gammas = [point.gamma for point in points if point.gamma is not None]
    for axes, name, label, colour in (
        (left, "nats_per_token", "nats/token", "tab:blue"),
        (right, "bleu", "BLEU", "tab:orange"),
    ):
        axes.plot(gammas, [getattr(point, name) for point in swept], "o-", color=colour)
        for own in (point for point in points if point.gamma is None):
            axes.axhline(getattr(own, name), color=colour, linestyle="--", linewidth=1)
        axes.set_ylabel(label, color=colour)
        axes.tick_params(axis="y", colors=colour)
    left.set_xlabel("γ, weight of the parallel branch")
    figure.savefig(file, dpi=150)
