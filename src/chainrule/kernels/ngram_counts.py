"""Counting n-grams in a hash table of fixed size, compiled by Numba.

The table is a trie whose nodes are its slots: a slot has the key (node of the n-gram without its last token) * base +
that token, and the count. The nodes of single tokens are the tokens 0 … base − 1, which need no slot, and slot s is
node base + s; so n-grams of all lengths share one table, and no two of them have the same key. Collisions are resolved
by linear probing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chainrule.kernels.caching import compiled, exported

Integers = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int64]  # (N, 2): key, or EMPTY, and count
Lengths = npt.NDArray[np.uint16]  # (N,) of the n-gram of a slot
Flags = npt.NDArray[np.bool_]

EMPTY = -1
KEY, COUNT = 0, 1
POSITION, USED, STATE = range(3)  # of `state`, and its length
MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 / golden ratio


@compiled
def _slot(key: int, size: int) -> int:
    """Where a key belongs: the upper half of its hash, scaled to the size of the table."""
    hashed = (np.uint64(key) * np.uint64(MULTIPLIER)) >> np.uint64(32)
    return np.int64((hashed * np.uint64(size)) >> np.uint64(32))  # type: ignore[return-value]


@exported
def count_ngrams(
    tokens: Integers,
    counted: Flags,
    base: int,
    limit: int,
    unigrams: Integers,
    nodes: Integers,
    slots: Slots,
    lengths: Lengths,
    state: Integers,
) -> None:
    """Count the n-grams that end at each token of a text, up to the length of `nodes`; −1 parts what does not belong
    together, and n-grams that end where nothing is `counted` get the number 0.

    Stops before a token for which there may be no space, when `limit` slots are used: `state` has the position, and the
    number of slots used. `nodes` are those of the n-grams that end at the token before, or −1.
    """
    at, used = state[POSITION], state[USED]
    order, size = len(nodes), len(slots)
    while at < len(tokens) and used + order <= limit:
        token = tokens[at]
        if token < 0:
            nodes[:] = -1
            at += 1
            continue
        increment = np.int64(counted[at])
        for length in range(order - 1, 0, -1):  # longest first: each needs the node of the shorter one before the token
            parent = nodes[length - 1]
            if parent < 0:
                nodes[length] = -1
                continue
            key = parent * base + token
            slot = _slot(key, size)
            while slots[slot, KEY] != key:
                if slots[slot, KEY] == EMPTY:
                    slots[slot, KEY] = key
                    lengths[slot] = length + 1
                    used += 1
                    break
                slot += 1
                if slot == size:
                    slot = 0
            slots[slot, COUNT] += increment
            nodes[length] = base + slot
        nodes[0] = token
        unigrams[token] += increment
        at += 1
    state[POSITION], state[USED] = at, used


@exported
def slots_of_length(
    length: int,
    base: int,
    slots: Slots,
    lengths: Lengths,
    ranks: npt.NDArray[np.int32],
    found: npt.NDArray[np.int32],
    keys: Integers,
) -> None:
    """The slots of the n-grams of one length, and their keys with the `ranks` of the shorter ones as their nodes."""
    number = 0
    for slot in range(len(slots)):
        if lengths[slot] == length:
            parent, token = divmod(slots[slot, KEY], base)
            keys[number] = (parent if length == 2 else np.int64(ranks[parent - base])) * base + token
            found[number] = slot
            number += 1
