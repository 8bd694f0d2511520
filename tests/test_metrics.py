from __future__ import annotations

from typing import get_args

import pytest

from chainrule.evaluation.answers import AnswerScore
from chainrule.evaluation.images import ImageScore
from chainrule.evaluation.labels import LabelScore
from chainrule.evaluation.likelihood import Score
from chainrule.evaluation.protocol import Protocol
from chainrule.metrics import METHODS, METRICS, PROGRESS, known_metrics, metric, protocol_line
from chainrule.training.progress import progress_line


def test_every_number_of_a_score_is_a_known_metric() -> None:
    for score in (Score, ImageScore, LabelScore, AnswerScore):
        numbers = {name for name, one in score.model_fields.items() if one.annotation in (int, float)}
        assert numbers - {"words", "impossible"} <= METRICS.keys(), score  # the two are details of --json


def test_units_follow_their_value_and_other_labels_precede_it() -> None:
    assert metric("bits_per_byte")(1.9124) == "1.912 bits/byte"
    assert metric("bleu")(31.24) == "BLEU 31.2"
    assert metric("tokens")(12345) == "tokens 12,345"


def test_a_progress_line_states_the_metrics_of_a_record_in_a_fixed_order() -> None:
    record = {"tokens_per_second": 1234.5, "step": 3, "loss": 2.5, "bits_per_byte": 1.25, "seconds": 3.0}
    assert progress_line(record) == "loss 2.500 · 1.250 bits/byte · 1,234 tokens/s"
    validation = {"valid_bleu": 12.34, "valid_nats_per_token": 2.0, "valid_accuracy": 0.5, "valid_chrf": 40.0}
    assert progress_line(validation) == "valid 2.000 · accuracy 0.5000 · BLEU 12.3 · chrF 40.0"


def test_every_metric_of_the_progress_line_is_known() -> None:
    for key in PROGRESS:
        assert metric(key).label


def test_known_metrics_leave_out_tables_and_missing_values() -> None:
    found = {"f1": {"noun": 0.5}, "accuracy": 0.75, "nats_per_label": None, "texts": 3, "split": "test"}
    assert [(key, value) for key, _, value in known_metrics(found)] == [("accuracy", 0.75), ("texts", 3)]


@pytest.mark.parametrize("method", get_args(Protocol.model_fields["method"].annotation))
def test_the_protocol_is_described_in_words_that_need_no_explanation(method: str) -> None:
    line = protocol_line({"method": method, "carry_over": method == "carried", "eos": False})
    assert line.startswith(METHODS[method])
    assert ("state carried over between segments" in line) == (method == "carried")
