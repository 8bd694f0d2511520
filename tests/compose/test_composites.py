"""Composites with any gate are causal, and invalid settings are explained."""

from __future__ import annotations

import pytest

from chainrule.errors import ConfigError
from chainrule.testing import check_model, tiny_model
from chainrule.testing.tiny import COMPOSED


@pytest.mark.parametrize("gate", ["learned", "context"])
@pytest.mark.parametrize("composite", ["mixture", "ensemble"])
def test_no_gradient_reaches_the_future_through_a_gate(
    composite: str, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = {"gate": gate, "parts": ({"family": "gpt", **_SMALL, "context": 16}, {"family": "recurrent", "width": 6})}
    monkeypatch.setitem(COMPOSED[composite], "longer", longer)  # type: ignore[index]
    check = "no_gradient_reaches_the_future"
    [finding] = check_model(lambda: tiny_model(composite, "longer"), only=check)
    assert finding.status == "passed"


_SMALL = {"layers": 1, "width": 8, "heads": 2}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mixture", {"parts": []}, "parts"),
        ("mixture", {"parts": [{"order": 3}]}, "model.parts.0.family"),
        ("mixture", {"parts": [{"family": "gpt", "widht": 3}]}, "did you mean 'width'"),
        ("mixture", {"parts": [{"family": "gtp"}]}, "did you mean 'gpt'"),
        ("mixture", {"parts": [{"family": "ngram", "vocabulary": 7}]}, "vocabulary of 7"),
        ("mixture", {"parts": [{"family": "ngram"}], "weights": [0.5, 0.5]}, "2 weights for 1 parts"),
        ("mixture", {"parts": [{"family": "ngram"}], "weights": [-1.0]}, "must not be negative"),
        ("mixture", {"parts": [{"family": "ngram"}], "gate": "magic"}, "gate"),
        ("sliding", {"model": {"family": "ngram"}}, "needs no sliding window"),
        ("sliding", {"model": {"family": "gpt", "context": 8}, "overlap": 8}, "lower it to 4"),
        ("reverse", {"model": {"family": "ngram"}}, "neural"),
    ],
)
def test_a_mistake_in_the_settings_is_explained(name: str, settings: dict[str, object], message: str) -> None:
    from chainrule.families import build

    with pytest.raises(ConfigError, match=message):
        build(name, {"vocabulary": 5, **settings})
