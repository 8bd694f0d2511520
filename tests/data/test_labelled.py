"""Labelled texts: file formats, encoding and errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chainrule.config import DataConfig
from chainrule.data.labelled import prepare_labelled, read_labelled
from chainrule.errors import ChainruleError, DataError
from tests.conftest import RealData


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def examples(path: Path, **settings: str) -> list[tuple[str, str]]:
    config = DataConfig(train=str(path), **settings)
    return [(one.text, one.label) for one in read_labelled(str(path), config)]


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("a.tsv", "sentence\tlabel\na good one \t1\nbad\t0\n", {}),
        ("a.tsv", "a good one\t1\n\nbad\t0\n", {}),
        ("a.tsv", "label\ttext\n1\ta good one\n0\tbad\n", {}),
        ("a.tsv", "x\t1\ta good one\ny\t0\tbad\n", {"source_field": "3", "target_field": "2"}),
        ("a.tsv", "grade\treview\n1\ta good one\n0\tbad\n", {"source_field": "review", "target_field": "grade"}),
        ("a.csv", 'text,label\n"a good\none",1\nbad,0\n', {}),
        ("a.jsonl", '{"text": "a good one", "label": 1}\n{"text": "bad", "label": "0"}\n', {}),
        (
            "a.jsonl",
            '{"r": "a good one", "s": "1"}\n{"r": "bad", "s": "0"}\n',
            {"source_field": "r", "target_field": "s"},
        ),
        ("a.tsv", b"\xef\xbb\xbfsentence\tlabel\r\na good one\t1\r\nbad\t0\r\n", {}),
        ("a.tsv.gz", gzip.compress(b"sentence\tlabel\na good one\t1\nbad\t0\n"), {}),
    ],
    ids=["header", "none", "order", "numbers", "names", "csv", "json", "fields", "windows", "gzip"],
)
def test_tables_and_records_give_the_same_examples(
    tmp_path: Path, name: str, content: str | bytes, settings: dict[str, str]
) -> None:
    assert examples(written(tmp_path, name, content), **settings) == [("a good one", "1"), ("bad", "0")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "contains no examples"),
        ("a.tsv", "text\tlabel\n", "contains no examples"),
        ("a.tsv", "only a text\n", "line 1 of .* has 1 columns and no column 2"),
        ("a.tsv", "good\t1\nbad\t\n", "line 2 of .* has no label in column 2"),
        ("a.tsv", "good\t1\nbad\n", "line 2 of .* has no label in column 2"),
        ("a.tsv", b"good\t1\nb\xe4d\t0\n", "line 2 of .* is not UTF-8 text"),
        ("a.csv", 'text,label\n"good" x,1\n', "line 2 of .* is not CSV"),
        ("a.jsonl", '{"text": "good", "label": 1}\n{"text": "bad"}\n', "line 2 of .* has no field 'label', only text"),
        ("a.jsonl", '{"text": "good", "label": null}\n', "line 1 of .* has None in field 'label'"),
        ("a.jsonl", '{"text": "good", "label": 1\n', "line 1 of .* is not valid JSON"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        examples(written(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def test_a_column_that_is_missing_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "review\tlabel\ngood\t1\n")
    with pytest.raises(
        DataError, match=r"has no field 'reviews', only label, review; did you mean data.source_field=review?"
    ):
        examples(path, source_field="reviews")


def test_an_unknown_label_in_validation_data_is_refused(tmp_path: Path) -> None:
    train = written(tmp_path, "train.tsv", "good\tpositive\nbad\tnegative\n")
    valid = written(tmp_path, "valid.tsv", "good\tpositive\nfine\tpositve\n")
    with pytest.raises(DataError, match=r"line 2 of .*valid.tsv' has the label 'positve', .* did you mean 'positive'?"):
        prepare_labelled(DataConfig(train=str(train), valid=str(valid)), "words")


def test_a_single_label_is_refused(tmp_path: Path) -> None:
    train = written(tmp_path, "train.tsv", "good\t1\nfine\t1\n")
    with pytest.raises(ChainruleError, match="all 1 training examples have the label '1'"):
        prepare_labelled(DataConfig(train=str(train)), "words")


def test_a_text_ends_with_eos_and_a_label_is_one_token(tmp_path: Path) -> None:
    train = written(tmp_path, "train.tsv", "".join(f"word{i}\t{10 - i % 3}\n" for i in range(10)))
    prepared = prepare_labelled(DataConfig(train=str(train), valid_fraction=0.2), "words")
    assert prepared.labels == ("8", "9", "10")  # numbers by value
    assert prepared.train.pairs == 8
    source, target = next(prepared.train.ids())
    assert source.tolist() == [*prepared.tokenizer.encode("word0").tolist(), prepared.tokenizer.eos]
    assert target.tolist() == [prepared.labels.index("10")]


def test_validation_data_of_labels_that_were_cut_off_the_training_data_must_be_known(tmp_path: Path) -> None:
    train = written(
        tmp_path, "train.jsonl", "".join(json.dumps({"text": "x", "label": i // 4}) + "\n" for i in range(12))
    )
    with pytest.raises(DataError, match=r"line 9 of .* has the label '2'"):
        prepare_labelled(DataConfig(train=str(train), valid_fraction=0.34), "words")


def test_sst2_is_read_with_its_published_size_and_labels(real_data: RealData) -> None:
    found = read_labelled(str(real_data("sst2") / "dev.tsv.gz"), DataConfig(train=""))
    assert len(found) == 6735
    assert {one.label for one in found} == {"0", "1"}
    assert found[1].text == "well-conceived"
