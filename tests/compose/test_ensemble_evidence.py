"""The shortlist that represents a large vocabulary when the gate of an ensemble is fitted."""

from __future__ import annotations

import torch

from chainrule.compose.ensemble import SHORTLIST, Ensemble
from chainrule.testing import tiny_model

VOCABULARY = 4 * SHORTLIST


def test_no_gate_gives_the_target_more_than_all_probability() -> None:
    """Not even a negative weight, which makes the least probable tokens of a part probable."""
    log_probs, targets, evidence, ensemble = evidence_of(200)
    unlikeliest = sum(log_probs).argmin(-1)
    assert (unlikeliest == targets).any()
    for weights in ([1.0, -0.5], [-1.0, -1.0], [3.0, -2.0], [0.0, 0.1]):
        assert (ensemble.losses(torch.tensor([weights]).expand(len(targets), 2), evidence) >= 0).all()


def test_the_estimate_is_unbiased() -> None:
    log_probs, targets, evidence, ensemble = evidence_of(2000)
    scores = torch.tensor([[0.7, 0.5]]).expand(len(targets), 2)
    exact = -ensemble.combine(log_probs, scores).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(ensemble.losses(scores, evidence).mean(), exact.mean(), rtol=0.01, atol=0.0)


def evidence_of(count: int):
    """Two different parts; every other target is the least probable token."""
    generator = torch.Generator().manual_seed(0)
    log_probs = [3 * torch.randn(count, VOCABULARY, generator=generator) for _ in range(2)]
    log_probs = [one.log_softmax(-1) for one in log_probs]
    targets = sum(log_probs).exp().multinomial(1, generator=generator)[:, 0]
    targets[::2] = sum(log_probs).argmin(-1)[::2]
    ensemble = Ensemble.of([tiny_model("ngram"), tiny_model("recurrent")])
    evidence = ensemble.evidence(log_probs, targets, torch.zeros(count, 0), generator)
    return log_probs, targets, evidence, ensemble
