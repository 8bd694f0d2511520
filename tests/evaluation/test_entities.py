"""Entities in BIO and IOBES tags. The expected values are those of seqeval's default mode."""

from __future__ import annotations

import pytest

from chainrule.evaluation.entities import Entity, entities, entity_score, has_entities


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("B-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),
        ("O I-ORG I-ORG O", [("ORG", 1, 2)]),  # IOB1: no B at the start
        ("I-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),  # the type changes
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),
        ("S-LOC B-PER I-PER E-PER", [("LOC", 0, 0), ("PER", 1, 3)]),
        ("B-PER E-PER E-PER", [("PER", 0, 1), ("PER", 2, 2)]),
        ("S-PER I-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_are_those_of_seqeval(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert list(entities(tags.split())) == [Entity(*one) for one in expected]


def test_an_entity_counts_only_with_its_type_and_both_ends() -> None:
    correct = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]]
    predicted = [["B-PER", "I-PER", "O", "B-ORG"], ["O", "B-ORG", "O"]]
    found = entity_score(correct, predicted)
    assert found.entities == 3
    assert (found.precision, found.recall, found.f1) == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_only_bio_and_iobes_tag_sets_have_entities() -> None:
    assert has_entities(["O", "B-PER", "I-PER"])
    assert has_entities(["O", "S-LOC", "E-LOC"])
    assert not has_entities(["NOUN", "VERB"])
    assert not has_entities(["O", "NOUN"])
    assert not has_entities(["B-PER", "I-PER"])  # without O every word would be in an entity
