"""Runs of hybrids with another γ, the weight of their non-autoregressive branch."""

from __future__ import annotations

from dataclasses import replace

from chainrule.errors import ConfigError
from chainrule.interface.capabilities import Branched
from chainrule.tasks.base import RunT


def with_gamma(run: RunT, gamma: float | None) -> RunT:
    """The run with a fixed γ: 0 is the autoregressive branch, 1 the non-autoregressive one; None: as trained."""
    if gamma is None:
        return run
    if not isinstance(run.model, Branched):
        raise ConfigError(
            f"gamma weights the two branches of a hybrid, and {str(run.path)!r} is a {run.config.family}; leave it "
            "out, or give a run of hybrid or hybrid_language"
        )
    return replace(run, model=run.model.with_gamma(gamma))
