from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import DataError
from chainrule.interop.arpa import read_arpa, write_arpa
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.types import Batch, Sequences

TOKENS = ["<eos>", "<unk>", " ", "\n", "\\", "a", "<s>", "</s>", "", "\\e", "\u3000", "中", "\u2028", "\U000e0001"]

HAND_WRITTEN = r"""
Anything may stand here.

\data\
ngram 1=5
ngram 2=3
ngram 3=1

\1-grams:
-1.0	<unk>
-99	<s>	-0.25
-0.5	</s>
-0.75	to	-0.5
-0.3	be	0.1

\2-grams:
-0.2	<s> to	-0.125
-0.1	to be
-0.4	be </s>

\3-grams:
-0.05	<s> to be

\end\
"""


def model_of(text: list[int], vocabulary: int, order: int = 3) -> NGram:
    model = NGram(NGramConfig(vocabulary=vocabulary, order=order))
    model.observe(Sequences.full(torch.tensor([text])))
    model.estimate()
    return model


def write_text(folder: Path, text: str) -> Path:
    path = folder / "model.arpa"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("order", [1, 2, 4])
def test_an_exported_model_is_imported_with_the_same_probabilities_and_tokens(tmp_path: Path, order: int) -> None:
    text = torch.randint(len(TOKENS), (400,), generator=torch.Generator().manual_seed(order)).tolist()
    model = model_of(text, len(TOKENS), order)
    write_arpa(model, TOKENS, tmp_path / "model.arpa")
    back, tokens = read_arpa(tmp_path / "model.arpa")
    assert tokens == TOKENS
    assert back.sizes == model.sizes
    batch = Batch(Sequences.full(torch.tensor([text[:100], text[200:300]])))
    torch.testing.assert_close(back.logits(batch), model.logits(batch), rtol=0, atol=1e-5)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=4), unique=True, max_size=6))
@settings(max_examples=50, deadline=None)
def test_any_token_survives_escaping(tmp_path_factory: pytest.TempPathFactory, extra: list[str]) -> None:
    tokens = ["<eos>", *extra]
    path = tmp_path_factory.mktemp("arpa") / "model.arpa"
    model = model_of(list(range(len(tokens))), len(tokens))
    write_arpa(model, tokens, path)
    back, names = read_arpa(path)
    assert sorted(names) == sorted(tokens)
    scores, *_ = model.score_tokens(Sequences.full(torch.arange(len(tokens))[None]))
    again, *_ = back.score_tokens(Sequences.full(torch.tensor([[names.index(token) for token in tokens]])))
    torch.testing.assert_close(again, scores, rtol=0, atol=1e-5)


def test_empty_sections_of_high_orders_can_be_read(tmp_path: Path) -> None:
    model = model_of([1], vocabulary=3, order=5)
    write_arpa(model, ["<eos>", "a", "b"], tmp_path / "model.arpa")
    back, _ = read_arpa(tmp_path / "model.arpa")
    assert back.sizes == model.sizes == [3, 1, 0, 0, 0]


def test_a_file_of_another_tool_is_read_with_its_own_backoff_weights(tmp_path: Path) -> None:
    model, tokens = read_arpa(write_text(tmp_path, HAND_WRITTEN))
    assert tokens == ["<eos>", "<unk>", "to", "be"]
    scores, *_ = model.score_tokens(Sequences.pack([[2, 3, 0], [3, 2, 2], [1, 1, 3]]))
    log10 = [
        [-0.2, -0.05, -0.4],  # "to be </s>" is unknown and so is its weight; "be </s>" is known
        [-0.25 - 0.3, 0.1 - 0.75, -0.5 - 0.75],
        [-0.25 - 1.0, -1.0, -0.3],
    ]
    torch.testing.assert_close(scores, torch.tensor(log10) * math.log(10))


def test_special_tokens_have_their_conventional_names(tmp_path: Path) -> None:
    write_arpa(model_of([2, 2, 0], vocabulary=3, order=2), ["<eos>", "<unk>", " "], tmp_path / "model.arpa")
    lines = (tmp_path / "model.arpa").read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["\\data\\", "ngram 1=4", "ngram 2=3"]
    grams = [line.split("\t")[1] for line in lines if "\t" in line]
    assert grams == ["</s>", "<unk>", "\\u0020", "<s>", "\\u0020 </s>", "\\u0020 \\u0020", "<s> \\u0020"]
    assert lines[-1] == "\\end\\"


