"""Formats that are recognised: CSV with quotes and header, FASTA, nested JSON fields, CoNLL-2003, tables of news."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chainrule.config import DataConfig
from chainrule.data.conllu import read_tagged
from chainrule.data.labelled import choose_columns, encode_labelled, prepare_labelled, read_labelled
from chainrule.data.pairs import open_pairs
from chainrule.data.text import open_source
from chainrule.errors import ConfigError, DataError
from chainrule.tokenizers import train_tokenizer


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def documents(path: Path, **settings: str) -> list[str]:
    source = open_source(str(path), DataConfig(train=str(path), **settings))
    assert source.unit == "documents"
    return list(source.pieces())


# Text


@pytest.mark.parametrize(
    ("header", "settings"),
    [("id,text", {}), ("id,Review", {}), ("id,story", {"field": "story"}), ("id,text", {"field": "2"})],
)
def test_the_text_column_of_a_csv_is_a_document_per_row(tmp_path: Path, header: str, settings: dict[str, str]) -> None:
    path = written(tmp_path, "a.csv", f'{header}\n1,"one, two\nthree ""four"""\n\n2,five\n')
    assert documents(path, **settings) == ['one, two\nthree "four"', "five"]


def test_a_csv_without_a_text_column_stays_plain_text_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "alpha,beta\n1,2\n")
    source = open_source(str(path), DataConfig(train=str(path)))
    assert source.unit == "stream"
    assert "".join(source.pieces()) == "alpha,beta\n1,2\n"
    assert "no header names a text column; data.field=2" in source.warnings[0]
    with pytest.raises(DataError, match=r"has no field 'gamma', only alpha, beta"):
        open_source(str(path), DataConfig(train=str(path), field="gamma"))


def test_fasta_records_are_documents_of_letters(tmp_path: Path) -> None:
    content = "".join(f">seq{index} a description\nACGT\r\nAC{'GT' * index}\n; remark\n\n" for index in range(12))
    expected = ["ACGTAC" + "GT" * index for index in range(12)]
    assert documents(written(tmp_path, "genes.fa", content)) == expected
    packed = tmp_path / "genes.fasta.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert documents(packed) == expected


def test_fasta_is_known_by_its_first_lines_too_and_quoted_mail_is_not_fasta(tmp_path: Path) -> None:
    records = "".join(f">chr{index}\n{'ACGT' * 10}\n" for index in range(10))
    assert documents(written(tmp_path, "dna.txt", records)) == ["ACGT" * 10] * 10
    mail = written(tmp_path, "mail.txt", "> I wrote this\nand you answered that\n")
    assert open_source(str(mail), DataConfig(train=str(mail))).unit == "stream"


def test_a_few_long_fasta_records_are_a_stream_without_their_names(tmp_path: Path) -> None:
    path = written(tmp_path, "genome.fna", ">chr1\nACGT\nACGT\n>chr2\nTT\n")
    source = open_source(str(path), DataConfig(train=str(path)))
    assert source.unit == "stream"
    assert "".join(source.pieces()) == "ACGTACGT\nTT\n"


def test_fasta_without_a_first_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.fa", "ACGT\n>x\nACGT\n")
    with pytest.raises(DataError, match=r"line 1 of .* comes before the first '>' line"):
        list(open_source(str(path), DataConfig(train=str(path))).pieces())


