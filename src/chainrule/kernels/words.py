r"""Splitting text into words and numbering them, compiled by Numba.

A word is what is between white space, as `str.isspace` defines it, and a line end is a word of its own: the matches of
`\n|\S+`. Text is given as its bytes in UTF-8. Distinct words are in a hash table with linear probing: a slot is empty,
0, or has the number of a word plus one, below the upper half of its hash; there are a power of two of them. `ends` and
`letters` have the bytes of the words, one after the other, and `hashes` their hashes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chainrule.kernels.caching import compiled, exported

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]

POSITION, FOUND, DISTINCT, STATE = range(4)  # of `state`, and its length
NEWLINE = 10
WHITE, PERHAPS = 1, 2
START, PRIME = -3750763034362895579, 1099511628211  # of the hash FNV-1a, modulo 2^64
LOW = 0xFFFFFFFF


def _kinds() -> Bytes:
    found = np.zeros(256, np.uint8)
    found[[*range(0x09, 0x0E), *range(0x1C, 0x21)]] = WHITE
    found[[0xC2, 0xE1, 0xE2, 0xE3]] = PERHAPS
    return found


KINDS = _kinds()  # of a byte: part of a word, white space, or perhaps the first of several bytes of white space


@compiled
def _white(data: Bytes, at: int) -> int:
    """The number of bytes of the white space at a position, 0 if there is none."""
    first = data[np.uint64(at)]  # an unsigned index needs no test for numbers below zero
    kind = KINDS[first]
    if kind != PERHAPS:
        return int(kind)
    second = data[np.uint64(at + 1)]
    if first == 0xC2:  # U+0085, U+00A0
        return 2 if second == 0x85 or second == 0xA0 else 0
    last = data[np.uint64(at + 2)]
    if first == 0xE1:  # U+1680
        return 3 if second == 0x9A and last == 0x80 else 0
    if first == 0xE3:  # U+3000
        return 3 if second == 0x80 and last == 0x80 else 0
    if second == 0x80:  # U+2000 to U+200A, U+2028, U+2029, U+202F
        return 3 if last <= 0x8A or last == 0xA8 or last == 0xA9 or last == 0xAF else 0
    return 3 if second == 0x81 and last == 0x9F else 0  # U+205F


@compiled
def _same(data: Bytes, begin: int, end: int, letters: Bytes, start: int) -> bool:
    for offset in range(end - begin):  # noqa: SIM110
        if data[np.uint64(begin + offset)] != letters[np.uint64(start + offset)]:
            return False
    return True


@exported
def number_words(
    data: Bytes,
    grow: bool,
    slots: Integers,
    hashes: Integers,
    ends: Integers,
    letters: Bytes,
    numbers: Numbers,
    state: Integers,
) -> None:
    """Write the number of each word of a text, −1 for one that is not in the table; `grow` adds it instead.

    Stops before a word for which there is no space in the table: `state` has the position, and how many words of the
    text were found and how many distinct ones there are, from where another call continues.
    """
    at, found, distinct = state[POSITION], state[FOUND], state[DISTINCT]
    mask, size = len(slots) - 1, len(data)
    while at < size:
        begin = at
        hashed = np.int64(START)
        if data[at] == NEWLINE:
            at += 1
        else:
            width = _white(data, at)
            if width:
                at += width
                continue
            while at < size and not _white(data, at):
                hashed = (hashed ^ np.int64(data[np.uint64(at)])) * np.int64(PRIME)
                at += 1
        slot = (hashed >> 32) & mask
        number = np.int64(-1)
        while slots[slot] != 0:
            if (slots[slot] ^ hashed) >> 32 == 0:
                known = (slots[slot] & LOW) - 1
                start = ends[known - 1] if known else 0
                if ends[known] - start == at - begin and _same(data, begin, at, letters, start):
                    number = known
                    break
            slot = (slot + 1) & mask
        if number < 0 and grow:
            used = ends[distinct - 1] if distinct else 0
            if distinct == len(ends) or used + at - begin > len(letters):
                at = begin
                break
            letters[used : used + at - begin] = data[begin:at]
            ends[distinct], hashes[distinct] = used + at - begin, hashed
            number = distinct
            distinct += 1
            slots[slot] = (hashed & ~LOW) | distinct
        numbers[found] = number
        found += 1
    state[POSITION], state[FOUND], state[DISTINCT] = at, found, distinct


@exported
def fill_slots(hashes: Integers, distinct: int, slots: Integers) -> None:
    """Put words into an empty hash table."""
    mask = len(slots) - 1
    for number in range(distinct):
        slot = (hashes[number] >> 32) & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = (hashes[number] & ~LOW) | (number + 1)


@exported
def count_words(data: Bytes, counts: Integers) -> None:
    """Count the words without line ends, the line ends, and the letters of scripts that do not separate words.

    Of the last: Thai to Burmese, Khmer, Japanese and Chinese (see `data.corpus`).
    """
    at, size = 0, len(data)
    inside = False
    words, lines, unspaced = 0, 0, 0
    while at < size:
        first = data[at]
        width = _white(data, at)
        if width:
            lines += first == NEWLINE
            inside = False
            at += width
            continue
        words += not inside
        inside = True
        if first < 0x80:
            at += 1
        elif first < 0xE0:
            at += 2
        elif first < 0xF0:
            three = (
                ((np.int64(first) & 15) << 12) | ((np.int64(data[at + 1]) & 63) << 6) | (np.int64(data[at + 2]) & 63)
            )
            unspaced += int(
                0x0E00 <= three <= 0x109F
                or 0x1780 <= three <= 0x17FF
                or 0x3040 <= three <= 0x30FF
                or 0x3400 <= three <= 0x9FFF
                or 0xF900 <= three <= 0xFAFF
            )
            at += 3
        else:
            four = ((np.int64(first) & 7) << 18) | ((np.int64(data[at + 1]) & 63) << 12)
            unspaced += int(0x20000 <= four <= 0x3FFFF)
            at += 4
    counts[0], counts[1], counts[2] = words, lines, unspaced
