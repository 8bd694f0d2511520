"""Pairs of texts: sources, cleaning and encoding."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from chainrule.config import DataConfig
from chainrule.data import builtin, hub
from chainrule.data.parallel import PreparedPairs, encode_pairs, prepare_pairs
from chainrule.errors import DataError, MissingExtra

ENGLISH = [
    "a dog",
    "two cats",
    "the red house",
    "a bird sings",
    "no",
    "rain and snow",
    "a boat",
    "my hat",
    "tea",
    "yes",
]
GERMAN = ["ein Hund", "zwei Katzen", "das rote Haus", "ein Vogel singt", "nein", "Regen und Schnee", "ein Boot"]
GERMAN += ["mein Hut", "Tee", "ja"]


def lines(path: Path, texts: list[str]) -> str:
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Ten pairs in two files."""
    return {"source": lines(tmp_path / "a.en", ENGLISH), "train": lines(tmp_path / "a.de", GERMAN)}


def prepared(tokenizer: str = "bytes", source_tokenizer: str | None = None, **data: object) -> PreparedPairs:
    return prepare_pairs(DataConfig.parse(data), tokenizer, source_tokenizer)


def texts(found: PreparedPairs, split: str = "train") -> list[tuple[str, str]]:
    """Decode the pairs of a split."""
    source, target = found.tokenizers
    return [(source.decode(one), target.decode(other)) for one, other in getattr(found, split).ids()]


def message(**data: object) -> str:
    with pytest.raises(DataError) as caught:
        prepared(**data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Where pairs come from


def test_two_files_are_paired_by_line_and_split_at_the_end(files):
    found = prepared(**files, valid_fraction=0.2)
    assert texts(found) == list(zip(ENGLISH[:8], GERMAN[:8], strict=True))
    assert texts(found, "valid") == list(zip(ENGLISH[8:], GERMAN[8:], strict=True))
    assert [tuple(pair) for pair in found.shown] == texts(found, "valid")
    assert found.languages == ("en", "de")
    assert found.warnings == ()


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_the_two_files_may_be_compressed_and_have_byte_order_marks_and_carriage_returns(tmp_path, suffix, pack):
    source, target = tmp_path / f"a.en{suffix}", tmp_path / f"a.de{suffix}"
    source.write_bytes(pack("".join(f"{text}\r\n" for text in ENGLISH).encode("utf-8-sig")))
    target.write_bytes(pack("\n".join(GERMAN).encode()))
    found = prepared(source=str(source), train=str(target))
    assert texts(found)[0] == ("a dog", "ein Hund")
    assert found.languages == ("en", "de")


def test_a_table_has_two_columns_by_number_or_by_name(tmp_path):
    rows = list(zip(ENGLISH, GERMAN, strict=True))
    plain = lines(tmp_path / "a.tsv", [f"{one}\t{other}\tattribution" for one, other in rows])
    assert texts(prepared(train=plain))[0] == ("a dog", "ein Hund")
    assert texts(prepared(train=plain, source_field="2", target_field="1"))[0] == ("ein Hund", "a dog")
    headed = lines(tmp_path / "b.tsv", ["id\tde\ten", *(f"7\t{other}\t{one}" for one, other in rows)])
    found = prepared(train=headed, source_field="en", target_field="de")
    assert texts(found)[0] == ("a dog", "ein Hund")
    assert found.languages == ("en", "de")
    assert "no field 'fr', only de, en, id" in message(train=headed, source_field="fr", target_field="de")


def test_records_have_two_fields_possibly_inside_translation(tmp_path):
    rows = list(zip(ENGLISH, GERMAN, strict=True))
    flat = lines(tmp_path / "a.jsonl", [json.dumps({"source": one, "target": other}) for one, other in rows])
    assert texts(prepared(train=flat))[0] == ("a dog", "ein Hund")
    nested = lines(tmp_path / "b.jsonl", [json.dumps({"translation": {"de": b, "en": a}}) for a, b in rows])
    assert texts(prepared(train=nested, source_field="en", target_field="de"))[0] == ("a dog", "ein Hund")
    wrong = message(train=nested)
    assert "line 1 of" in wrong
    assert "no field 'source', only de, en; set data.source_field" in wrong


def test_the_config_name_of_a_hub_dataset_determines_the_direction(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    pairs = [{"de": other, "en": one} for one, other in zip(ENGLISH, GERMAN, strict=True)]
    splits = {"train": pairs[:6], "validation": pairs[6:8], "test": pairs[8:]}
    tables = {name: datasets.Dataset.from_dict({"translation": rows}) for name, rows in splits.items()}
    monkeypatch.setattr(hub, "_load", lambda name, config: tables)
    found = prepared(train="hub:wmt/wmt14:de-en")
    assert texts(found)[0] == ("ein Hund", "a dog")
    assert texts(found, "valid") == [("ein Boot", "a boat"), ("mein Hut", "my hat")]
    assert texts(found, "test") == [("Tee", "tea"), ("ja", "yes")]
    assert found.names["test"] == "hub:wmt/wmt14:de-en:test"
    turned = prepared(train="hub:wmt/wmt14:de-en", source_field="en", target_field="de")
    assert texts(turned)[0] == ("a dog", "ein Hund")
    assert turned.languages == ("en", "de")


def test_validation_and_test_data_are_files_of_their_own(tmp_path, files):
    valid = {"valid_source": lines(tmp_path / "v.en", ["a hen"]), "valid": lines(tmp_path / "v.de", ["ein Huhn"])}
    test = lines(tmp_path / "t.tsv", ["a cow\teine Kuh"])
    found = prepared(**files, **valid, test=test)
    assert found.train.pairs == 10
    assert texts(found, "valid") == [("a hen", "ein Huhn")]
    assert texts(found, "test") == [("a cow", "eine Kuh")]
    again = prepared(**files, valid_source=files["source"], valid=files["train"])
    assert any("validation data and training data share" in warning for warning in again.warnings)


def test_dates_are_twenty_thousand_pairs_with_one_translation_each_and_no_source_in_two_splits():
    splits = builtin.date_pairs()
    pairs = [pair for split in splits.values() for pair in split]
    assert {name: len(split) for name, split in splits.items()} == builtin.SIZES
    assert len({pair.source for pair in pairs}) == len(pairs) == 20_000
    known = dict(pairs)
    assert known["twenty-one"] == "einundzwanzig"
    assert builtin.date_pairs.__wrapped__() == splits
    found = prepared(train="builtin:dates")
    assert texts(found) == splits["train"]
    assert texts(found, "test") == splits["test"]
    assert found.languages == ("en", "de")


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("March 5, 2021", "5. März 2021"),
        ("Friday, March 5, 2021", "Freitag, 5. März 2021"),
        ("Mar 5, 2021", "5. März 2021"),
        ("5 March 2021", "5. März 2021"),
        ("3/5/21", "05.03.21"),
    ],
)
def test_every_date_pattern_has_its_german_form(english, german, monkeypatch):
    import datetime
    import random

    monkeypatch.setattr(builtin, "FIRST_DAY", datetime.date(2021, 3, 5))
    monkeypatch.setattr(builtin, "DAYS", 1)
    rng = random.Random(0)
    assert (english, german) in {builtin._date(rng) for _ in range(200)}


