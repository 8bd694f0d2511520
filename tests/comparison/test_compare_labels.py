"""Comparisons of classifiers: one encoder each, accuracy and macro-F1 beside the likelihood."""

from __future__ import annotations

import numpy as np
import pytest

from chainrule import load, train
from chainrule.comparison.compare import compare
from chainrule.comparison.examples import recommend_by
from chainrule.comparison.results import ComparisonRow, MetricEstimate
from chainrule.errors import ConfigError
from chainrule.evaluation.bootstrap import interval, resampled
from chainrule.evaluation.labels import label_score
from chainrule.tasks.label_comparison import LabelComparison

SMALL = [
    "words.model.embedding=8",
    "attentive_conv_unmasked.model.embedding=8",
    "attentive_conv_unmasked.model.encoder_layers=1",
]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Texts whose first word decides the label."""
    random = np.random.default_rng(0)
    lines = ["text\tlabel"]
    for _ in range(240):
        good = random.random() < 0.6
        others = " ".join(random.choice(["film", "plot", "cast", "score"], size=3))
        lines.append(f"{'fine' if good else 'dull'} {others}\t{'good' if good else 'bad'}")
    path = tmp_path_factory.mktemp("labels") / "labelled.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(labelled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(folder / "cache"))
        vectors = train(
            "elmo", data=str(labelled), tokenizer="words", tokens=500, out=folder / "elmo", progress=False,
            scored=False, settings={"model": {"width": 8, "layers": 1}},
        )  # fmt: skip
        results = compare(
            str(labelled),
            out=folder / "out",
            families=["words", "attentive_conv_unmasked"],
            encoders=[str(vectors.path)],
            tokens=3000,
            overrides=SMALL,
            progress=False,
        )
    return results, folder / "out"


def test_a_classifier_over_each_encoder_is_compared_by_accuracy_and_macro_f1(finished):
    results, _ = finished
    assert results.failures == []
    assert {row.name for row in results.rows} == {"words", "attentive_conv_unmasked", "elmo"}
    assert [one.name for one in results.metrics] == ["accuracy", "macro-F1"]
    for row in results.rows:
        low, high = row.metrics["accuracy"].interval
        assert low <= row.metrics["accuracy"].value <= high
        assert row.texts_per_second > 0
    order = [row.metrics["accuracy"].value for row in results.rows]
    assert order == sorted(order, reverse=True)
    assert results.recommendation.startswith("Pick ")


def test_the_metrics_of_the_table_are_those_of_the_run(finished, labelled, tmp_path):
    results, out = finished
    lines = labelled.read_text().splitlines()
    held_out = tmp_path / "test.tsv"
    held_out.write_text("\n".join([lines[0], *lines[-24:]]) + "\n")
    for row in results.rows:
        score = load(out / row.run).score(str(held_out), progress=False)
        assert score.accuracy == pytest.approx(row.metrics["accuracy"].value)
        assert score.macro_f1 == pytest.approx(row.metrics["macro_f1"].value)
        assert score.nats_per_label == pytest.approx(row.nats_per_token, rel=1e-4)


def test_the_report_has_the_metrics_of_the_task(finished):
    _, out = finished
    page = (out / "report.html").read_text()
    assert "labels these texts best" in page
    assert "macro-F1" in page
    assert "bits/label" in page.lower()


def test_metrics_of_a_comparison_equal_those_of_a_score():
    data = LabelComparison.__new__(LabelComparison)
    data.labels = ("a", "b", "c")
    correct, predicted = [0, 1, 1, 2, 0, 1], [0, 1, 2, 2, 1, 1]
    data.test = type("Corpus", (), {"tokens": np.array(correct)})()
    score = label_score(correct, predicted, data.labels, texts=6)
    found = {one.key: float(one.value(one.statistics.sum(0)[None])[0]) for one in data.metrics(predicted)}
    assert found == pytest.approx({"accuracy": score.accuracy, "macro_f1": score.macro_f1})


def test_the_interval_of_a_mean_has_the_width_that_theory_gives():
    hits = (np.random.default_rng(0).random((400, 1)) < 0.7).astype(float)
    low, high = interval(resampled(hits, lambda sums: sums[:, 0] / 400, resamples=4000))
    expected = 2 * 1.96 * np.sqrt(hits.mean() * (1 - hits.mean()) / 400)
    assert high - low == pytest.approx(expected, rel=0.08)


def _row(name: str, value: float, speed: float) -> ComparisonRow:
    return ComparisonRow(
        name=name, summary="", run="", settings={}, parameters=1, nats_per_token=1, bits_per_byte=1, interval=(1, 1),
        perplexity=1, word_perplexity=None, accuracy=value, train_tokens=1, train_tokens_per_second=1, seconds=1,
        memory_bytes=1, texts_per_second=speed,
        metrics={"accuracy": MetricEstimate(value=value, interval=(value, value))},
    )  # fmt: skip


def test_the_fastest_of_models_without_a_significant_difference_is_recommended():
    rows = [_row("slow", 0.91, 10), _row("fast", 0.90, 90), _row("poor", 0.6, 500)]
    values = {"slow": np.array([0.9, 0.92, 0.91]), "fast": np.array([0.91, 0.89, 0.9]), "poor": np.full(3, 0.6)}
    found = recommend_by(rows, values, "accuracy", 3)
    assert found.startswith("Pick fast: accuracy 0.900")
    assert "not significantly different from slow (0.910)" in found
    assert "significantly better than poor (0.600)" in found


def test_an_encoder_that_is_neither_a_run_nor_a_pretrained_model_is_refused(labelled, tmp_path):
    with pytest.raises(ConfigError, match="neither a run nor"):
        compare(str(labelled), out=tmp_path / "out", encoders=[str(tmp_path)], progress=False)


def test_a_budget_in_minutes_is_divided_among_the_encoders(labelled, tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    results = compare(
        str(labelled), out=tmp_path / "out", families=["words"], minutes=0.4, overrides=SMALL[:1], progress=False
    )
    [row] = results.rows
    assert 0 < row.seconds < 24
    assert f"accuracy {row.metrics['accuracy'].value:.3f}" in repr(results)
