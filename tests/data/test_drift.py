"""Warnings about held-out data that is unlike the training data."""

import random

import pytest

from chainrule.config import DataConfig
from chainrule.data.corpus import prepare

SYLLABLES = ["ba", "lo", "mi", "ra", "ste", "no", "ka", "vin", "el", "u"]
WORDS = ["the", "of", "and", "to", "king", "lord", "good", "sir", "night", "day", "come", "go", "know", "well"]


def names(count, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choices(SYLLABLES, k=rng.randrange(2, 5))).title() for _ in range(count)]


def prose(lines, words=WORDS, seed=0):
    rng = random.Random(seed)
    return "".join(" ".join(rng.choices(words, k=rng.randrange(4, 12))) + ".\n\n" for _ in range(lines))


def warnings(path, **settings):
    return prepare(DataConfig(train=str(path), **settings), "bytes").warnings


def test_sorted_lines_are_reported_with_the_remedy(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(sorted(names(900))) + "\n")
    (warning,) = warnings(tmp_path / "names.txt", unit="documents")
    assert "its lines are in alphabetical order" in warning
    assert "--set data.valid_from=spread" in warning
    assert warnings(tmp_path / "names.txt", unit="documents", valid_from="spread") == ()
    (tmp_path / "shuffled.txt").write_text("\n".join(names(900)) + "\n")
    assert warnings(tmp_path / "shuffled.txt", unit="documents") == ()


@pytest.mark.parametrize("valid_from", ["end", "start"])
def test_a_folder_of_unlike_files_is_reported(tmp_path, valid_from):
    for number, words in enumerate([WORDS, ["ERROR", "socket", "port", "timeout"], ["GET", "HTTP", "200", "404"]]):
        (tmp_path / f"{number}.log").write_text(prose(600, words))
    (warning,) = warnings(tmp_path, valid_from=valid_from)
    assert f"the {'last' if valid_from == 'end' else 'first'} tenth has other words than the rest" in warning


def test_longer_documents_at_the_end_are_reported(tmp_path):
    lines = [prose(1, seed=seed).strip() * (1 if seed < 450 else 3) for seed in range(500)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    (warning,) = warnings(tmp_path / "a.txt", unit="documents")
    assert "documents of the last tenth are" in warning


def test_prose_is_not_reported(tmp_path):
    (tmp_path / "prose.txt").write_text(prose(3000))
    assert warnings(tmp_path / "prose.txt") == ()


def test_a_given_validation_file_is_not_compared_with_the_end(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(sorted(names(900))) + "\n")
    (tmp_path / "valid.txt").write_text("\n".join(names(50, seed=1)) + "\n")
    assert warnings(tmp_path / "names.txt", unit="documents", valid=str(tmp_path / "valid.txt")) == ()


@pytest.mark.parametrize(
    ("folder", "name"),
    [("tinyshakespeare", "input.txt"), ("ptb", "ptb.train.txt.gz"), ("wikitext-2", "train.txt.gz")],
)
def test_the_usual_corpora_are_not_reported(real_data, folder, name):
    assert warnings(real_data(folder) / name) == ()
