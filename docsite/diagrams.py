"""The dependency diagram of every family: which tokens, pixels or source positions a prediction reads.

python docsite/diagrams.py

writes docs/images/families/NAME.svg and the call paths of docs/architecture.md. Colours follow the light or dark scheme
of the reader. A diagram is a graph on a grid: columns are positions, rows are layers, the inputs at the bottom. Edges
point from what is read to what reads it; those on a path to the highlighted prediction are strong, all others faint.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "images"
COLUMN, ROW, MARGIN, SIDE = 62, 58, 14, 112  # distances in px; SIDE holds the names of the rows
WIDE, HIGH = 46, 26  # size of a node

STYLE = """
svg { font: 13px system-ui, sans-serif; }
svg { --ink: #24292f; --soft: #8c959f; --fill: #ffffff; --accent: #0969da; --pale: #ddf4ff; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6edf3; --soft: #6e7681; --fill: #0d1117; --accent: #58a6ff; --pale: #12314f; }
}
rect { fill: var(--fill); stroke: var(--soft); stroke-width: 1.2; }
text { fill: var(--ink); text-anchor: middle; dominant-baseline: central; }
path { fill: none; stroke: var(--soft); stroke-width: 1; opacity: 0.4; }
.faint rect { stroke-dasharray: 3 3; } .faint text { fill: var(--soft); }
.read rect { stroke: var(--accent); } .state rect { stroke: var(--ink); }
.target rect { stroke: var(--accent); fill: var(--pale); stroke-width: 2; } .target text { font-weight: 600; }
.strong { stroke: var(--accent); stroke-width: 1.4; opacity: 0.9; }
.name { text-anchor: start; fill: var(--soft); font-size: 12px; } tspan { font-size: 10px; }
marker path { fill: context-stroke; stroke: none; opacity: 1; }
""".strip()


@dataclass
class Graph:
    """A graph on a grid; a node is named by its label and row."""

    nodes: dict[str, tuple[float, float, str]] = field(default_factory=dict)  # name: column, row, label
    edges: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[float, str] = field(default_factory=dict)
    targets: set[str] = field(default_factory=set)
    inputs: set[str] = field(default_factory=set)  # nodes that are given, not computed

    def row(self, row: float, name: str, labels: Iterable[str], start: float = 0, *, given: bool = False) -> list[str]:
        """Add a row of nodes from a column on; return their names."""
        names = []
        for index, label in enumerate(labels):
            if label:
                names.append(self.node(label, start + index, row, given=given))
        if name:
            self.rows[row] = name
        return names

    def node(self, label: str, column: float, row: float, *, given: bool = False, target: bool = False) -> str:
        name = f"{label}@{row:g}@{column:g}"
        self.nodes[name] = (column, row, label)
        if given:
            self.inputs.add(name)
        if target:
            self.targets.add(name)
        return name

    def join(self, sources: Iterable[str], readers: Iterable[str]) -> None:
        """Every reader reads every source."""
        sources = list(sources)
        self.edges += [(source, reader) for reader in readers for source in sources if source != reader]

    def chain(self, names: list[str]) -> None:
        """Each node reads the one before it."""
        self.edges += list(pairwise(names))

    def each(self, sources: list[str], readers: list[str]) -> None:
        """The i-th reader reads the i-th source."""
        self.edges += list(zip(sources, readers, strict=False))

    def causal(self, sources: list[str], readers: list[str], width: int | None = None, step: int = 1) -> None:
        """The i-th reader reads the sources up to i: all of them, or `width` of them, `step` apart."""
        for index, reader in enumerate(readers):
            first = 0 if width is None else max(0, index - (width - 1) * step)
            for back in range(index, first - 1, -step):
                if back < len(sources):
                    self.edges.append((sources[back], reader))

    def svg(self) -> str:
        strong = self._strong()
        top = max(row for _, row, _ in self.nodes.values())
        right = max(column for column, _, _ in self.nodes.values())
        side = SIDE if self.rows else MARGIN
        width, height = side + right * COLUMN + WIDE + MARGIN, MARGIN * 2 + top * ROW + HIGH

        def place(name: str) -> tuple[float, float]:
            column, row, _ = self.nodes[name]
            return side + column * COLUMN + WIDE / 2, height - MARGIN - HIGH / 2 - row * ROW

        parts = []
        for source, reader in sorted(self.edges, key=lambda edge: edge in strong):
            parts.append(arrow(*place(source), *place(reader), strong=(source, reader) in strong))
        used = {name for edge in strong for name in edge} | self.targets
        for name, (_, _, label) in self.nodes.items():
            kind = "target" if name in self.targets else "faint" if name not in used else "state"
            kind = "read" if name in self.inputs and name in used and name not in self.targets else kind
            parts.append(box(*place(name), label, kind))
        for row, text in self.rows.items():
            y = height - MARGIN - HIGH / 2 - row * ROW
            parts.append(f'<text class="name" x="{MARGIN - 6}" y="{y:g}">{html.escape(text)}</text>')
        return document(width, height, parts)

    def _strong(self) -> set[tuple[str, str]]:
        """The edges on a path to a target."""
        found: set[tuple[str, str]] = set()
        frontier, seen = list(self.targets), set(self.targets)
        while frontier:
            reader = frontier.pop()
            for edge in self.edges:
                if edge[1] == reader:
                    found.add(edge)
                    if edge[0] not in seen:
                        seen.add(edge[0])
                        frontier.append(edge[0])
        return found


def arrow(x0: float, y0: float, x1: float, y1: float, *, strong: bool) -> str:
    if abs(y0 - y1) < 1:  # within a row: straight if adjacent, else an arc above
        start, end = (x0 + WIDE / 2, x1 - WIDE / 2 - 4) if x0 < x1 else (x0 - WIDE / 2, x1 + WIDE / 2 + 4)
        if abs(x1 - x0) <= COLUMN * 1.1:
            d = f"M{start:g} {y0:g}L{end:g} {y1:g}"
        else:
            lift = y0 - HIGH / 2
            d = f"M{x0:g} {lift:g}Q{(x0 + x1) / 2:g} {lift - 22:g} {x1:g} {lift - 3:g}"
    else:
        sign = 1 if y1 < y0 else -1
        d = f"M{x0:g} {y0 - sign * HIGH / 2:g}L{x1:g} {y1 + sign * (HIGH / 2 + 4):g}"
    kind = ' class="strong"' if strong else ""
    return f'<path{kind} d="{d}" marker-end="url(#tip)"/>'


def box(x: float, y: float, label: str, kind: str) -> str:
    text = re.sub(r"_(\w+)", r'<tspan dy="4">\1</tspan>', html.escape(label))
    return (
        f'<g class="{kind}"><rect x="{x - WIDE / 2:g}" y="{y - HIGH / 2:g}" width="{WIDE}" height="{HIGH}" rx="5"/>'
        f'<text x="{x:g}" y="{y:g}">{text}</text></g>'
    )


def document(width: float, height: float, parts: list[str]) -> str:
    marker = (
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" '
        'orient="auto-start-reverse"><path d="M0 0L6 3L0 6z"/></marker></defs>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img">\n<style>\n{STYLE}\n</style>\n{marker}\n{body}\n</svg>\n'
    )


def indexed(letter: str, last: int, first: int = 1) -> list[str]:
    return [f"{letter}_{index}" for index in range(first, last + 1)]


def ngram() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 7), given=True)
    target = graph.node("x_8", 7, 1, target=True)
    graph.rows[1] = "prediction"
    graph.join(tokens[-4:], [target])
    return graph


def finite_memory() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 7), given=True)
    network = graph.node("MLP", 4.5, 1)
    graph.rows |= {1: "network", 2: "prediction"}
    graph.join(tokens[-4:], [network])
    graph.join([network], [graph.node("x_8", 4.5, 2, target=True)])
    return graph


def recurrent() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 6), given=True)
    first, second = graph.row(1, "layer 1", indexed("h", 6)), graph.row(2, "layer 2", indexed("h'", 6))
    graph.each(tokens, first)
    graph.chain(first)
    graph.each(first, second)
    graph.chain(second)
    graph.rows[3] = "prediction"
    graph.join([second[-1]], [graph.node("x_7", 5, 3, target=True)])
    return graph


def self_regressive() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 5), given=True)
    first = graph.row(1, "LSTM 1", indexed("h", 5))
    expected = graph.row(2, "expectation", indexed("ē", 5))
    second = graph.row(3, "LSTM 2", indexed("g", 5))
    graph.each(tokens, first)
    graph.chain(first)
    graph.each(first, expected)
    graph.each(first[:-1], expected[1:])
    graph.each(expected, second)
    graph.chain(second)
    graph.rows[4] = "prediction"
    target = graph.node("x_6", 4.6, 4, target=True)
    graph.join([expected[-1], second[-1]], [target])
    return graph


def causal_conv() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 9), given=True)
    first, second = graph.row(1, "dilation 1", indexed("a", 9)), graph.row(2, "dilation 2", indexed("b", 9))
    graph.causal(tokens, first, 3)
    graph.causal(first, second, 3, 2)
    graph.rows[3] = "prediction"
    graph.join([second[-1]], [graph.node("x_10", 8, 3, target=True)])
    return graph


def attentive_conv() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 6), given=True)
    local, attended = graph.row(1, "convolution", indexed("c", 6)), graph.row(2, "attention", indexed("a", 6))
    graph.causal(tokens, local, 3)
    graph.causal(local, attended)
    graph.rows[3] = "prediction"
    graph.join([attended[-1]], [graph.node("x_7", 5, 3, target=True)])
    return graph


def gpt() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 5), given=True)
    first, second = graph.row(1, "layer 1", indexed("h", 5)), graph.row(2, "layer 2", indexed("h'", 5))
    graph.causal(tokens, first)
    graph.causal(first, second)
    graph.rows[3] = "prediction"
    graph.join([second[-1]], [graph.node("x_6", 4, 3, target=True)])
    return graph


def hybrid_language() -> Graph:
    graph = Graph()
    before = graph.row(0, "tokens", indexed("x", 4), given=True)
    now = graph.row(0, "", indexed("x", 6, 5), 4.6, given=True)
    encoded = graph.row(1, "BiLSTM", indexed("m", 4))
    planned = graph.row(2, "NAR branch", indexed("n", 8, 5), 4.6)
    memory = graph.row(1, "", indexed("h", 6, 5), 4.6)
    graph.each(before, encoded)
    graph.chain(encoded)
    graph.chain(encoded[::-1])
    graph.join(encoded, planned)
    graph.each(now, memory)
    graph.chain([encoded[-1], *memory])
    graph.rows[3] = "prediction"
    graph.join([planned[2], memory[-1]], [graph.node("x_7", 6.6, 3, target=True)])
    return graph


def encoder(graph: Graph, names: str = "BiLSTM", count: int = 4, *, both: bool = True) -> list[str]:
    """Source tokens and a recurrent encoder, at the left."""
    source = graph.row(0, "tokens", indexed("s", count), given=True)
    encoded = graph.row(1, names, indexed("m", count))
    graph.each(source, encoded)
    graph.chain(encoded)
    if both:
        graph.chain(encoded[::-1])
    return encoded


def seq2seq() -> Graph:
    graph = Graph()
    encoded = encoder(graph, "RNN layers")
    targets = graph.row(0, "", indexed("y", 3), 4.6, given=True)
    hidden = graph.row(1, "", indexed("h", 3), 4.6)
    graph.each(targets, hidden)
    graph.chain([encoded[-1], *hidden])
    attended = graph.node("h̃_3", 6.6, 2)
    graph.join([*encoded, hidden[-1]], [attended])
    graph.rows |= {2: "attention", 3: "prediction"}
    graph.join([attended], [graph.node("y_4", 6.6, 3, target=True)])
    return graph


def transformer() -> Graph:
    graph = Graph()
    source = graph.row(0, "tokens", indexed("s", 4), given=True)
    encoded = graph.row(1, "self-attention", indexed("m", 4))
    graph.join(source, encoded)
    targets = graph.row(0, "", indexed("y", 3), 4.6, given=True)
    hidden = graph.row(1, "", indexed("h", 3), 4.6)
    graph.causal(targets, hidden)
    attended = graph.row(2, "cross-attention", indexed("g", 3), 4.6)
    graph.each(hidden, attended)
    graph.join(encoded, [attended[-1]])
    graph.rows[3] = "prediction"
    graph.join([attended[-1]], [graph.node("y_4", 6.6, 3, target=True)])
    return graph


def autoregressive_transformer() -> Graph:
    graph = Graph()
    encoded = encoder(graph, "LSTM", both=False)
    targets = graph.row(0, "", indexed("y", 3), 4.6, given=True)
    contexts, hidden = graph.row(1, "", indexed("c", 3), 4.6), graph.row(2, "MLP", indexed("h", 3), 4.6)
    graph.join(encoded, [contexts[-1]])
    graph.each(targets, contexts)
    graph.each(contexts, hidden)
    graph.each(hidden[:-1], contexts[1:])
    graph.rows[3] = "prediction"
    graph.join([hidden[-1]], [graph.node("y_4", 6.6, 3, target=True)])
    return graph


def fat() -> Graph:
    graph = Graph()
    source = graph.row(0, "tokens", indexed("s", 4), given=True)
    encoded = graph.row(1, "slow attention", indexed("m", 4))
    graph.join(source, encoded)
    targets = graph.row(0, "", indexed("y", 3), 4.6, given=True)
    memory = graph.row(1, "", indexed("h", 3), 4.6)
    graph.each(targets, memory)
    graph.chain(memory)
    output = graph.node("MLP", 6.6, 2)
    graph.join([*encoded, memory[-1]], [output])
    graph.rows |= {2: "fast attention", 3: "prediction"}
    graph.join([output], [graph.node("y_4", 6.6, 3, target=True)])
    return graph


def hybrid() -> Graph:
    graph = Graph()
    encoded = encoder(graph)
    targets = graph.row(0, "", indexed("y", 3), 4.6, given=True)
    memory = graph.row(1, "", indexed("h", 3), 4.6)
    planned = graph.row(2, "NAR branch", indexed("n", 5), 0)
    graph.join(encoded, planned)
    graph.chain(planned)
    graph.chain(planned[::-1])
    graph.each(targets, memory)
    graph.chain(memory)
    branch = graph.node("a_4", 6.6, 2)
    graph.join([*encoded, memory[-1]], [branch])
    graph.rows[3] = "mixture"
    graph.join([branch, planned[3]], [graph.node("y_4", 5, 3, target=True)])
    return graph


def nonautoregressive() -> Graph:
    graph = Graph()
    source = graph.row(0, "tokens", indexed("s", 3), 1.5, given=True)
    encoded = graph.row(1, "encoder", indexed("m", 3), 1.5)
    frames = graph.row(2, "frames", indexed("h", 6))
    graph.join(source, encoded)
    graph.join(encoded, frames)
    graph.rows[3] = "prediction"
    labels = ["y_1", "∅", "y_2", "y_3", "∅", "∅"]
    for index, (frame, label) in enumerate(zip(frames, labels, strict=True)):
        graph.join([frame], [graph.node(label, index, 3, target=True)])
    return graph


def hybrid_regressive() -> Graph:
    graph = Graph()
    source = graph.row(0, "tokens", indexed("s", 3), 0, given=True)
    encoded = graph.row(1, "encoder", indexed("m", 3))
    graph.join(source, encoded)
    leader = [graph.node(f"y_{index}", 2.6 + index, 2) for index in (2, 4, 6)]
    graph.join(encoded, leader)
    graph.chain(leader)
    graph.join([leader[0]], [leader[2]])
    graph.rows |= {2: "every 2nd token", 3: "the rest"}
    filler = [graph.node(f"y_{index}", 2.6 + index, 3, target=True) for index in (1, 3, 5)]
    graph.join(leader, filler)
    return graph


def word2vec() -> Graph:
    graph = Graph()
    centre = graph.node("x_4", 3, 0, given=True)
    graph.rows |= {0: "centre", 1: "context"}
    for index in (2, 3, 5, 6):
        graph.join([centre], [graph.node(f"x_{index}", index - 1, 1, target=True)])
    for index in (1, 7):
        graph.node(f"x_{index}", index - 1, 1)
    return graph


def elmo() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("x", 5), given=True)
    forward, backward = graph.row(1, "forward", indexed("f", 5)), graph.row(2, "backward", indexed("b", 5))
    graph.each(tokens, forward)
    graph.chain(forward)
    graph.each(tokens, backward)
    graph.chain(backward[::-1])
    graph.rows[3] = "vector"
    graph.join([forward[2], backward[2]], [graph.node("v_3", 2, 3, target=True)])
    return graph


def bert() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", ["x_1", "x_2", "[M]", "x_4", "x_5"], given=True)
    hidden = graph.row(1, "layers", indexed("h", 5))
    graph.join(tokens, hidden)
    graph.rows[2] = "prediction"
    graph.join([hidden[2]], [graph.node("x_3", 2, 2, target=True)])
    return graph


def t5() -> Graph:
    graph = Graph()
    source = graph.row(0, "tokens", ["x_1", "<0>", "x_4", "x_5", "<1>"], given=True)
    encoded = graph.row(1, "encoder", indexed("m", 5))
    graph.join(source, encoded)
    targets = graph.row(0, "", ["<0>", "x_2"], 5.6, given=True)
    decoder = graph.row(1, "", indexed("h", 2), 5.6)
    graph.causal(targets, decoder)
    graph.join(encoded, [decoder[-1]])
    graph.rows[2] = "prediction"
    graph.join([decoder[-1]], [graph.node("x_3", 6.6, 2, target=True)])
    return graph


def classifier() -> Graph:
    graph = Graph()
    tokens = graph.row(0, "tokens", indexed("s", 5), given=True)
    encoded = graph.row(1, "encoder", indexed("m", 5))
    graph.each(tokens, encoded)
    pooled = graph.node("c", 2, 2)
    graph.join(encoded, [pooled])
    graph.rows |= {2: "pooling", 3: "prediction"}
    graph.join([pooled], [graph.node("label", 2, 3, target=True)])
    return graph


def pair_classifier() -> Graph:
    graph = Graph()
    first = graph.row(0, "tokens", indexed("a", 2), given=True)
    second = graph.row(0, "", indexed("b", 3), 2.6, given=True)
    encoded = [*graph.row(1, "encoder", indexed("m", 2)), *graph.row(1, "", ["m_3", "m_4", "m_5"], 2.6)]
    graph.join([*first, *second], encoded)
    pooled, context = graph.node("r", 0.5, 2), graph.node("c", 2.6, 3)
    graph.rows |= {2: "mean", 3: "attention", 4: "prediction"}
    graph.join(encoded, [pooled, context])
    graph.join([pooled], [context])
    graph.join([context], [graph.node("labels", 2.6, 4, target=True)])
    return graph


def vit() -> Graph:
    graph = Graph()
    patches = graph.row(0, "patches", ["c", *indexed("p", 4)], given=True)
    first = graph.row(1, "block 1", indexed("z", 5))
    graph.join(patches, first)
    last = graph.node("z'_1", 0, 2)
    graph.rows |= {2: "block 2", 3: "prediction"}
    graph.join(first, [last])
    graph.join([last], [graph.node("label", 0, 3, target=True)])
    return graph


def image_classifier() -> Graph:
    graph = Graph()
    pixels = graph.row(0, "pixels", indexed("x", 6), given=True)
    features = graph.row(1, "pixelcnn", indexed("h", 6))
    for index, feature in enumerate(features):
        graph.join(pixels[:index], [feature])
    cells = [graph.node("g_1", 1, 2), graph.node("g_2", 4, 2)]
    graph.join(features[:3], cells[:1])
    graph.join(features[3:], cells[1:])
    graph.rows |= {2: "means of cells", 3: "prediction"}
    graph.join(cells, [graph.node("label", 2.5, 3, target=True)])
    return graph


def tagger() -> Graph:
    graph = Graph()
    words = graph.row(0, "words", indexed("w", 4), given=True)
    encoded = graph.row(1, "BiLSTM", indexed("v", 4))
    graph.each(words, encoded)
    graph.chain(encoded)
    graph.chain(encoded[::-1])
    tags = graph.row(2, "tags", indexed("y", 2), given=True)
    target = graph.node("y_3", 2, 2, target=True)
    last = graph.node("y_4", 3, 2)
    graph.chain([*tags, target, last])
    graph.each(encoded, [*tags, target, last])
    graph.edges = [edge for edge in graph.edges if edge[1] not in tags]  # given tags are read, not computed
    return graph


def reader() -> Graph:
    graph = Graph()
    question = graph.row(0, "tokens", indexed("q", 2), given=True)
    passage = graph.row(0, "", indexed("p", 4), 2.6, given=True)
    aligned = graph.row(1, "BiLSTM", indexed("h", 4), 2.6)
    graph.join(question, aligned)
    graph.each(passage, aligned)
    graph.chain(aligned)
    graph.chain(aligned[::-1])
    graph.rows[2] = "positions"
    start = graph.node("start", 3.1, 2)
    end = graph.node("end", 5.1, 2, target=True)
    graph.join(aligned, [start, end])
    graph.join([start], [end])
    return graph


def pixels(marks: Callable[[int, int], tuple[str, str]], extra: list[str] | None = None, width: int = 7) -> str:
    """A grid of pixels; `marks` gives the kind and the label of the pixel at a row and column."""
    size = 34
    parts = []
    for row in range(5):
        for column in range(width):
            kind, label = marks(row, column)
            x, y = MARGIN + column * size, MARGIN + row * size
            parts.append(
                f'<g class="{kind}"><rect x="{x}" y="{y}" width="{size - 4}" height="{size - 4}" rx="3"/>'
                f'<text x="{x + size / 2 - 2:g}" y="{y + size / 2 - 2:g}">{label}</text></g>'
            )
    room = 150 if extra else 0
    return document(MARGIN * 2 + width * size + room, MARGIN * 2 + 5 * size, parts + (extra or []))


def stacks(row: int, column: int) -> tuple[str, str]:
    if (row, column) == (3, 3):
        return "target", "x"
    if row == 3 and column < 3:
        return "read", "h"
    return ("read", "v") if row < 3 else ("faint", "")


def pixelcnn() -> str:
    return pixels(stacks)


def labelled_pixelcnn() -> str:
    x, y = MARGIN + 7 * 34 + 70, MARGIN + 3 * 34 + 15
    edge = f'<path class="strong" d="M{x - WIDE / 2:g} {y:g}L{MARGIN + 4 * 34:g} {y:g}" marker-end="url(#tip)"/>'
    return pixels(stacks, [edge, box(x, y, "label", "read")])


NEAREST = [(0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0), (-1, -2), (-1, 2), (-2, -1), (-2, 1)]


def neighbours() -> str:
    order = {(3 + row, 3 + column): str(index) for index, (row, column) in enumerate(NEAREST, 1)}

    def marks(row: int, column: int) -> tuple[str, str]:
        if (row, column) == (3, 3):
            return "target", "x"
        return ("read", order[row, column]) if (row, column) in order else ("faint", "")

    return pixels(marks)


FAMILIES: dict[str, Callable[[], Graph | str]] = {
    "ngram": ngram,
    "finite_memory": finite_memory,
    "recurrent": recurrent,
    "self_regressive": self_regressive,
    "causal_conv": causal_conv,
    "attentive_conv": attentive_conv,
    "gpt": gpt,
    "hybrid_language": hybrid_language,
    "seq2seq": seq2seq,
    "transformer": transformer,
    "autoregressive_transformer": autoregressive_transformer,
    "fat": fat,
    "hybrid": hybrid,
    "nonautoregressive": nonautoregressive,
    "hybrid_regressive": hybrid_regressive,
    "neighbours": neighbours,
    "pixelcnn": pixelcnn,
    "labelled_pixelcnn": labelled_pixelcnn,
    "vit": vit,
    "image_classifier": image_classifier,
    "word2vec": word2vec,
    "elmo": elmo,
    "bert": bert,
    "t5": t5,
    "classifier": classifier,
    "pair_classifier": pair_classifier,
    "tagger": tagger,
    "reader": reader,
}


# The call paths of two verbs: depth of the call, module in src/chainrule, what it does there.
PATHS: dict[str, list[tuple[int, str, str]]] = {
    "path-train": [
        (0, "cli/train.py", "parses the options, which options.py declares"),
        (1, "api.py", "merges recipe, config file and options into a RunConfig"),
        (2, "tasks/text.py", "opens the data: TextTask.open returns TextData"),
        (3, "data/corpus.py", "trains the tokenizer and encodes the text once, into the cache"),
        (2, "tasks/training_data.py", "TrainingData.train: builds, fits, scores, writes the card"),
        (3, "families.py", "builds models/gpt.py from the registry"),
        (3, "training/loop.py", "Trainer.run: budget, schedule, validation, checkpoints"),
        (4, "data/batching.py", "the batch at a position"),
        (4, "training/learner.py", "the gradient of a batch, accumulated over micro-batches"),
        (5, "objectives.py", "the loss"),
        (6, "models/gpt.py", "hidden vectors and logits of all positions"),
        (4, "training/optim.py", "Muon and AdamW"),
        (4, "training/checkpoint.py", "best weights, last checkpoint, metrics"),
        (3, "evaluation/likelihood.py", "the score of the validation data with its protocol"),
    ],
    "path-translate": [
        (0, "cli/translate.py", "parses the options, reads lines and writes lines"),
        (1, "tasks/translation.py", "TranslationRun.translate: model, tokenizers and settings of the run"),
        (2, "decoding/translator.py", "translate_stream: buffers lines, encodes, keeps the order, decodes to text"),
        (3, "decoding/translation.py", "decode_sources: batches of similar length, maximum lengths, ranking"),
        (4, "decoding/beam.py", "beam_search: keeps the best hypotheses, stops when no other can win"),
        (5, "decoding/incremental.py", "reads tokens into states, merges and selects rows"),
        (6, "models/transformer.py", "start encodes the source, extend gives the next logits"),
        (7, "nn/attention.py", "self-attention with a cache, cross-attention to the source"),
    ],
}


def path(steps: list[tuple[int, str, str]]) -> str:
    """A call path from top to bottom: boxes indented by depth, with arrows from caller to callee."""
    wide, step, indent = 186, 40, 26
    aside = MARGIN + max(level for level, _, _ in steps) * indent + wide + 14  # where the explanations begin
    parts, last = [], {}
    for index, (level, module, what) in enumerate(steps):
        x, y = MARGIN + level * indent, MARGIN + index * step
        if level:
            caller = last[level - 1]
            left = MARGIN + (level - 1) * indent + 14
            parts.append(
                f'<path class="strong" d="M{left} {caller + HIGH}V{y + HIGH / 2:g}H{x - 3}" marker-end="url(#tip)"/>'
            )
        last[level] = y
        parts.append(
            f'<g class="state"><rect x="{x}" y="{y}" width="{wide}" height="{HIGH}" rx="5"/>'
            f'<text x="{x + wide / 2:g}" y="{y + HIGH / 2:g}">{html.escape(module)}</text></g>'
            f'<text class="name" x="{aside}" y="{y + HIGH / 2:g}">{html.escape(what)}</text>'
        )
    return document(aside + 470, MARGIN * 2 + len(steps) * step, parts)


def diagrams() -> dict[str, str]:
    """Every diagram as SVG, by its path below docs/images without the suffix."""
    made = {f"families/{name}": build() for name, build in FAMILIES.items()}
    made |= {name: path(steps) for name, steps in PATHS.items()}
    return {name: diagram if isinstance(diagram, str) else diagram.svg() for name, diagram in made.items()}


def main() -> None:
    for name, svg in diagrams().items():
        file = FOLDER / f"{name}.svg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
