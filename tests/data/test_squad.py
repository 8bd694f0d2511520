"""Questions about long texts: passages, answer positions and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chainrule.config import DataConfig
from chainrule.data.squad import (
    Answer,
    PassageCutter,
    Question,
    chosen_passages,
    prepare_squad,
    read_squad,
)
from chainrule.errors import ChainruleError, DataError
from chainrule.tokenizers.words import Words
from tests.conftest import RealData

CONTEXT = "The cat sat on the mat. It was grey, and the dog (Rex) was brown; both slept all day."


def written(folder: Path, *questions: dict[str, Any], context: str = CONTEXT) -> Path:
    path = folder / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]}))
    return path


def asked(question: str, answer: str, start: int | None = None) -> dict[str, Any]:
    place = CONTEXT.index(answer) if start is None else start
    return {"question": question, "id": "7", "answers": [{"text": answer, "answer_start": place}]}


def cutter(length: int = 8, stride: int = 4) -> PassageCutter:
    words = sorted({"cat", "mat", "the", "dog", "grey", "was", "sat", "on", "brown", "Who", "?"})
    return PassageCutter(Words(words), length=length, stride=stride)


def test_an_answer_is_the_text_of_its_tokens() -> None:
    [*passages] = cutter().passages(CONTEXT)
    answer = Answer("dog (Rex)", CONTEXT.index("dog"))
    places = [passage.locate(answer) for passage in passages]
    assert any(places)
    assert {passage.text(place) for passage, place in zip(passages, places, strict=True) if place} == {"dog (Rex)"}


def test_passages_overlap_and_cover_everything() -> None:
    tool = cutter()
    whole, passages = tool.tokens(CONTEXT), tool.passages(CONTEXT)
    assert [len(passage.tokens) for passage in passages] == [8] * len(passages)
    assert passages[0].tokens[4:] == passages[1].tokens[:4]
    assert {token for passage in passages for token in passage.tokens} == set(whole)
    assert [len(one.tokens) for one in tool.passages("the cat")] == [2]  # a short one is one passage


def test_a_passage_with_half_an_answer_has_no_answer() -> None:
    first = cutter().passages(CONTEXT)[0]  # ends after "It was"
    assert first.locate(Answer("the mat", CONTEXT.index("the mat"))) is not None
    assert first.locate(Answer("It was grey", CONTEXT.index("It was"))) is None


def test_examples_are_all_passages_with_the_answer_and_some_without() -> None:
    tool = cutter()
    question = Question("Who was brown?", CONTEXT, (Answer("dog", CONTEXT.index("dog")),), "1")
    chosen = list(chosen_passages([question], tool, negatives=2, seed=0))
    answering = [target for _, target in chosen if target != (0, 0)]
    assert len(answering) == sum("dog" in one.text((1, len(one.tokens))) for one in tool.passages(CONTEXT))
    assert len(chosen) - len(answering) == 2
    assert chosen == list(chosen_passages([question], tool, negatives=2, seed=0))
    for source, (first, last) in chosen:
        passage = source[source.index(tool.tokenizer.eos) + 1 :]
        assert (tool.tokenizer.decode(passage[first - 1 : last]) if first else "none") in ("dog", "none")


def test_answers_are_stripped(tmp_path: Path) -> None:
    [found] = read_squad(str(written(tmp_path, asked("What?", " grey, and "))))
    assert found.answers == (Answer("grey, and", CONTEXT.index("grey")),)


def test_a_question_may_have_no_answer(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "Why?", "id": "1", "answers": [], "is_impossible": True})
    assert read_squad(str(path))[0].answers == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [\n{"paragraphs": ]}', "line 2 of .* is not valid JSON"),
        (b'{"data": "x"}', "has no list 'data'"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1 of article 1 of .* has no text 'context'"),
        (b'{"data": []}', "contains no questions"),
        (b'{"data": [\n"\xe4"]}', "line 2 of .* is not UTF-8"),
    ],
)
def test_json_of_another_format_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_squad(str(path))


def test_an_answer_that_is_not_at_its_offset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"question '7' in .* has the answer 'dog', but at offset 4 the context is 'cat'"
    ):
        read_squad(str(written(tmp_path, asked("Who?", "dog", start=4))))


def test_targets_are_positions_in_passages(tmp_path: Path) -> None:
    path = written(tmp_path, asked("Who was brown?", "dog"), asked("Which mat?", "the mat"))
    config = DataConfig(train=str(path), valid=str(path), passage_length=10, passage_stride=5, negatives=1)
    prepared = prepare_squad(config, "words")
    for source, target in prepared.train.ids():
        assert prepared.tokenizer.eos in source
        assert len(target) == 2
        assert target[0] <= target[1] <= 10
    with pytest.raises(ChainruleError, match="passage_stride 20 exceeds passage_length 10"):
        DataConfig.parse({"train": "x", "passage_length": 10, "passage_stride": 20})


def test_covid_qa_answers_are_at_their_offsets(real_data: RealData) -> None:
    found = read_squad(str(real_data("covid-qa") / "covid-qa-dev.json.gz"))
    assert len(found) == 203
    assert all(one.context[a.start : a.start + len(a.text)] == a.text for one in found for a in one.answers)
