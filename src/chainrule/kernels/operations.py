"""The operations of a program on a few rows, each of which is a token of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.arithmetic import (
    activate,
    add,
    additive_attention,
    attend,
    compiled,
    copy,
    expected_row,
    integers,
    interpolate,
    layer_norm,
    log_mixture,
    log_softmax,
    multiply,
    rms_norm,
    rotate,
    slow_attention,
)
from chainrule.kernels.backoff import next_log_probs
from chainrule.kernels.chunks import allocate, log_shares, lstm_scan
from chainrule.kernels.distributions import gate_features, log_mixture_of, weighted_sum
from chainrule.kernels.instructions import (
    ACTIVATE,
    ADD,
    ADD_POSITION,
    ADD_PREVIOUS_ROWS,
    ADDITIVE_ATTENTION,
    ALLOCATE,
    BACKOFF,
    CACHE_LOOKUP,
    COMBINE,
    COPY,
    CROSS_ATTENTION,
    EMBED,
    EMBED_WINDOW,
    EXPECTED_ROW,
    FULL_ATTENTION,
    GATE_FEATURES,
    INTERPOLATE,
    KEEP_TOKEN,
    LAYER_NORM,
    LINEAR,
    LINEAR_IN_INTEGERS,
    LINEAR_INT8,
    LISTED_LINEAR,
    LOG_MIXTURE,
    LOG_SHARES,
    LOG_SOFTMAX,
    LSTM_SCAN,
    MULTIPLY,
    PIXELS,
    POSITION,
    RMS_NORM,
    ROTATE,
    ROW_AT_POSITION,
    SELF_ATTENTION,
    SLOW_ATTENTION,
    TAPS,
    WINDOW_ATTENTION,
)
from chainrule.kernels.integer_products import integer_linear
from chainrule.kernels.moving_windows import cache_lookup, window_attention
from chainrule.kernels.pixels import LAYERS, PER_LAYER, read_value
from chainrule.kernels.products import linear, listed_linear
from chainrule.kernels.registers import vector

INT8 = np.zeros(1, dtype=np.int8)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


@compiled
def _layout(strides: Integers, size: int) -> tuple[int, int]:
    """Bytes between heads and between tokens of a tensor (B, H, S, D), or (B, S, D) with one head."""
    return (0, strides[1]) if strides[2] == size else (strides[1], strides[2])


@compiled
def _position(pointers: Integers, sequence: int, positions: int) -> int:
    """Tokens that a sequence has read; 0 for an operation on whole sequences."""
    return int(integers(pointers[sequence, positions], 1)[0]) if positions >= 0 else 0


@compiled
def operate(
    operation: Integers,
    value: float,
    addresses: Integers,
    row_strides: Integers,
    pointers: Integers,
    strides: Integers,
    positions: int,
    tokens: Integers,
    first: int,
    together: int,
    scores: Floats,
    biases: Floats,
    like: Floats,
) -> None:
    """One operation on all rows; a row is one token of one sequence."""
    code = operation[0]
    rows = len(tokens) * together
    out, out_row = addresses[operation[1]], row_strides[operation[1]]
    a, a_row = addresses[operation[2]], row_strides[operation[2]]
    if code in (LINEAR, LINEAR_INT8, LINEAR_IN_INTEGERS):
        bias = 0
        if operation[4] >= 0:
            bias = addresses[operation[4]]
        matrix, inputs, outputs, accumulate = addresses[operation[3]], operation[5], operation[6], operation[7] != 0
        if code == LINEAR:
            linear(out, out_row, a, a_row, matrix, 0, bias, inputs, outputs, rows, accumulate, like, like)
        elif code == LINEAR_IN_INTEGERS:
            scales, shifts, rounded = addresses[operation[8]], addresses[operation[9]], addresses[operation[10]]
            rounded_row = row_strides[operation[10]]
            integer_linear(
                out, out_row, a, a_row, rounded, rounded_row, matrix, shifts, scales, bias, inputs, outputs, rows,
                accumulate,
            )  # fmt: skip
        else:
            scales = addresses[operation[8]]
            linear(out, out_row, a, a_row, matrix, scales, bias, inputs, outputs, rows, accumulate, INT8, like)
        return
    size = like.itemsize
    for row in range(rows):
        sequence, ahead = row // together, row % together
        out, a = addresses[operation[1]] + row * out_row, addresses[operation[2]] + row * a_row
        if code == EMBED:
            token = min(tokens[sequence, first + ahead], operation[4])
            copy(out, addresses[operation[2]] + token * operation[3] * size, operation[3], like)
        elif code == EMBED_WINDOW:
            width, length, memory = operation[3], operation[4], operation[5]
            window = integers(pointers[sequence, memory], length - 1)
            for index in range(length):
                token = window[index] if index < length - 1 else tokens[sequence, first]
                copy(out + index * width * size, addresses[operation[2]] + token * width * size, width, like)
            for index in range(length - 2):
                window[index] = window[index + 1]
            if length > 1:
                window[length - 2] = tokens[sequence, first]
        elif code == ADD_PREVIOUS_ROWS:
            width, count = operation[4], operation[5]
            position = _position(pointers, sequence, positions) + ahead
            read = integers(pointers[sequence, operation[6]], position + 1)
            read[position] = tokens[sequence, first + ahead]
            for distance in range(1, min(count, position) + 1):
                earlier = addresses[operation[2]] + read[position - distance] * width * size
                scale = addresses[operation[3]] + (distance - 1) * width * size
                multiply(out, earlier, scale, width, True, like)
        elif code == RMS_NORM:
            rms_norm(out, a, operation[3], operation[4], value, like)
        elif code == LAYER_NORM:
            layer_norm(out, a, addresses[operation[3]], addresses[operation[4]], operation[5], value, like)
        elif code == ROTATE:
            width = operation[4]
            position = _position(pointers, sequence, positions) + ahead
            cosine, sine = addresses[operation[2]], addresses[operation[3]]
            rotate(out, cosine + position * width * size, sine + position * width * size, width, operation[5], like)
        elif code == SELF_ATTENTION:
            position = _position(pointers, sequence, positions)
            keys, values, heads, width = operation[5], operation[6], operation[7], operation[8]
            layout = strides[sequence, keys, 1], strides[sequence, keys, 2]
            cached_keys = pointers[sequence, keys]
            cached_values = pointers[sequence, values]
            if ahead == 0:  # the keys of all new tokens of this sequence, before the first of them attends
                for later in range(together):
                    key = addresses[operation[3]] + (row + later) * row_strides[operation[3]]
                    fresh = addresses[operation[4]] + (row + later) * row_strides[operation[4]]
                    for index in range(heads):
                        where = index * layout[0] + (position + later) * layout[1]
                        copy(cached_keys + where, key + index * width * size, width, like)
                        copy(cached_values + where, fresh + index * width * size, width, like)
            count = position + ahead + 1
            attend(
                out, a, cached_keys, cached_values, layout, layout, width, heads, count, value, scores, like[:0], like
            )
        elif code == WINDOW_ATTENTION:
            keys, values, heads, width = operation[5], operation[6], operation[7], operation[8]
            window_attention(
                out,
                a,
                addresses[operation[3]] + row * row_strides[operation[3]],
                addresses[operation[4]] + row * row_strides[operation[4]],
                pointers[sequence, keys],
                pointers[sequence, values],
                (strides[sequence, keys, 1], strides[sequence, keys, 2]),
                (strides[sequence, values, 1], strides[sequence, values, 2]),
                addresses[operation[11]],
                heads,
                width,
                operation[9],
                operation[10],
                _position(pointers, sequence, positions),
                value,
                scores,
                biases,
                like,
            )
        elif code == FULL_ATTENTION:
            keys, values, heads, width = operation[3], operation[4], operation[5], operation[6]
            start = sequence * together
            attend(
                out,
                a,
                addresses[keys] + start * row_strides[keys],
                addresses[values] + start * row_strides[values],
                (width * size, row_strides[keys]),
                (width * size, row_strides[values]),
                width,
                heads,
                together,
                value,
                scores,
                like[:0],
                like,
            )
        elif code == SLOW_ATTENTION:
            keys, values, heads = operation[3], operation[4], operation[5]
            start = sequence * together
            slow_attention(
                out, a, addresses[keys] + start * row_strides[keys], addresses[values] + start * row_strides[values],
                row_strides[keys], row_strides[values], operation[6], operation[7], heads, together, scores, like,
            )  # fmt: skip
        elif code == CROSS_ATTENTION:
            keys, values, lengths, heads, width = operation[3], operation[4], operation[5], operation[6], operation[7]
            count = integers(pointers[sequence, lengths], 1)[0]
            source_keys = pointers[sequence, keys]
            source_values = pointers[sequence, values]
            key_layout, value_layout = _layout(strides[sequence, keys], size), _layout(strides[sequence, values], size)
            added = like[:0]
            if operation[8] >= 0:
                memory, furthest = operation[9], operation[10]
                position = _position(pointers, sequence, positions) + ahead
                where = integers(pointers[sequence, memory], count)
                distances = addresses[operation[8]]
                added = biases[: heads * count]
                for index in range(count):
                    offset = min(max(position - where[index], -furthest), furthest) + furthest
                    of_distance = vector(distances + offset * heads * size, heads, like)
                    for number in range(heads):
                        added[number * count + index] = of_distance[number]
            attend(
                out,
                a,
                source_keys,
                source_values,
                key_layout,
                value_layout,
                width,
                heads,
                count,
                value,
                scores,
                added,
                like,
            )
        elif code == LISTED_LINEAR:
            listed = integers(pointers[sequence, operation[7]], integers(pointers[sequence, operation[8]], 1)[0])
            shifts = addresses[operation[4]] if operation[4] >= 0 else 0
            listed_linear(out, a, addresses[operation[3]], shifts, operation[5], operation[6], listed, like)
        elif code == ADDITIVE_ATTENTION:
            keys, values, lengths = operation[4], operation[5], operation[6]
            count = integers(pointers[sequence, lengths], 1)[0]
            source_keys = pointers[sequence, keys]
            source_values = pointers[sequence, values]
            additive_attention(
                out,
                a,
                addresses[operation[3]],
                source_keys,
                strides[sequence, keys, 1],
                source_values,
                strides[sequence, values, 1],
                operation[7],
                operation[8],
                count,
                scores,
                like,
            )
        elif code == TAPS:
            memory, width, kernel, dilation = operation[3], operation[4], operation[5], operation[6]
            position = _position(pointers, sequence, positions)
            past = (kernel - 1) * width
            slot = pointers[sequence, memory] + (position % dilation) * past * size
            copy(out, slot, past, like)
            copy(out + past * size, a, width, like)
            copy(slot, out + width * size, past, like)
        elif code == ACTIVATE:
            activate(out, a, operation[3], operation[4], like)
        elif code == ADD:
            add(out, a, addresses[operation[3]] + row * row_strides[operation[3]], operation[4], like)
        elif code == ADD_POSITION:
            position = _position(pointers, sequence, positions) + ahead
            add(out, a, addresses[operation[3]] + position * operation[4] * size, operation[4], like)
        elif code == POSITION:
            position = _position(pointers, sequence, positions) + ahead
            copy(out, addresses[operation[2]] + position * operation[3] * size, operation[3], like)
        elif code == ROW_AT_POSITION:
            memory, offset, modulus, counts = operation[3], operation[5], operation[6], operation[7]
            position = _position(pointers, sequence, positions) + ahead + offset
            if modulus > 0:
                position %= modulus
            if counts >= 0 and position >= integers(pointers[sequence, counts], 1)[0]:
                vector(out, operation[4], like)[:] = like[0]
            else:
                copy(out, pointers[sequence, memory] + position * strides[sequence, memory, 1], operation[4], like)
        elif code == MULTIPLY:
            other = addresses[operation[3]] + row * row_strides[operation[3]]
            multiply(out, a, other, operation[4], operation[5] != 0, like)
        elif code == INTERPOLATE:
            other = addresses[operation[3]] + row * row_strides[operation[3]]
            weight = addresses[operation[4]] + row * row_strides[operation[4]]
            interpolate(out, a, other, weight, operation[5], like)
        elif code == COPY:
            copy(out, a, operation[3], like)
        elif code == LOG_SOFTMAX:
            log_softmax(out, a, operation[3], value, like)
        elif code == EXPECTED_ROW:
            expected_row(out, a, addresses[operation[3]], operation[4], operation[5], value, like)
        elif code == LOG_MIXTURE:
            other = addresses[operation[3]] + row * row_strides[operation[3]]
            gate = addresses[operation[4]] + row * row_strides[operation[4]]
            log_mixture(out, a, other, gate, operation[5], like)
        elif code == BACKOFF:
            order, base, nodes = operation[3], operation[4], pointers[sequence, operation[5]]
            next_log_probs(out, a, order, base, nodes, tokens[sequence, first + ahead], operation[6], like)
        elif code == GATE_FEATURES:
            size_of, parts, predicted = operation[3], operation[4], operation[5]
            token = tokens[sequence, first + ahead]
            where = np.empty(2 * parts, np.int64)  # the predictions of this token and those of the next
            for part in range(parts):
                place = operation[2] + part
                here = addresses[place] + row * row_strides[place]
                where[part] = here - row_strides[place] if ahead > 0 else pointers[sequence, predicted + part]
                where[parts + part] = here
            gate_features(
                out,
                where,
                size_of,
                token,
                pointers[sequence, operation[6]],
                addresses[operation[7]],
                addresses[operation[8]],
                addresses[operation[9]],
                operation[10],
                like,
            )
            if ahead == together - 1:
                for part in range(parts):
                    copy(pointers[sequence, predicted + part], where[parts + part], size_of, like)
        elif code == COMBINE:
            size_of, parts = operation[4], operation[5]
            where = np.empty(parts, np.int64)
            for part in range(parts):
                place = operation[2] + part
                where[part] = addresses[place] + row * row_strides[place]
            scores_of = addresses[operation[3]] + row * row_strides[operation[3]]
            if operation[6] != 0:
                log_mixture_of(out, where, scores_of, size_of, like)
            else:
                weighted_sum(out, where, scores_of, size_of, like)
        elif code == LOG_SHARES:
            log_shares(out, a, addresses[operation[3]] + row * row_strides[operation[3]], value, like)
        elif code == LSTM_SCAN:
            if ahead == 0:  # all tokens of this sequence
                gates_row, memory = row_strides[operation[2]], addresses[operation[4]] + row * row_strides[operation[4]]
                matrix, backwards = addresses[operation[3]], operation[6] != 0
                lstm_scan(out, out_row, a, gates_row, matrix, memory, operation[5], together, backwards, like)
        elif code == ALLOCATE:
            if ahead == 0:
                keys, vectors, mass, working = operation[3], operation[4], operation[5], operation[6]
                allocate(
                    out,
                    out_row,
                    a,
                    a_row,
                    addresses[keys] + row * row_strides[keys],
                    row_strides[keys],
                    addresses[vectors] + row * row_strides[vectors],
                    row_strides[vectors],
                    addresses[mass] + row * row_strides[mass],
                    row_strides[mass],
                    addresses[working] + row * row_strides[working],
                    row_strides[working],
                    operation[7],
                    together,
                    value,
                    like,
                )
        elif code == CACHE_LOOKUP:
            keys, constants = operation[4], operation[5]
            parameters = np.empty(4, np.float64)
            for index in range(4):
                parameters[index] = vector(addresses[constants + index], 1, like)[0]
            cache_lookup(
                out,
                a,
                addresses[operation[3]] + row * row_strides[operation[3]],
                pointers[sequence, keys],
                strides[sequence, keys, 1],
                pointers[sequence, keys + 1],
                pointers[sequence, keys + 2],
                parameters,
                addresses[constants + 4],
                addresses[operation[6]] + row * row_strides[operation[6]],
                operation[7],
                operation[8],
                operation[9],
                operation[10],
                _position(pointers, sequence, positions),
                tokens[sequence, first + ahead],
                scores,
                like,
            )
        elif code == PIXELS:
            constants, layers = operation[3], operation[5]
            places = np.empty(LAYERS + layers * PER_LAYER, np.int64)
            for index in range(len(places)):
                places[index] = addresses[constants + index]
            sizes = (
                layers, operation[6], operation[7], operation[8], operation[9], operation[10], operation[11],
                operation[12], int(value),
            )  # fmt: skip
            position = _position(pointers, sequence, positions)
            memories = pointers[sequence, operation[4] :]
            read_value(out, tokens[sequence, first + ahead], position, memories, places, a, sizes, like)
        elif code == KEEP_TOKEN:
            tail = integers(pointers[sequence, operation[3]], operation[4])
            for index in range(operation[4] - 1):
                tail[index] = tail[index + 1]
            if operation[4] > 0:
                tail[operation[4] - 1] = tokens[sequence, first + ahead]
            integers(pointers[sequence, operation[5]], 1)[0] += 1
