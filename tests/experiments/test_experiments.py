"""The experiments: every one runs on built-in data, and verdicts follow from the numbers."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import claims
import measuring
import recalling
from chainrule.data.corpus import Corpus
from chainrule.families import build
from claims import Case, Interval, Page, Plot, Series, Table, judge, mean_interval

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "experiments").glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_experiment_runs_on_built_in_data_and_writes_its_page(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "argv", [script.name, "--quick", "--threads", "1", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    name = script.stem.replace("_", "-")
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    results = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert results["verdicts"]
    assert results["left_out"] == []
    for one in results["verdicts"]:
        assert one["verdict"] in ("held", "did not hold") or one["verdict"].startswith("held only where ")
        assert one["sentence"] in page
    for picture in tmp_path.glob("*.svg"):
        assert picture.name in page
    assert "quick, which measures nothing" in page


def case(where: str, low: float) -> Case:
    return Case(where, Interval(low + 1, low, low + 2), "bits")


def test_a_claim_holds_if_every_interval_is_above_zero() -> None:
    assert judge("A beats B", [case("x", 0.1), case("y", 0.2)]).verdict == "held"


def test_a_claim_holds_only_where_its_interval_is_above_zero() -> None:
    cases = [case("the data is text", 0.1), case("the data is images", -0.1), case("the text is short", 0.3)]
    found = judge("A beats B", cases)
    assert found.verdict == "held only where the data is text and the text is short"
    assert "the data is images: 0.9 [-0.1, 1.9] bits" in found.sentence


def test_a_claim_does_not_hold_if_zero_is_in_every_interval() -> None:
    assert judge("A beats B", [case("x", -0.01)]).verdict == "did not hold"
    assert judge("A beats B", [case("x", 0.0)]).verdict == "did not hold"


def test_a_claim_with_bounds_holds_if_the_interval_is_inside_them() -> None:
    steps = Interval(11.0, 10.0, 12.0)
    about_seven = Case("the cell is an RNN", steps, "steps", above=3.5, below=14.0)
    assert judge("It fades in about 7 steps", [about_seven]).verdict == "held"
    assert str(about_seven) == "the cell is an RNN: 11 [10, 12] steps, to be from 3.5 to 14"
    assert not about_seven._replace(below=11.5).holds
    assert not about_seven._replace(above=10.5).holds
    assert str(case("x", 1.0)._replace(above=1.0)).endswith("bits, to be above 1")


def test_a_number_without_uncertainty_has_no_interval() -> None:
    assert str(claims.exact(2.5)) == "2.5"
    assert str(Interval(2.5, 2.0, 3.0)) == "2.5 [2, 3]"


def test_text_beyond_a_distance_saves_what_the_longest_context_saves_more() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, 400)
    nats = {"near": {4: 2.0 + noise, 8: 2.0 + noise}, "far": {4: 2.0 + noise, 8: 1.5 + noise}}
    assert measuring.saved_beyond(nats, "far", 4).value == pytest.approx(0.5)
    assert measuring.saved_beyond(nats, "far", 4, more_than="near").low == pytest.approx(0.5)
    assert measuring.saved_beyond(nats, "near", 4, more_than="far").high == pytest.approx(-0.5)


def test_the_interval_of_a_mean_contains_it_and_shrinks_with_more_values() -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, 2000)
    few, many = mean_interval(values[:50]), mean_interval(values)
    assert many.low < many.value < many.high
    assert many.high - many.low == pytest.approx(4 / np.sqrt(2000), rel=0.1)
    assert few.high - few.low > 3 * (many.high - many.low)


def test_a_context_that_saves_nothing_ends_the_reach() -> None:
    rng = np.random.default_rng(0)
    noise = {context: rng.normal(0, 0.01, 500) for context in (1, 2, 4, 8, 16)}
    level = {1: 3.0, 2: 2.0, 4: 1.5, 8: 1.5, 16: 1.0}
    gained = measuring.gains({context: level[context] + noise[context] for context in level})
    assert list(gained) == [2, 4, 8, 16]
    assert gained[2].value == pytest.approx(1.0, abs=0.01)
    assert measuring.reach(gained) == 4


def test_text_beyond_a_finite_memory_saves_nothing() -> None:
    """The measurement replaces exactly what is further away than the context."""
    torch.manual_seed(0)
    model = build("finite_memory", {"vocabulary": 11, "memory": 4, "width": 8, "layers": 1})
    tokens = np.random.default_rng(0).integers(11, size=400).astype(np.uint8)
    corpus = Corpus(tokens=tokens, offsets=None, bytes=400, characters=400, words=80, unknown=0, fingerprint="")
    nats = measuring.nats_by_context(model, corpus, (1, 2, 4, 8), rows=50, seed=0)
    np.testing.assert_allclose(nats[4], nats[8], rtol=1e-5)
    assert np.abs(nats[2] - nats[4]).max() > 1e-4


def test_a_page_has_its_verdicts_tables_and_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = Page("004-families", "Families", "004_families.py", {"budget": "a minute"})
    page.verdicts.append(judge("A beats B", [case("x", 0.1)]))
    page.tables.append(Table("Numbers", [{"name": "A", "count": 1234, "bits": 1.23456}]))
    page.plots.append(Plot("curve", "A curve", "x", "y", {"A": Series([1, 2], [3, 4], ([2, 3], [4, 5]))}))
    page.left_out.append("images")
    (tmp_path / "004-families-earlier.svg").write_text("a plot of an earlier run")
    text = page.write(tmp_path).read_text(encoding="utf-8")
    assert "| A | 1,234 | 1.235 |" in text
    assert "- A beats B: **held** (x: 1.1 [0.1, 2.1] bits)." in text
    assert "![A curve](004-families-curve.svg)" in text
    assert [picture.name for picture in tmp_path.glob("*.svg")] == ["004-families-curve.svg"]
    assert "Not part of this run: images; not run yet." in text
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "- A beats B: **held**" in index
    assert "[001-hybrid](001-hybrid.md): **not run yet**" in index
    assert "Not run yet." in (tmp_path / "001-hybrid.md").read_text(encoding="utf-8")


def test_the_index_of_the_manual_is_the_one_that_the_results_give(tmp_path: Path) -> None:
    for file in (ROOT / "docs" / "claims").glob("*.json"):
        shutil.copy(file, tmp_path)
    claims.write_index(tmp_path)
    written = (ROOT / "docs" / "claims" / "index.md").read_text(encoding="utf-8")
    assert (tmp_path / "index.md").read_text(encoding="utf-8") == written


def test_distances_of_a_curriculum_grow_to_the_longest() -> None:
    distances = recalling.short_to_long(100, 3000, seed=0)
    assert min(distances) == 1
    assert max(distances[:200]) <= 10
    assert 90 < max(distances) <= 100
    assert np.median(distances[2000:]) == pytest.approx(10, rel=0.2)  # log-uniform from 1 to 100


def test_a_short_distance_is_learned_and_the_training_ends() -> None:
    torch.manual_seed(0)
    left = iter([2] * 400)
    model = recalling.trained_recaller("lstm", "orthogonal", left, 32, until=0.05)
    assert recalling.recall_accuracy(model, 2) == 1.0
    assert len(list(left)) > 50


def test_the_stored_command_has_neither_the_output_folder_nor_the_path_of_the_features() -> None:
    given = ["--minutes", "3", "--features", "models/bert", "--out", "somewhere", "--quick"]
    assert measuring._reproducible(given) == ("--minutes", "3", "--features", "bert", "--quick")
