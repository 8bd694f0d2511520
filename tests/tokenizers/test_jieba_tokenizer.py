"""Chinese words."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import MissingExtra, TokenizerError
from chainrule.tokenizers import Tokenizer, train_tokenizer
from chainrule.tokenizers import jieba as module

Trained = Callable[[str], Tokenizer]


@pytest.fixture(autouse=True)
def _needs_jieba(request: pytest.FixtureRequest) -> None:
    if "monkeypatch" not in request.fixturenames:
        pytest.importorskip("jieba")


def test_chinese_is_segmented_into_words(trained: Trained) -> None:
    tokenizer = trained("jieba")
    pieces = tokenizer.pieces(tokenizer.encode("我们在北京学习。\n"))
    assert pieces == ["我们", "在", "北京", "学习", "。", "\n"]


def test_an_unseen_word_of_seen_characters_is_encoded_by_character(trained: Trained) -> None:
    tokenizer = trained("jieba")
    pieces = tokenizer.pieces(tokenizer.encode("北京天气"))
    assert pieces == ["北京", "天", "气"]
    assert tokenizer.pieces(tokenizer.encode("京气")) == ["京", "气"]


def test_an_unseen_character_is_unknown_and_its_word_is_not(trained: Trained) -> None:
    tokenizer = trained("jieba")
    assert tokenizer.decode(tokenizer.encode("上海的天气")) == "\ufffd\ufffd\ufffd天气"


def test_a_vocabulary_size_keeps_all_characters_and_the_most_frequent_words(text: str) -> None:
    characters = len(set(text))
    tokenizer = train_tokenizer(f"jieba:{characters + 3}", lambda: [text])
    assert tokenizer.vocabulary == characters + 3
    assert tokenizer.pieces([characters + 2]) == ["the"]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_vocabulary_size_below_the_number_of_characters_is_refused() -> None:
    with pytest.raises(TokenizerError, match="is too small for the 4 characters of the text"):
        train_tokenizer("jieba:5", lambda: ["天地玄黄"])


@settings(max_examples=100, deadline=None)
@given(st.text("我们在北京学习天气abcXYZ019.%-+#&_ \r\n\t\u3000😀é"))
def test_segmentation_keeps_every_character(text: str) -> None:
    assert "".join(module._cut(text)) == text


def test_nothing_is_printed_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    module._segmenter.cache_clear()
    train_tokenizer("jieba", lambda: ["我们在北京"])
    assert capfd.readouterr() == ("", "")


def test_without_jieba_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    module._segmenter.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(MissingExtra, match=r"chainrule\[jieba\]"):
        train_tokenizer("jieba", lambda: ["我们"])