def test_dates_need_an_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "num2words", None)
    with pytest.raises(MissingExtra, match=r"chainrule\[translation\]"):
        prepared(train="builtin:dates")


# Which are kept


def test_dropped_pairs_are_counted_by_reason_and_reported(tmp_path):
    pairs = [
        ("a dog", "ein Hund"),
        ("", "nichts"),
        ("something", "  "),
        ("word " * 10_000, "Wort " * 10_000),
        ("x", "eine sehr lange Übersetzung"),
        ("a dog", "ein Hund"),
        ("taxi", "taxi"),
        ("a cat", "eine Katze"),
    ]
    data = {
        "source": lines(tmp_path / "a.en", [one for one, _ in pairs]),
        "train": lines(tmp_path / "a.de", [other for _, other in pairs]),
        "valid": lines(tmp_path / "v.tsv", ["no\tnein", "\tleer", "no\tnein"]),
    }
    found = prepared(**data)
    report = found.reports["training"]
    assert (report.read, report.kept, report.identical) == (8, 3, 1)
    assert report.dropped == {
        "an empty side": 2,
        "a side that is too long": 1,
        "sides of very unequal length": 1,
        "appeared before": 1,
    }
    assert texts(found) == [("a dog", "ein Hund"), ("taxi", "taxi"), ("a cat", "eine Katze")]
    assert any("8 pairs read, 3 kept; dropped: 2 with an empty side, 1 with" in line for line in found.warnings)
    # of held-out data only what has no translation is dropped: others score the same pairs
    assert texts(found, "valid") == [("no", "nein")] * 2
    assert found.reports["validation"].dropped == {"an empty side": 1}


def test_the_rules_are_settings(tmp_path):
    pairs = ["taxi\ttaxi", "taxi\ttaxi", "abc\tabcdef", "hut\tHütte"]
    data = {"train": lines(tmp_path / "a.tsv", pairs), "valid": lines(tmp_path / "v.tsv", ["a\tb"])}
    assert len(texts(prepared(**data))) == 3
    assert len(texts(prepared(**data, duplicates="keep"))) == 4
    assert len(texts(prepared(**data, identical="drop"))) == 2
    assert ("abc", "abcdef") not in texts(prepared(**data, length_ratio=1.99))
    assert ("hut", "Hütte") not in texts(prepared(**data, max_side_bytes=5))  # ü is two bytes