def test_fields_inside_fields_are_named_with_dots(tmp_path: Path) -> None:
    records = [{"meta": {"id": index, "body": {"text": f"text {index}"}}} for index in range(3)]
    path = written(tmp_path, "a.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert documents(path, field="meta.body.text") == ["text 0", "text 1", "text 2"]
    with pytest.raises(DataError, match=r"no field 'meta.text', only meta.body.text, meta.id; did you mean"):
        documents(path, field="meta.text")


def test_fields_of_labels_and_pairs_may_be_inside_others(tmp_path: Path) -> None:
    record = {"news": {"title": "rain", "kind": "weather"}, "deep": {"en": "rain", "de": "Regen"}, "a.b": "dotted"}
    path = written(tmp_path, "a.jsonl", json.dumps(record) + "\n")
    config = DataConfig(train=str(path), source_field="news.title", target_field="news.kind")
    assert [one[:2] for one in read_labelled(str(path), config)] == [("rain", "weather")]
    config = DataConfig(train=str(path), source_field="deep.en", target_field="deep.de")
    assert list(open_pairs(str(path), None, config).pairs()) == [("rain", "Regen")]
    assert documents(path, field="a.b") == ["dotted"]  # a name with a dot comes first


def test_a_column_inside_a_parquet_struct_is_named_with_dots(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"meta": [{"body": "one"}, {"body": "two"}], "n": [1, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet", field="meta.body") == ["one", "two"]


# Pairs


def test_pairs_in_a_csv_may_contain_commas_and_line_ends(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'en,de\n"one, two","eins,\nzwei"\nthree,drei\n')
    config = DataConfig(train=str(path), source_field="en", target_field="de")
    assert list(open_pairs(str(path), None, config).pairs()) == [("one, two", "eins,\nzwei"), ("three", "drei")]


# Labels


KINDS = ("World", "Sports")


def news(folder: Path, *, header: str = "", name: str = "news.csv") -> Path:
    """A table as that of AG News: class, title, description, all quoted."""
    rows = [
        f'"{1 + index % 2}","Title {index}","Description {index}, which is ""long"" and of its own"'
        for index in range(60)
    ]
    return written(folder, name, "\n".join([*([header] if header else []), *rows]) + "\n")


@pytest.mark.parametrize("header", ['"Class Index","Title","Description"', "kind,headline,article"])
def test_a_table_of_news_with_a_header_is_recognised(tmp_path: Path, header: str) -> None:
    path = news(tmp_path, header=header)
    data, notes = choose_columns(DataConfig(train=str(path)))
    first, *others = read_labelled(str(path), data)
    assert first[:2] == ('Description 0, which is "long" and of its own', "1")
    assert len(others) == 59
    assert bool(notes) == header.startswith("kind")


def test_a_table_of_news_without_a_header_is_recognised_and_its_columns_are_named(tmp_path: Path) -> None:
    data, notes = choose_columns(DataConfig(train=str(news(tmp_path))))
    assert (data.source_field, data.target_field) == ("3", "1")
    assert "no header: column '3' is read as the text and column '1' as the label" in notes[0]
    assert prepare_labelled(data, "words").labels == ("1", "2")


def test_a_table_of_text_and_label_is_read_as_before_without_a_note(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "".join(f"text {index}\t{KINDS[index % 2]}\n" for index in range(40)))
    config = DataConfig(train=str(path))
    assert choose_columns(config) == (config, ())


def test_a_column_where_nearly_every_row_has_its_own_label_is_refused_with_the_column_to_choose(
    tmp_path: Path,
) -> None:
    config = DataConfig(train=str(news(tmp_path)), source_field="3", target_field="2")
    message = r"nearly every example has a label of its own \(54 labels of 54 .*data.target_field=1 \(column 1 has 2"
    with pytest.raises(DataError, match=message):
        prepare_labelled(config, "words")


def test_a_single_label_is_refused_with_the_column_to_choose(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "".join(f"text {index}\tx\t{KINDS[index % 2]}\n" for index in range(40)))
    with pytest.raises(DataError, match=r"have the label 'x', so there is nothing to learn; .*data.target_field=3"):
        prepare_labelled(DataConfig(train=str(path), source_field="1", target_field="2"), "words")


def test_scoring_a_table_with_other_columns_says_so(tmp_path: Path) -> None:
    path = news(tmp_path)
    found = read_labelled(str(path), DataConfig(train=str(path), source_field="3", target_field="2"))
    tokenizer = train_tokenizer("chars", lambda: iter(["text"]))
    with pytest.raises(DataError, match=r"label of its own, such as 'Title 0' at .*the model has 2 labels \(1, 2\)"):
        encode_labelled(found, tokenizer, ("1", "2"))


# Tags


CONLL = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

-DOCSTART- -X- O O

Peter NNP B-NP B-PER
"""


@pytest.mark.parametrize(
    ("column", "tags"),
    [(None, ("B-ORG", "O")), ("ner", ("B-ORG", "O")), ("POS", ("NNP", "VBZ")), ("3", ("B-NP", "B-VP"))],
)
def test_columns_of_conll_2003_have_names_and_document_marks_are_skipped(
    tmp_path: Path, column: str | None, tags: tuple[str, ...]
) -> None:
    path = written(tmp_path, "eng.train", CONLL)
    first, second = read_tagged(str(path), DataConfig(train=str(path), tag_column=column))
    assert (first.words, first.tags) == (("EU", "rejects"), tags)
    assert second.words == ("Peter",)


def test_an_unknown_column_of_conll_2003_is_answered_with_the_names(tmp_path: Path) -> None:
    path = written(tmp_path, "eng.train", CONLL)
    with pytest.raises(ConfigError, match=r"has the columns 2 to 4 \(pos, chunk, ner\)"):
        read_tagged(str(path), DataConfig(train=str(path), tag_column="entity"))
