"""The learning curve of a run: in a line, as a picture, and in a notebook."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import chainrule as package
from chainrule.reports.learning import curve_chart, curve_svg
from chainrule.tasks import Run
from chainrule.training.curves import learning_curve, sparkline
from tests.cli.test_bad_input import refused
from tests.conftest import LINES, Command

RECORDS = [
    {"step": 1, "seconds": 0.1, "loss": 9.0, "bits_per_byte": 12.0},
    {"step": 2, "seconds": 1.0, "loss": 2.0, "bits_per_byte": 3.0},
    {"step": 2, "seconds": 1.0, "valid_nats_per_token": 2.2, "valid_bits_per_byte": 3.2},
    *({"step": 2 + at, "seconds": 1.0 + at, "loss": 1.9, "bits_per_byte": 2.9} for at in range(1, 10)),
    {"step": 11, "seconds": 10.0, "valid_nats_per_token": 1.9, "valid_bits_per_byte": 2.8},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("curve")
    (folder / "text.txt").write_text(("".join(LINES) + "a < b\n") * 20)
    sizes = {"model": {"width": 8, "memory": 3, "layers": 1}, "train": {"batch_tokens": 128, "validate_every": 2}}
    options = {"steps": 6, "out": folder / "<run> & 1", "settings": sizes, "progress": False}
    return package.train("finite_memory", data=str(folder / "text.txt"), **options)


def test_a_curve_is_the_metric_of_the_validations_and_of_the_training_batches() -> None:
    curve = learning_curve(RECORDS)
    assert curve is not None
    assert curve.unit == "bits/byte"
    assert curve.validation == [(1.0, 3.2), (10.0, 2.8)]
    assert len(curve.training) == 11
    assert curve.summary == "█▁  3.200 → 2.800 bits/byte (validation)"


def test_without_bits_the_curve_is_the_loss() -> None:
    curve = learning_curve([{"seconds": 1.0, "loss": 3.0}, {"seconds": 2.0, "loss": 2.5, "valid_nats_per_token": 2.6}])
    assert curve is not None
    assert (curve.unit, curve.validation, len(curve.training)) == ("nats/token", [(2.0, 2.6)], 2)
    assert curve.summary.endswith("3.000 → 2.500 nats/token (training)")


def test_records_without_training_have_no_curve() -> None:
    assert learning_curve([]) is None
    assert learning_curve([{"gate": "context", "weights": [0.5, 0.5]}]) is None


def test_a_sparkline_has_a_bar_for_each_value_up_to_its_width() -> None:
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0]) == "▁"
    assert len(sparkline(list(range(1000)), 20)) == 20


def test_the_first_batches_do_not_flatten_the_rest_of_the_curve() -> None:
    curve = learning_curve(RECORDS)
    assert curve is not None
    chart = curve_chart(curve)
    heights = [mark.y for mark in chart.marks]
    assert max(heights) - min(heights) > 0.5 * (chart.area.bottom - chart.area.top)


def test_the_picture_is_well_formed_and_escapes_its_name(trained: Run) -> None:
    curve = trained.learning_curve()
    assert curve is not None
    root = ElementTree.fromstring(curve_svg(curve, name="<b> & 'c'", standalone=True))
    assert root.tag.endswith("svg")
    assert "prefers-color-scheme: dark" in "".join(root.itertext())
    assert len(root.findall(".//{*}g[@class='mark hue-1']")) == len(curve.validation)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_info_writes_the_curve_as_a_picture(chainrule: Command, trained: Run, tmp_path: Path, suffix: str) -> None:
    if suffix != "svg":
        pytest.importorskip("matplotlib")
    outcome = chainrule("info", trained.path, "--plot", tmp_path / f"curve.{suffix}")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / f"curve.{suffix}").stat().st_size > 1000
    assert "learning curve" in outcome.out
    assert "bits/byte (validation)" in outcome.out


def test_a_count_model_has_no_curve_to_plot(chainrule: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(LINES) * 10)
    package.train("ngram", data=str(tmp_path / "text.txt"), out=tmp_path / "ngram", progress=False)
    refused(chainrule("info", tmp_path / "ngram", "--plot", tmp_path / "x.svg"), "no learning curve", "plot a run")
    assert not (tmp_path / "x.svg").exists()
    assert "learning curve" not in chainrule("info", tmp_path / "ngram").out


def test_a_wrong_file_name_is_refused_before_the_run_is_read(chainrule: Command, trained: Run, tmp_path: Path) -> None:
    refused(chainrule("info", trained.path, "--plot", tmp_path / "x.jpg"), "must end in .svg")
    refused(chainrule("info", trained.path, "--plot", tmp_path / "no" / "x.svg"), "no folder")


def test_a_notebook_shows_a_run_with_its_curve(trained: Run) -> None:
    html = trained._repr_html_()
    assert html.count("<svg") == 1
    assert "&lt;run&gt; &amp; 1" in html
    assert "<run>" not in html


def test_a_notebook_shows_scores_as_a_table_and_tokens_coloured_by_surprisal(trained: Run) -> None:
    assert "bits/byte" in trained.score("the cat")._repr_html_()
    tokens = trained.token_scores("the <cat\nsat")
    html = tokens._repr_html_()
    assert html.count("<span title=") == len(tokens) == len("the <cat\nsat")
    assert "&lt;" in html
    assert "⏎\n" in html
    assert "bits, rank" in html
    assert isinstance(tokens, list)
