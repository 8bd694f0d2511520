"""Comparisons of translation models: BLEU and chrF beside the likelihood, and teachers from the comparison itself."""

from __future__ import annotations

import numpy as np
import pytest

from chainrule import load
from chainrule.cli.compare import show
from chainrule.comparison.compare import compare
from chainrule.comparison.folder import ComparisonFolder
from chainrule.config import DataConfig
from chainrule.data.parallel import pairs_as_text
from chainrule.evaluation.translation import corpus_scores, sentence_statistics
from chainrule.tasks.pair_comparison import PairComparison

pytest.importorskip("sacrebleu")

SMALL = [
    "seq2seq.model.width=8",
    "seq2seq.model.layers=1",
    "seq2seq_without_attention.model.width=8",
    "nonautoregressive.model.width=8",
    "nonautoregressive.model.heads=1",
    "nonautoregressive.model.encoder_layers=1",
    "nonautoregressive.model.decoder_layers=1",
]
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "six": "sechs"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    random = np.random.default_rng(0)
    lines = []
    for number in range(160):
        chosen = random.choice(list(WORDS), size=4)
        lines.append(f"{' '.join(chosen)} {number}\t{' '.join(WORDS[word] for word in chosen)} {number}")
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(folder / "cache"))
        results = compare(
            str(pairs),
            out=folder / "out",
            families=["seq2seq", "seq2seq_without_attention", "nonautoregressive"],
            tokens=4000,
            tokenizer="words",
            overrides=SMALL,
            progress=False,
        )
        yield results, folder / "out"


@pytest.mark.parametrize(
    ("count", "target", "tokenizer"),
    [
        (29_000, "Zwei junge Männer spielen am Strand Ball.", "bpe:4000"),
        (100_000, "Zwei junge Männer spielen am Strand Ball.", "bpe:8000"),
        (1_000, "Zwei junge Männer spielen am Strand Ball.", "chars"),
        (29_000, "5. Januar 1998", "chars"),
    ],
)
def test_sentences_are_split_into_pieces_of_words_and_few_or_short_targets_into_characters(
    tmp_path, count, target, tokenizer
):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"a source\t{target}\n" * count)
    assert PairComparison.default_tokenizer(DataConfig(train=str(path))) == tokenizer


def test_models_with_and_without_attention_and_a_parallel_one_are_compared_by_bleu(finished):
    results, _ = finished
    assert results.failures == []
    assert {row.name for row in results.rows} == {"seq2seq", "seq2seq_without_attention", "nonautoregressive"}
    assert [one.name for one in results.metrics] == ["BLEU", "chrF"]
    for row in results.rows:
        for found in row.metrics.values():
            assert found.interval[0] <= found.value <= found.interval[1]
        assert row.bits_per_byte > 0
    order = [row.metrics["bleu"].value for row in results.rows]
    assert order == sorted(order, reverse=True)
    settings = {row.name: row.settings for row in results.rows}
    assert settings["seq2seq_without_attention"]["attention"] == "none"


def test_a_model_that_needs_a_teacher_learns_from_the_best_autoregressive_model(finished):
    results, out = finished
    nats = {row.name: row.nats_per_token for row in results.rows}
    job = ComparisonFolder(out).plan().job("nonautoregressive")
    teacher = job.data["distil_from"].rsplit("/", 1)[-1]
    assert teacher in nats
    assert load(out / "runs" / "nonautoregressive").config.data.distil_from == job.data["distil_from"]
    assert any(f"learned from the translations of {teacher}" in note for note in results.notes)


def test_bleu_of_the_table_is_that_of_the_translations_of_the_run(finished):
    results, out = finished
    row = next(row for row in results.rows if row.name == "seq2seq")
    run = load(out / row.run)
    held_out = pairs_as_text(run.config.data, "test")
    ours = [best.text for best, *_ in run.translate([pair.source for pair in held_out])]
    scores = corpus_scores(ours, [pair.target for pair in held_out])
    assert row.metrics["bleu"].value == pytest.approx(scores["bleu"])
    assert row.metrics["chrf"].value == pytest.approx(scores["chrf"])


def test_a_model_that_was_not_finished_is_not_said_to_have_learned(finished, pairs, tmp_path):
    """The job of the taught model ends at its first validation: accuracy is not measured for translations."""
    results = compare(
        str(pairs),
        out=tmp_path / "out",
        families=["seq2seq", "nonautoregressive"],
        tokens=300,
        tokenizer="words",
        overrides=[*SMALL[:2], *SMALL[3:], "nonautoregressive.train.best_by=accuracy"],
        progress=False,
    )
    assert [failure.name for failure in results.failures] == ["nonautoregressive"]
    assert not any("learned from" in note for note in results.notes)


def test_the_table_of_all_models_fits_into_100_columns(finished, capsys, monkeypatch):
    results, out = finished
    wide = [
        row.model_copy(update={"name": "autoregressive_transformer", "train_tokens_per_second": 123456.0})
        for row in results.rows
    ]
    monkeypatch.setenv("COLUMNS", "300")  # wider, so that nothing is cut
    show(results.model_copy(update={"rows": wide}), out)
    lines = capsys.readouterr().out.splitlines()
    table = [line.rstrip() for line in lines if line.startswith("autoregressive_transformer")]
    assert len(table) == len(wide)
    assert max(map(len, table)) <= 100


def test_the_report_says_how_translations_were_measured(finished):
    _, out = finished
    page = (out / "report.html").read_text()
    assert "translates this data best" in page
    assert "beam 5" in page


def test_sums_of_sentence_statistics_give_the_scores_of_the_corpus():
    ours, theirs = ["a b c d e f", "x y z"], ["a b c d e g", "x y w z"]
    scores = corpus_scores(ours, theirs)
    for key, found in sentence_statistics(ours, theirs).items():
        assert found.score(found.counts.sum(0)[None])[0] == pytest.approx(scores[key])
