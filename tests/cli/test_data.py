"""`chainrule data`: what is understood of data before anything is trained."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainrule.config import DataConfig
from chainrule.data.overview import file_facts, overview
from tests.conftest import Command


def shown(chainrule: Command, *arguments: object) -> dict[str, Any]:
    outcome = chainrule("data", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def test_a_text_is_counted_split_and_tokenized(chainrule: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "one line of twenty chars\r\nanother\tline é\n".encode() * 30)
    found = shown(chainrule, path, "--tokenizer", "bytes")
    assert (found["task"], found["format"], found["read_as"]) == ("text", "text", "one stream of text")
    assert found["byte_order_marks"] == 1
    counts = found["counts"]
    assert counts["lines"] == 60
    assert counts["words"] == 30 * 8
    assert counts["bytes"] == path.stat().st_size - 3
    assert counts["carriage_returns"] == 30
    assert counts["characters_per_line"]["longest"] == 25
    assert found["splits"]["training"]["bytes"] + found["splits"]["validation"]["bytes"] == counts["bytes"]
    assert "".join(found["sample"]).startswith("one line")
    assert any("of the validation data are training data, too" in note for note in found["notes"])


def test_a_sorted_list_is_documents_with_a_warning(chainrule: Command, tmp_path: Path) -> None:
    rng = random.Random(0)
    names = sorted({"".join(rng.choices("abcdefgh", k=rng.randrange(4, 9))).title() for _ in range(1500)})
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n")
    found = shown(chainrule, tmp_path / "names.txt")
    assert found["counts"]["documents"] == len(names)
    assert ["read as a list" in note or "alphabetical order" in note for note in found["notes"]] == [True, True]
    spread = shown(chainrule, tmp_path / "names.txt", "--set", "data.valid_from=spread")
    assert len(spread["notes"]) == 1
    table = chainrule("data", tmp_path / "names.txt").out
    assert "documents" in table
    assert "<eos>" in table


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [("café".encode("latin-1"), "not UTF-8 text", "LATIN1"), ("text".encode("utf-16"), "UTF-16", "iconv -f UTF-16")],
)
def test_what_cannot_be_read_is_described_before_the_error(
    chainrule: Command, tmp_path: Path, content: bytes, encoding: str, message: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    outcome = chainrule("data", tmp_path / "a.txt")
    assert outcome.code == 2
    assert encoding in outcome.out
    assert message in outcome.err


def test_the_task_is_recognised_by_the_format(chainrule: Command, tmp_path: Path) -> None:
    rows = "".join(f"text number {n}\t{'good' if n % 3 else 'bad'}\n" for n in range(60))
    (tmp_path / "labels.tsv").write_text(rows)
    labels = shown(chainrule, tmp_path / "labels.tsv")
    assert labels["task"] == "labels"
    assert labels["labels"] == {"good": 36, "bad": 18}
    (tmp_path / "tags.txt").write_text("the\tD\ncat\tN\n\na\tD\ndog\tN\n\n" * 20)
    tags = shown(chainrule, tmp_path / "tags.txt")
    assert tags["task"] == "tags"
    assert tags["tags"] == {"D": 36, "N": 36}
    assert tags["examples"][0] == "the/D cat/N"
    (tmp_path / "pairs.tsv").write_text("".join(f"number {n}\tNummer {n}\n" for n in range(30)))
    pairs = shown(chainrule, tmp_path / "pairs.tsv")
    assert pairs["task"] == "translation"
    assert pairs["splits"]["training"]["pairs"] == 27
    squad = {
        "paragraphs": [
            {"context": "a b c", "qas": [{"question": "q?", "id": str(n), "answers": []} for n in range(20)]}
        ]
    }
    (tmp_path / "squad.json").write_text(json.dumps({"data": [squad]}))
    answers = shown(chainrule, tmp_path / "squad.json")
    assert (answers["task"], answers["questions_without_an_answer"]) == ("answers", 18)
    np.savez(tmp_path / "images.npz", images=np.zeros((20, 4, 5), np.uint8), labels=np.arange(20) % 2)
    images = shown(chainrule, tmp_path / "images.npz")
    assert (images["task"], images["size"]) == ("images", "5×4 pixels, grey")
    assert images["classes"] == {"0": 9, "1": 9}
    as_text = shown(chainrule, tmp_path / "labels.tsv", "--task", "text")
    assert as_text["task"] == "text"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch.txt",), "there is no file or folder 'nosuch.txt'"),
        (("builtin:prose", "--task", "texts"), "unknown task 'texts'; did you mean 'text'?"),
        (("builtin:prose", "--set", "model.width=2"), "not a setting of the data"),
    ],
)
def test_mistakes_are_one_line(chainrule: Command, arguments: tuple[str, ...], message: str) -> None:
    outcome = chainrule("data", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_every_pass_over_the_text_shows_progress(text_file: Path) -> None:
    stages: dict[str, list[float]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        stages.setdefault(stage, []).append(done / max(1, total))

    config = DataConfig(train=str(text_file))
    file_facts(config, "text", progress)
    overview(config, "chars", "text", progress)
    for stage in ("bytes", "characters", "duplicates"):
        assert stages[stage] == sorted(stages[stage])
        assert stages[stage][-1] == pytest.approx(1, abs=0.01)
