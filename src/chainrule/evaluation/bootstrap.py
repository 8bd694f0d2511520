"""Bootstrap over examples: intervals of metrics that are not means, such as BLEU and F1.

A metric is a function of sums of statistics of the examples (n-gram counts, confusion counts), so a resample needs
the sums only: with c_r the number of times that each example is drawn, m(c_r · S) is the metric of resample r. Two
models that are measured on the same examples are compared by the same resamples (Koehn, 2004): an example that is
difficult is difficult for both, so the difference varies far less than either metric.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

RESAMPLES = 1000
CHUNK = 2_000_000  # counts in memory at a time


def resampled(
    statistics: Values, value: Callable[[Values], Values], *, resamples: int = RESAMPLES, seed: int = 0
) -> Values:
    """(R,) values of a metric on resamples of the examples; equal seeds draw the same examples.

    `statistics` (N, K) are those of each example, `value` maps sums (R, K) to metrics (R,).
    """
    count = len(statistics)
    draw = np.random.default_rng(seed)
    rows = max(1, CHUNK // count)
    found = []
    for begin in range(0, resamples, rows):
        drawn = draw.multinomial(count, np.full(count, 1 / count), size=min(rows, resamples - begin))
        found.append(value(drawn @ statistics))
    return np.concatenate(found)


def interval(values: Values) -> tuple[float, float]:
    """The 95 % interval of resampled values."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
