"""What the page shows: the numbers are those of the models."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings, strategies

from chainrule.compose.mixture import Mixture
from chainrule.decoding.inpainting import inpaint
from chainrule.decoding.sampling import Sampling
from chainrule.serving.app import create_app
from chainrule.serving.inspect_attention import attend
from chainrule.serving.inspect_images import canvas, draw, image_labels
from chainrule.serving.inspect_labels import label
from chainrule.serving.inspect_search import drafting, search
from chainrule.serving.inspect_text import next_tokens, read
from chainrule.serving.registry import Registry
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences
from tests.serving.served import start_training

TEXT = "the bird sat on the fire"


@pytest.fixture(scope="session")
def client(registry: Registry) -> Iterator[TestClient]:
    with TestClient(create_app(registry), raise_server_exceptions=False) as opened:
        yield opened


# Read


@pytest.mark.parametrize("name", ["ngram", "gpt", "pieces"])
def test_the_bits_of_a_text_are_its_score(registry: Registry, name: str) -> None:
    run: Any = registry.get(name)
    [found] = read([(name, run)], TEXT).readings
    score = run.score(TEXT, progress=False)
    assert found.bits_per_byte == pytest.approx(score.bits_per_byte)
    assert "".join(token.text for token in found.tokens) == TEXT
    for token, own in zip(found.tokens, run.token_scores(TEXT), strict=True):
        assert token.bits == pytest.approx(own.surprisal / math.log(2))
        best = max(token.expected, key=lambda one: one.probabilities[0])
        assert best.probabilities[0] == pytest.approx(own.alternatives[0].probability, rel=1e-5)


def test_two_models_of_one_vocabulary_are_listed_with_the_probabilities_of_both(registry: Registry) -> None:
    ngram, gpt = registry.get("ngram"), registry.get("gpt")
    found = read([("ngram", ngram), ("gpt", gpt)], TEXT)
    assert found.same_tokens
    one, other = found.readings
    assert len(found.segments) == len(one.tokens)
    for segment, a, b in zip(found.segments, one.tokens, other.tokens, strict=True):
        assert segment.bits == [a.bits, b.bits]
        assert [e.text for e in a.expected] == [e.text for e in b.expected]
        assert a.expected[0].probabilities == b.expected[0].probabilities


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_mixture_of_the_page_is_that_of_the_package(registry: Registry, weight: float) -> None:
    """The page adds probabilities of both models; that is a `mixture` with fixed weights."""
    ngram, gpt = registry.get("ngram"), registry.get("gpt")
    found = read([("ngram", ngram), ("gpt", gpt)], TEXT)
    log_probs = [
        run.model.token_log_probs(Batch(Sequences.pack(run.prompt_ids([TEXT]))))[0].double() for run in (ngram, gpt)
    ]
    weights = torch.tensor([1 - weight, weight], dtype=torch.float64)
    mixed = Mixture.combine(None, [one[None, :, None] for one in log_probs], weights.log())[0, :, 0]
    for segment, expected in zip(found.segments, mixed.tolist(), strict=True):
        a, b = (2.0**-bits for bits in segment.bits)
        assert -math.log2((1 - weight) * a + weight * b) == pytest.approx(-expected / math.log(2), rel=1e-5)


def test_models_with_different_tokens_are_compared_where_both_have_a_boundary(registry: Registry) -> None:
    found = read([("pieces", registry.get("pieces")), ("gpt", registry.get("gpt"))], TEXT)
    assert not found.same_tokens
    assert found.segments[0].begin == 0
    assert found.segments[-1].end == len(TEXT)
    assert len(found.segments) == len(found.readings[0].tokens) < len(found.readings[1].tokens)
    for column in (0, 1):
        assert sum(one.bits[column] for one in found.segments) == pytest.approx(found.readings[column].bits)


def test_unknown_characters_are_shown_as_they_are(registry: Registry) -> None:
    [found] = read([("gpt", registry.get("gpt"))], "the 猫 sat").readings
    assert "".join(token.text for token in found.tokens) == "the 猫 sat"
    assert found.tokens[4].special == "unknown"
    assert read([("gpt", registry.get("gpt")), ("pieces", registry.get("pieces"))], "the 猫 sat").segments


# Write


def test_the_cut_of_the_sampling_controls_is_that_of_sampling(registry: Registry) -> None:
    run: Any = registry.get("gpt")
    plain = next_tokens(run, "the ", Sampling(), count=100)
    assert sum(one.probability for one in plain.tokens) == pytest.approx(1, abs=1e-6)
    allowed = [one for one in plain.tokens if one.sampled > 0]
    cut = next_tokens(run, "the ", Sampling(temperature=0.7, top_k=3), count=100)
    assert cut.kept == 3
    assert sum(one.sampled for one in cut.tokens) == pytest.approx(1)
    top = allowed[:3]
    powers = [one.probability ** (1 / 0.7) for one in top]
    for one, power in zip(top, powers, strict=True):
        [sampled] = [other.sampled for other in cut.tokens if other.id == one.id]
        assert sampled == pytest.approx(power / sum(powers), rel=1e-4)
    assert cut.kept_probability == pytest.approx(sum(one.probability for one in top))
    greedy = next_tokens(run, "the ", Sampling(greedy=True))
    assert (greedy.kept, greedy.tokens[0].sampled) == (1, 1.0)


# Attend


def test_attention_over_a_text_has_a_map_for_every_head(registry: Registry) -> None:
    found = attend(registry.get("gpt"), "the cat")
    assert len(found.maps) == 1 + 2 * 2
    assert found.attended[0].special == "bos"
    mean = torch.tensor([one.weights for one in found.maps[1:]]).mean(0)
    assert torch.allclose(torch.tensor(found.maps[0].weights), mean, atol=1e-4)
    assert torch.allclose(mean.sum(-1), torch.ones(7), atol=1e-4)


def test_an_alignment_is_that_of_align(registry: Registry) -> None:
    run: Any = registry.get("shout")
    found = attend(run, "one two", "ONE TWO")
    own = run.align("one two", "ONE TWO")
    assert torch.allclose(torch.tensor(found.maps[0].weights), own.weights, atol=1e-4)
    assert len(found.maps) == 1 + 2 * 2


# Search


def test_the_tree_of_a_search_ends_in_its_results(registry: Registry) -> None:
    run: Any = registry.get("gpt")
    tree = search(run, "the ", width=3, length=6)
    texts = run.generate("the ", beam=3, num=3, length=6)
    assert [one.text for one in tree.found] == [one.text for one in texts]
    assert [one.log_prob for one in tree.found] == pytest.approx([one.log_prob for one in texts])
    assert [len(step) for step in tree.steps] == [3] * 6
    for one in tree.found:
        path, node = [], one.node
        while node is not None:
            path.append(tree.nodes[node].text)
            node = tree.nodes[node].parent
        assert "".join(reversed(path)) == one.text


def test_the_tree_of_a_translation_ends_in_it(registry: Registry) -> None:
    run: Any = registry.get("shout")
    tree = search(run, "two one", width=3, length=20)
    [[best, *_]] = run.translate("two one")
    assert tree.nodes[tree.found[0].node].finished
    assert tree.found[0].text == best.text or tree.found[0].score >= best.score - 1e-6


def test_drafts_leave_the_text_as_it_is_and_accepted_ones_are_part_of_it(registry: Registry) -> None:
    run, ngram = registry.get("gpt"), registry.get("ngram")
    found = drafting(run, "the ", ngram, length=40, block=4, sampling=Sampling(), seed=5)
    [alone] = run.generate("the ", length=40, seed=5)
    assert "".join(token.text for block in found.blocks for token in block.chosen) == alone.text
    assert 0 < found.accepted <= found.drafted
    assert found.tokens == 40
    first, *others = found.blocks  # the first reads the prompt
    assert not first.drafted
    assert all(len(block.drafted) == 4 for block in others[:-4])  # fewer where the text ends
    for block in found.blocks:
        assert block.drafted[: block.accepted] == block.chosen[: block.accepted]


# Draw


def test_a_drawing_is_that_of_the_run(registry: Registry) -> None:
    run: Any = registry.get("bars")
    *_, last = draw(run, num=2, label=None, seed=3, sampling=Sampling(), given=None)
    assert last.known == 36
    assert last.images == run.draw(2, seed=3).reshape(2, -1).tolist()
    assert canvas(run).brightness[0] == 0
    assert canvas(run).brightness[-1] == 255


def test_what_is_given_of_an_image_stays_as_it_is(registry: Registry) -> None:
    run: Any = registry.get("bars")
    given: list[int | None] = [None] * 36
    given[3], given[20], given[35] = 7, 7, 1
    *_, last = draw(run, num=1, label=None, seed=0, sampling=Sampling(), given=given)
    assert [last.images[0][at] for at in (3, 20, 35)] == [7, 7, 1]


def test_inpainting_samples_from_the_distribution_given_what_comes_later() -> None:
    model = tiny_model("gpt", "modern", seed=2).eval()
    given: list[int | None] = [None, None, 3]
    with torch.inference_mode():
        every = torch.cartesian_prod(torch.arange(5), torch.arange(5), torch.tensor([3]))
        log_probs = model.log_prob(Batch(Sequences.full(every)))
    exact = log_probs.double().softmax(0)
    counts = torch.zeros(25, dtype=torch.float64)
    for seed in range(60):
        *_, last = inpaint(model, given, particles=200, seed=seed)
        weights = last.log_weights.softmax(0)
        counts.index_add_(0, last.ids[:, 0] * 5 + last.ids[:, 1], weights)
    assert float((counts / counts.sum() - exact).abs().sum()) < 0.1


# Label


def test_labels_are_those_of_predict(registry: Registry) -> None:
    run: Any = registry.get("classifier")
    found = label(run, "a b c")
    [own] = run.predict("a b c")
    assert {one.text: one.probability for one in found.choices} == pytest.approx(own.probabilities)
    assert found.choices[0].text == own.label
    assert sum(part.weight or 0 for part in found.parts) == pytest.approx(1, abs=1e-4)


def test_unknown_words_are_shown_as_they_are_in_the_text(registry: Registry) -> None:
    found = label(registry.get("classifier"), "a zebra c")
    assert "".join(part.text for part in found.parts) == "a zebra c"


def test_tags_are_those_of_the_tagger_and_their_probabilities_multiply_to_its_own(registry: Registry) -> None:
    run: Any = registry.get("tagger")
    found = label(run, "ab cd a")
    [own] = run.tag([["ab", "cd", "a"]])
    assert [part.chosen for part in found.parts] == list(own.tags)
    product = math.prod(
        next(one.probability for one in part.choices if one.text == part.chosen) for part in found.parts
    )
    assert product == pytest.approx(math.exp(own.log_prob), rel=1e-4)


def test_an_answer_is_a_part_of_the_text(registry: Registry) -> None:
    run: Any = registry.get("reader")
    found = label(run, "a b c d a", "b")
    own = run.answer("b", "a b c d a")
    assert "".join(part.text for part in found.parts) == "a b c d a"
    assert [part.text for part in found.parts if part.chosen] == [own.text]
    assert max(one.probability for one in found.choices if one.text) == pytest.approx(own.probability)


def test_an_image_is_labelled_as_by_predict(registry: Registry, served: Path) -> None:
    run: Any = registry.get("bar-labels")
    data = str(served.parent / "runs-data" / "bars.npz")
    own = next(iter(run.predict(data)))
    image = run.corpus(data).target.tokens[:36].tolist()
    assert image_labels(run, image) == pytest.approx(own.probabilities)


# Reports and HTTP


def test_every_view_has_a_run_and_runs_have_only_the_views_they_can_fill(client: TestClient) -> None:
    found = {one["name"]: one for one in client.get("/api/inspect/models").json()}
    assert found["ngram"]["views"] == ["read", "write", "search"]
    assert found["gpt"]["views"] == ["read", "write", "attend", "search"]
    assert found["shout"]["views"] == ["attend", "search"]
    assert found["bars"]["views"] == ["draw"]
    assert [found[name]["kind"] for name in ("classifier", "tagger", "reader", "bar-labels")] == [
        "label",
        "tags",
        "span",
        "image_label",
    ]
    assert "training" not in found


def test_reports_are_shown_by_name_and_no_path_reaches_the_files(client: TestClient, served: Path) -> None:
    assert [one["name"] for one in client.get("/api/inspect/reports").json()] == ["comparison"]
    shown = client.get("/api/inspect/reports/comparison")
    assert "Which model?" in shown.text
    assert "sandbox" in shown.headers["content-security-policy"]
    for name in ("..", "%2e%2e", "..%2Fcomparison", "comparison%2Freport.html", "gpt", str(served)):
        answer = client.get(f"/api/inspect/reports/{name}")
        assert answer.status_code == 404, name


def test_a_running_training_has_its_curve(client: TestClient, served: Path) -> None:
    start_training(served, "fresh")
    time.sleep(1.1)  # folders are looked through once a second
    states = {one["name"]: one["state"] for one in client.get("/api/inspect/trainings").json()}
    assert (states["fresh"], states["gpt"]) == ("running", "finished")
    curve = client.get("/api/inspect/trainings/fresh").json()
    assert len(curve["training"]) == 5
    assert len(curve["validation"]) == 2
    assert client.get("/api/inspect/trainings/nothing").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("read", {"models": ["nothing"], "text": "a"}, 404),
        ("read", {"models": ["gpt"], "text": ""}, 400),
        ("read", {"models": ["gpt"], "text": "a" * 10_000}, 400),
        ("read", {"models": ["shout"], "text": "a"}, 400),
        ("next", {"model": "gpt", "text": "日本"}, 400),
        ("attend", {"model": "ngram", "text": "the"}, 400),
        ("search", {"model": "bars", "text": "the"}, 400),
        ("draw", {"model": "bars", "given": [1, 2]}, 400),
        ("label", {"model": "reader", "text": "a b", "other": ""}, 400),
        ("label", {"model": "gpt", "text": "a b"}, 400),
        ("label-image", {"model": "bar-labels", "image": [99] * 36}, 400),
        ("next", {"model": "gpt", "path": "/etc/passwd"}, 400),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    client: TestClient, path: str, body: dict[str, Any], status: int
) -> None:
    answer = client.post(f"/api/inspect/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert "\n" not in answer.json()["error"]["message"]


def test_frames_of_an_image_are_lines_of_json(client: TestClient) -> None:
    lines = client.post("/api/inspect/draw", json={"model": "bars", "num": 2}).text.splitlines()
    frames = [json.loads(line) for line in lines]
    assert frames[0]["known"] == 0
    assert frames[-1]["known"] == 36
    assert client.get("/api/inspect/canvas", params={"model": "bars"}).json()["levels"] == 8
    assert len(client.get("/api/inspect/example", params={"model": "bars", "number": 10_000}).json()) == 36


POSTED = ["read", "next", "attend", "search", "draft", "draw", "label", "label-image"]


@pytest.mark.parametrize("path", POSTED)
def test_every_endpoint_answers_whatever_it_is_sent(client: TestClient, path: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    operation = schemathesis.openapi.from_dict(client.app.openapi())[f"/api/inspect/{path}"]["POST"]
    names = ["gpt", "ngram", "shout", "bars", "bar-labels", "classifier", "tagger", "reader"]

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy(), name=strategies.sampled_from(names))
    def ask(case: Any, name: str) -> None:
        body = case.body if isinstance(case.body, dict) else {}
        body |= {"models": [name]} if path == "read" else {"model": name}  # else hardly a request would reach a model
        if "text" in body:
            body["text"] = body["text"][:20] or "the a b"
        answer = client.post(f"/api/inspect/{path}", json=body)
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    ask()


def test_all_endpoints_of_the_page_are_tried(client: TestClient) -> None:
    paths = client.app.openapi()["paths"]
    posted = [path.rpartition("/")[2] for path, verbs in paths.items() if "/inspect/" in path and "post" in verbs]
    assert sorted(posted) == sorted(POSTED)
