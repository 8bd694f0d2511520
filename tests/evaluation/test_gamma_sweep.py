"""The sweep over γ."""

from __future__ import annotations

from pathlib import Path

import pytest

import chainrule
from chainrule.decoding import Search
from chainrule.errors import ConfigError
from chainrule.evaluation.gamma_sweep import draw_sweep, sweep_translation


def test_a_sweep_scores_one_model_at_every_gamma(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{word}\t{word[::-1]}\n" for word in ("abc", "bca", "cab", "aab", "bba", "cca") * 5))
    run = chainrule.train(
        "hybrid",
        data=str(pairs),
        steps=3,
        out=tmp_path / "run",
        scored=False,
        settings={
            "model": {"width": 8, "layers": 1, "heads": 2, "gate": "learned"},
            "train": {"validate_bleu": False},
            "data": {"duplicates": "keep"},
        },
    )
    translator, search = run.translator(), Search(beam=1)
    points = sweep_translation(translator, ["abc", "cab"], ["cba", "bac"], gammas=(0.0, 0.4, 1.0), search=search)
    assert [point.gamma for point in points] == [None, 0.0, 0.4, 1.0]
    assert len({point.nats_per_token for point in points}) == 4
    reached = {record.get("gamma") for record in run.folder.records("metrics.jsonl")} - {None}
    assert reached  # γ is among the training metrics
    draw_sweep(points, tmp_path / "sweep.svg")
    assert (tmp_path / "sweep.svg").stat().st_size > 5000


def test_a_model_without_a_gamma_is_refused(tmp_path: Path) -> None:
    run = chainrule.train(
        "seq2seq",
        data="builtin:dates",
        steps=1,
        out=tmp_path / "run",
        scored=False,
        settings={"model": {"width": 8, "layers": 1}, "train": {"validate_bleu": False}},
    )
    with pytest.raises(ConfigError, match="Seq2Seq has no γ"):
        sweep_translation(run.translator(), ["a"], ["b"])
