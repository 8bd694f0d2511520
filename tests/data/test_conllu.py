"""Tagged sentences: CoNLL-U and plain columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.config import DataConfig
from chainrule.data.conllu import joined_words, prepare_tagged, read_tagged
from chainrule.errors import ChainruleError
from tests.conftest import RealData

UNIVERSAL = """\
# sent_id = 1
# text = I don't.
1\tI\tI\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t0:root\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
"""


def sentences(folder: Path, name: str, content: str, **settings: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    found = read_tagged(str(path), DataConfig(train=str(path), **settings))
    return [(one.words, one.tags) for one in found]


@pytest.mark.parametrize("name", ["a.conllu", "a.txt"])
def test_multiword_tokens_and_empty_nodes_are_skipped(tmp_path: Path, name: str) -> None:
    content = UNIVERSAL if name == "a.conllu" else "\n".join(UNIVERSAL.split("\n")[2:])  # known by its columns
    assert sentences(tmp_path, name, content) == [
        (("I", "do", "n't", "."), ("PRON", "AUX", "PART", "PUNCT")),
        (("#",), ("SYM",)),
    ]


@pytest.mark.parametrize("column", ["XPOS", "5"])
def test_another_column_may_be_chosen(tmp_path: Path, column: str) -> None:
    assert sentences(tmp_path, "a.conllu", UNIVERSAL, tag_column=column)[0][1] == ("PRP", "VBP", "RB", ".")


def test_a_word_and_its_tag_in_two_columns(tmp_path: Path) -> None:
    expected = [(("The", "dog"), ("D", "N")), (("#",), ("S",))]
    assert sentences(tmp_path, "a.tsv", "The\tD\ndog\tN\n\n\n#\tS") == expected
    assert sentences(tmp_path, "b.txt", "The x D\ndog y N\n\n# z S\n") == expected  # the last one
    assert sentences(tmp_path, "b.txt", "The D x\ndog N y\n\n# S z\n", tag_column="2") == expected


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ("", {}, "contains no sentences"),
        ("1\tI\tI\tPRON\n", {}, "line 1 of .* has 4 tab-separated columns, and CoNLL-U has 10"),
        (UNIVERSAL.replace("AUX", "_"), {}, "line 5 of .*: the word 'do' has no tag in UPOS"),
        (UNIVERSAL.replace("3\tn't", "x\tn't"), {}, "line 6 of .* starts with 'x'"),
        (UNIVERSAL, {"tag_column": "POS"}, "data.tag_column is 'POS'; did you mean"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, content: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ChainruleError, match=message):
        sentences(tmp_path, "a.conllu", content, **settings)


def test_a_word_without_a_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChainruleError, match=r"line 2 of .*: the word 'dog' has no tag in column 2"):
        sentences(tmp_path, "a.tsv", "The\tD\ndog\n")


def test_a_tag_unseen_in_training_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("The\tDET\ndog\tNOUN\n")
    (tmp_path / "valid.tsv").write_text("The\tDET\n\nbig\tADJ\n")
    config = DataConfig(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"))
    with pytest.raises(
        ChainruleError, match=r"the sentence at line 3 of .* has the tag 'ADJ', not found in the training"
    ):
        prepare_tagged(config, "chars")


def test_a_tag_for_each_word_and_a_line_end_after_each(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("The\tD\ndog\tN\n\nBig\tA\ndogs\tN\nbark\tV\n")
    (tmp_path / "valid.tsv").write_text("The\tD\n")
    config = DataConfig(train=str(tmp_path / "train.tsv"), valid=str(tmp_path / "valid.tsv"))
    prepared = prepare_tagged(config, "chars")
    texts = [prepared.tokenizer.decode(source) for source, _ in prepared.train.ids()]
    assert texts == [joined_words(["The", "dog"]), "Big\ndogs\nbark\n"]
    assert [[prepared.labels[tag] for tag in target] for _, target in prepared.train.ids()] == [
        ["D", "N"],
        ["A", "N", "V"],
    ]


def test_english_web_treebank_has_its_published_size(real_data: RealData) -> None:
    found = read_tagged(str(real_data("ud-ewt") / "en_ewt-ud-dev.conllu.xz"), DataConfig(train=""))
    assert len(found) == 2001
    assert sum(len(one.words) for one in found) == 25147
    assert len({tag for one in found for tag in one.tags}) == 17
