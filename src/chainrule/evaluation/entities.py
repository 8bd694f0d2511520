"""Entities in BIO and IOBES tags, and precision, recall and F1 of predicted entities.

An entity is correct if its type, its first and its last word are. The definition is that of CoNLL-2000's conlleval,
which seqeval follows: an entity starts at B or S, at I or E after O, E or S, and wherever the type changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

PREFIXES = frozenset("BIOES")


class Entity(NamedTuple):
    type: str
    first: int
    last: int


class EntityScore(NamedTuple):
    """Precision, recall and F1 over all entities."""

    precision: float
    recall: float
    f1: float
    entities: int  # correct ones in the data


def has_entities(tags: Sequence[str]) -> bool:
    """Whether a tag set is BIO or IOBES: O, and prefixes with a type."""
    typed = [tag for tag in tags if tag != "O"]
    return "O" in tags and bool(typed) and all(tag[:1] in PREFIXES and tag[1:2] == "-" and tag[2:] for tag in typed)


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of a sentence, in order."""
    first, open_type, previous = 0, "", "O"
    for index, tag in enumerate([*tags, "O"]):
        prefix, kind = tag[:1], tag[2:]
        starts = prefix in "BS" or (prefix in "IE" and (previous in "OES" or kind != open_type))
        if open_type and (starts or prefix == "O" or previous in "ES"):
            yield Entity(open_type, first, index - 1)
            open_type = ""
        if starts:
            first, open_type = index, kind
        previous = prefix
    assert not open_type


def entity_score(correct: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScore:
    """Compare the entities of predicted tags with those of the correct ones, sentence by sentence."""
    hits = found = wanted = 0
    for right, output in zip(correct, predicted, strict=True):
        ours, theirs = set(entities(output)), set(entities(right))
        hits, found, wanted = hits + len(ours & theirs), found + len(ours), wanted + len(theirs)
    precision, recall = hits / max(1, found), hits / max(1, wanted)
    return EntityScore(precision, recall, 2 * hits / max(1, found + wanted), wanted)