def test_control_and_format_characters_are_escaped_by_code_point(tmp_path: Path) -> None:
    write_arpa(model_of([1], vocabulary=3, order=1), ["<eos>", "\0", "a\u200bb"], tmp_path / "model.arpa")
    grams = [line.split("\t")[1] for line in (tmp_path / "model.arpa").read_text().splitlines() if "\t" in line]
    assert grams == ["</s>", "\\u0000", "a\\u200bb", "<s>"]


def test_a_probability_of_zero_is_read_as_a_tiny_one(tmp_path: Path) -> None:
    model, _ = read_arpa(write_text(tmp_path, HAND_WRITTEN.replace("-1.0\t<unk>", "-inf\t<unk>")))
    scores, *_ = model.score_tokens(Sequences.pack([[2, 3, 1]]))
    assert scores[0, 2] == pytest.approx((-99 + 0.1) * math.log(10))


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("\\data\\", "data", "line 24: the file ends where a \\\\data\\\\ line is expected"),
        ("ngram 2=3", "ngram 4=3", "line 6: expected the number of 2-grams, got 'ngram 4=3'"),
        ("ngram 1=5", "ngrams: 5", "line 5: expected 'ngram 1=COUNT'"),
        ("ngram 1=5", "ngram 1=6", "line 15: expected the 1-gram 6 of 6"),
        ("ngram 1=5", "ngram 1=4", "line 14: expected '.2-grams:', got '-0.3.*be"),
        ("-0.75\tto", "seldom\tto", "line 13: expected the 1-gram 4 of 5.*got 'seldom"),
        ("-0.75\tto", "0.75\tto", "line 13: expected the 1-gram 4 of 5"),
        ("-0.75\tto", "nan\tto", "line 13: expected the 1-gram 4 of 5"),
        ("be\t0.1", "be\tinf", "line 14: expected the 1-gram 5 of 5"),
        ("be\t0.1", "be\t0.1\t2", "line 14: expected the 1-gram 5 of 5"),
        ("-0.75\tto", "-0.75\tbe", "line 13: the unigram 'be' is listed twice"),
        ("-0.5\t</s>", "-0.5\tend", "line 10: there is no unigram </s>"),
        ("-0.1\tto be", "-0.1\tto bee", "line 18: the 2-gram 'to bee' has a word that is not a unigram"),
        ("-0.1\tto be", "-0.1\tto <s>", "line 18: the 2-gram 'to <s>' has <s> after its first word"),
        ("-0.4\tbe </s>", "-0.4\tto be", "line 19: the 2-gram 'to be' is listed twice"),
        (
            "-0.05\t<s> to be",
            "-0.05\tto to be",
            "the 3-gram 'to to be' extends a context that is not a 2-gram",
        ),
        ("\\3-grams:", "\\4-grams:", "line 21: expected '.3-grams:', got"),
        ("ngram 3=1", "ngram 3=9", "line 23: expected the 3-gram 2 of 9"),
        ("\n\\end\\\n", "", "line 22: the file ends where .end. is expected"),
    ],
)
def test_a_malformed_file_is_refused_with_the_line_number(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    assert HAND_WRITTEN.count(right) == 1
    with pytest.raises(DataError, match=message):
        read_arpa(write_text(tmp_path, HAND_WRITTEN.replace(right, wrong)))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 12: the file ends after 3 of 5 1-grams"):
        read_arpa(write_text(tmp_path, HAND_WRITTEN.split("-0.75")[0]))


def test_text_that_is_not_utf8_is_refused_with_the_line_number(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_bytes(HAND_WRITTEN.encode("utf-8").replace(b"-0.75\tto", b"-0.75\tt\xf6"))
    with pytest.raises(DataError, match="line 13: 't\ufffd' is not UTF-8"):
        read_arpa(path)


def test_a_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.arpa' cannot be read"):
        read_arpa(tmp_path / "nowhere.arpa")


def test_every_token_needs_a_unique_name(tmp_path: Path) -> None:
    model = model_of([1, 2, 1], vocabulary=3)
    with pytest.raises(DataError, match="3 tokens, but 2 names"):
        write_arpa(model, ["<eos>", "a"], tmp_path / "model.arpa")
    with pytest.raises(DataError, match="two tokens are called 'a'"):
        write_arpa(model, ["<eos>", "a", "a"], tmp_path / "model.arpa")
    assert list(tmp_path.iterdir()) == []