def test_pairs_with_equal_sides_are_a_warning_or_dropped(tmp_path):
    one = lines(tmp_path / "a.en", ENGLISH)
    assert any("10 of 10 pairs have the same text" in line for line in prepared(source=one, train=one).warnings)
    left = message(source=one, train=one, identical="drop")
    assert "no pair of" in left
    assert "10 with two equal sides" in left
    assert "data.identical" in left


def test_a_sentence_is_one_line_and_normalised(tmp_path):
    record = json.dumps({"source": " two\nlines\u2028here ", "target": "ﬁnden   alle"})
    data = {"train": lines(tmp_path / "a.jsonl", [record]), "valid": lines(tmp_path / "v.tsv", ["a\tb"])}
    assert texts(prepared(**data, unicode="NFKC", squeeze_spaces=True)) == [("two lines here", "finden alle")]


# What is refused


def test_files_of_different_lengths_are_refused_with_both_counts(tmp_path):
    source, target = lines(tmp_path / "a.en", ENGLISH), lines(tmp_path / "a.de", GERMAN[:7])
    wrong = message(source=source, train=target)
    assert "a.en' has 10 lines" in wrong
    assert "a.de' has 7 lines" in wrong


@pytest.mark.parametrize("name", ["a.en", "a.tsv"])
def test_another_encoding_is_refused_with_the_line(tmp_path, name):
    (tmp_path / name).write_bytes("ok\tok\nüber\tover\n".encode("latin-1"))
    other = lines(tmp_path / "a.de", ["eins", "zwei"])
    data = {"source": str(tmp_path / name), "train": other} if name == "a.en" else {"train": str(tmp_path / name)}
    assert f"line 2 of '{tmp_path / name}' is not UTF-8 text" in message(**data)


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("hello\thallo\n", encoding="utf-16")
    assert "is UTF-16 text; convert it" in message(train=str(tmp_path / "a.tsv"))
    (tmp_path / "b.tsv").write_bytes(b"a\tb\n\x00\x01\n")
    assert "line 2 of" in message(train=str(tmp_path / "b.tsv"))


def test_empty_files_are_refused(tmp_path, files):
    (tmp_path / "none").write_text("")
    empty = str(tmp_path / "none")
    assert "contains no pairs" in message(source=empty, train=empty)
    assert "contains no pairs" in message(train=empty)
    assert "has 0 lines" in message(source=empty, train=files["train"])
    (tmp_path / "blank.tsv").write_text("\n\n")
    assert "2 with an empty side" in message(train=str(tmp_path / "blank.tsv"))


def test_a_plain_text_is_not_pairs(tmp_path):
    text = lines(tmp_path / "book.txt", ["once upon a time", "there was"])
    assert "line 1 of" in message(train=text)
    assert "--source and --target" in message(train=text)
    assert "builtin:prose is a text, not pairs" in message(train="builtin:prose")
    assert "did you mean 'dates'?" in message(train="builtin:date")


# What they become


def test_both_sides_share_a_vocabulary_by_default(files):
    joint = prepared("bpe:300", **files).tokenizers
    assert joint.source is joint.target
    separate = prepared("chars", **files, separate_vocabularies=True).tokenizers
    assert separate.source.vocabulary != separate.target.vocabulary
    own = prepared("words", "chars", **files).tokenizers
    assert (own.source.kind, own.target.kind) == ("chars", "words")


def test_every_document_ends_with_eos_on_both_sides(files):
    for source, target in prepared(**files).train.ids():
        assert source[-1] == target[-1] == 0
        assert 0 not in source[:-1]


def test_prepared_pairs_are_cached(files, monkeypatch):
    first = prepared(**files)
    monkeypatch.setattr("chainrule.data.cleaning.Cleaner.clean", lambda *_: pytest.fail("cleaned again"))
    monkeypatch.setattr("chainrule.data.shards.write_tokens", lambda *_: pytest.fail("encoded again"))
    again = prepared(**files)
    assert texts(again) == texts(first)
    assert again.reports == first.reports


def test_other_pairs_are_encoded_for_existing_tokenizers(tmp_path, files):
    found = prepared(**files)
    source, target = lines(tmp_path / "t.en", ["a cat", ""]), lines(tmp_path / "t.de", ["ein Kater", "leer"])
    corpus = encode_pairs(DataConfig.parse(files), found.tokenizers, target, source)
    assert corpus.pairs == 1
    assert found.tokenizers.target.decode(corpus.target.tokens) == "ein Kater"


def test_multi30k_is_clean(real_data):
    folder = real_data("multi30k")
    data = {"source": str(folder / "train.en.gz"), "train": str(folder / "train.de.gz")}
    valid = {"valid_source": str(folder / "val.en.gz"), "valid": str(folder / "val.de.gz")}
    found = prepared("words:1000", **data, **valid)
    assert found.reports["training"].read == 29_000
    assert found.reports["training"].kept > 28_900
    assert found.valid.pairs == 1014
    assert found.languages == ("en", "de")
