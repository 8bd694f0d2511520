"""The likelihood of a hybrid, and BLEU if it translates, as functions of the weight γ of its non-autoregressive branch.

The weights are those of one trained model; only γ varies. γ = 0 and γ = 1 are the branches by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from chainrule.config import Settings
from chainrule.data.corpus import Corpus
from chainrule.decoding import Search, Translator
from chainrule.errors import ConfigError, MissingExtra
from chainrule.evaluation.likelihood import score
from chainrule.evaluation.translation import score_translations
from chainrule.interface.base import AutoregressiveModel, DensityModel
from chainrule.interface.capabilities import Branched

GAMMAS = tuple(step / 10 for step in range(11))


class SweepPoint(Settings):
    """Metrics at one γ."""

    gamma: float | None = Field(description="none: the learned γ, which may depend on the context")
    nats_per_token: float
    bits_per_byte: float | None = Field(None, description="text only")
    bleu: float | None = Field(None, description="translation only")
    chrf: float | None = Field(None, description="translation only")

    @property
    def name(self) -> str:
        return "learned" if self.gamma is None else f"{self.gamma:g}"


Report = Callable[[SweepPoint], None]


def sweep_translation(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    gammas: Sequence[float] = GAMMAS,
    search: Search | None = None,
    target_language: str = "",
    progress: Report | None = None,
) -> list[SweepPoint]:
    """Translate held-out sources and score their references with the learned γ, and with each of `gammas`."""
    points = []
    for gamma, model in _models(translator.model, gammas):
        found = score_translations(
            replace(translator, model=model),
            sources,
            references,
            search or Search(beam=1),
            target_language=target_language,
        )
        point = SweepPoint(gamma=gamma, nats_per_token=found.nats_per_token, bleu=found.bleu, chrf=found.chrf)
        points.append(_reported(point, progress))
    return points


def sweep_text(
    model: DensityModel, corpus: Corpus, *, gammas: Sequence[float] = GAMMAS, progress: Report | None = None
) -> list[SweepPoint]:
    """Score a held-out text with the learned γ, and with each of `gammas`."""
    points = []
    for gamma, at_gamma in _models(model, gammas):
        found = score(at_gamma, corpus)
        point = SweepPoint(gamma=gamma, nats_per_token=found.nats_per_token, bits_per_byte=found.bits_per_byte)
        points.append(_reported(point, progress))
    return points


def _models(model: DensityModel, gammas: Sequence[float]) -> Iterator[tuple[float | None, AutoregressiveModel]]:
    """The model as it is, and with each γ."""
    if not isinstance(model, Branched) or not isinstance(model, AutoregressiveModel):
        raise ConfigError(f"{type(model).__name__} has no γ; use a run of hybrid or hybrid_language")
    if model.fixed_gamma is None:
        yield None, model
    for gamma in gammas:
        yield gamma, model.with_gamma(gamma)


def _reported(point: SweepPoint, progress: Report | None) -> SweepPoint:
    if progress is not None:
        progress(point)
    return point


def require_plots() -> None:
    """Raise MissingExtra if sweeps cannot be plotted."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("plotting a sweep of γ", "plots") from None


def draw_sweep(points: Sequence[SweepPoint], file: Path) -> None:
    """Plot the metrics over γ, in the format of the file's ending; dashed lines are the learned γ."""
    require_plots()
    from matplotlib.figure import Figure

    bleu = [point.bleu for point in points if point.bleu is not None]
    bits = [point.bits_per_byte for point in points if point.bits_per_byte is not None]
    curves = {"bits/byte": bits} if bits else {"nats/token": [point.nats_per_token for point in points]}
    curves |= {"BLEU": bleu} if bleu else {}
    fixed = {index: point.gamma for index, point in enumerate(points) if point.gamma is not None}
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, values, colour in zip(curves, curves.values(), ("tab:blue", "tab:orange"), strict=False):
        panel = axes if colour == "tab:blue" else axes.twinx()
        panel.plot(list(fixed.values()), [values[index] for index in fixed], marker="o", color=colour)
        for index in set(range(len(points))) - fixed.keys():
            panel.axhline(values[index], linestyle="--", color=colour, linewidth=1)
        panel.set_ylabel(name, color=colour)
    axes.set_xlabel("γ, the weight of the non-autoregressive branch (dashed: learned)")
    figure.savefig(file)
