import pytest
import torch
import torch.nn.functional as F

from chainrule.errors import ConfigError, DataError
from chainrule.interface.base import Recomputed
from chainrule.models.gpt import GPT, GPTConfig
from chainrule.nn.layers import rms_norm
from chainrule.types import Batch, Sequences, Step, detach, merge, select

LAYOUTS = ("modern", "gpt2")
VOCABULARY = 11


def tiny(layout: str = "modern", **settings: object) -> GPT:
    """A small model in float64 with random values for all parameters, also those initialised to zero."""
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "layout": layout, "layers": 2, "width": 16, "heads": 2, "context": 12}
    model = GPT(GPTConfig.parse(values | settings)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def read(model: GPT, row: torch.Tensor, step: Step | None = None) -> Step:
    step = step or model.start()
    return model.extend(row[None], step.state) if len(row) else step


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunks", [[11], [1] * 11, [3, 1, 5, 2], [10, 1]])
@torch.no_grad()
def test_decoding_in_chunks_equals_the_full_pass(layout: str, chunks: list[int]) -> None:
    model, ids = tiny(layout), tokens(3, 12)
    step = model.start(batch_size=3)
    predictions = [step.logits]
    for chunk in ids[:, :11].split(chunks, dim=1):
        step = model.extend(chunk, step.state)
        predictions.append(step.logits)
    torch.testing.assert_close(torch.cat(predictions, 1), model.logits(Batch(Sequences.full(ids))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk", [1, 3])
@torch.no_grad()
def test_rows_at_different_positions_extend_as_single_rows_do(layout: str, chunk: int) -> None:
    model = tiny(layout)
    prompts, more = [tokens(1, n)[0] for n in (5, 0, 2)], tokens(3, 2 * chunk)
    merged = merge([read(model, prompt).state for prompt in prompts])
    for part in more.split(chunk, dim=1):
        together = model.extend(part, merged)
        merged = together.state
    for row, prompt in enumerate(prompts):
        reference = Recomputed(model)
        alone = reference.extend(torch.cat([prompt, more[row]])[None], reference.start().state)
        torch.testing.assert_close(together.logits[row], alone.logits[0, -chunk:])


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_selected_rows_are_independent_copies(layout: str) -> None:
    model, prompt = tiny(layout), tokens(1, 4)[0]
    step = read(model, prompt)
    twice = select(step.state, torch.tensor([0, 0]))
    model.extend(torch.tensor([[9], [9]]), twice)
    after = read(model, torch.tensor([3, 4]), step)
    torch.testing.assert_close(after.logits, read(model, torch.tensor([3, 4]), read(model, prompt)).logits)


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_a_rewound_state_forgets_the_later_tokens(layout: str) -> None:
    model, prompt = tiny(layout), tokens(1, 4)[0]
    drafted = read(model, torch.tensor([7, 7, 7]), read(model, prompt)).state
    wound_back = drafted._replace(positions=drafted.positions - 3)
    again = read(model, torch.tensor([1, 2]), Step(torch.empty(0), wound_back))
    torch.testing.assert_close(again.logits, read(model, torch.tensor([1, 2]), read(model, prompt)).logits)


def test_a_detached_state_cuts_the_gradient_and_keeps_the_values() -> None:
    model, ids = tiny(), tokens(1, 6)[0]
    cut = read(model, ids[3:], Step(torch.empty(0), detach(read(model, ids[:3]).state)))
    torch.testing.assert_close(cut.logits, read(model, ids).logits[:, 3:])
    cut.logits.sum().backward()


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_padding_is_ignored(layout: str) -> None:
    model, ids = tiny(layout), tokens(2, 8)
    lengths = torch.tensor([8, 3])
    scribbled = ids.clone()
    scribbled[1, 3:6], scribbled[1, 6:] = -100, 10**6
    clean, dirty = (model.log_prob(Batch(Sequences(rows, lengths))) for rows in (ids, scribbled))
    torch.testing.assert_close(clean, dirty, rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sequence_longer_than_the_context_is_refused(layout: str) -> None:
    model = tiny(layout)
    with pytest.raises(DataError, match="13 tokens does not fit into the context of 12"):
        model.logits(Batch(Sequences.full(tokens(1, 13))))


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_a_full_cache_is_refused_even_if_only_one_row_is_full(layout: str) -> None:
    model = tiny(layout)
    full, short = read(model, tokens(1, 11)[0]).state, read(model, tokens(1, 2)[0]).state
    for state, rows in ((full, 1), (merge([short, full]), 2)):
        with pytest.raises(DataError, match="13 tokens does not fit into the context of 12"):
            model.extend(tokens(rows, 1), state)


def test_bos_of_the_modern_layout_is_an_extra_id() -> None:
    assert tiny("modern").bos == VOCABULARY


def test_bos_of_the_gpt2_layout_is_eos_by_default() -> None:
    assert (tiny("gpt2").bos, tiny("gpt2", bos=4).bos) == (0, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_tied_embeddings_are_the_readout(layout: str) -> None:
    tied, untied = tiny(layout, tied=True), tiny(layout, tied=False)
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == VOCABULARY * 16
    hidden = torch.randn(5, 16, dtype=torch.float64)
    bias = 0 if tied.bias is None else tied.bias
    torch.testing.assert_close(tied.readout(hidden), hidden @ tied.tokens.embed(torch.arange(VOCABULARY)).T + bias)
    assert untied.readout(hidden).shape == (5, VOCABULARY)


def test_an_untrained_modern_model_predicts_almost_uniformly() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=65))
    ids = torch.randint(65, (4, 64))
    loss = F.cross_entropy(model.logits(Batch(Sequences.full(ids))).mT, ids)
    assert loss.item() == pytest.approx(4.174, abs=0.1)  # ln 65


def test_the_default_has_about_1_2_million_parameters_without_embeddings() -> None:
    blocks = GPT(GPTConfig(vocabulary=65)).trunk.blocks
    assert sum(parameter.numel() for parameter in blocks.parameters()) == 6 * 12 * 128**2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 130, "heads": 4}, "width 130 is not divisible by heads 4; try 128 or 132"),
        ({"width": 3, "heads": 4}, "width 3 is not divisible by heads 4; try 4"),
        ({"width": 12}, "need heads of an even width (got 3)"),
        ({"bos": 11}, "bos 11 is outside the vocabulary of 11 tokens"),
        ({"layer": 3}, "did you mean 'layers'?"),
    ],
)
def test_inconsistent_settings_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        GPTConfig.parse({"vocabulary": 11, "heads": 4} | settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_odd_head_width_is_allowed_without_rotary_positions() -> None:
    assert GPTConfig(vocabulary=11, layout="gpt2", heads=4, width=12).head_width == 3


@torch.no_grad()
def test_the_norms_of_queries_and_keys_do_not_matter_in_the_modern_layout() -> None:
    model, batch = tiny("modern"), Batch(Sequences.full(tokens(2, 8)))
    before = model.logits(batch)
    for block in model.trunk.blocks:
        block.query_key_value.weight[: 2 * 16] *= 3
    torch.testing.assert_close(model.logits(batch), before, rtol=0, atol=1e-4)


def test_the_norm_and_its_gradient_are_those_of_torch() -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 5, 8, dtype=torch.float64)
    reference = F.rms_norm(x, (8,), eps=1e-6)
    for found in (rms_norm(x), rms_norm(x.detach())):
        torch.testing.assert_close(found, reference)
    (expected,) = torch.autograd.grad((reference * weights).sum(), x)
    (gradient,) = torch.autograd.grad((rms_norm(x) * weights).sum(), x)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_are_separated_from_hidden_matrices_for_the_optimizer(layout: str) -> None:
    model = tiny(layout)
    tables = {id(table) for table in model.tables()}
    matrices = {name for name, value in model.named_parameters() if value.ndim == 2 and id(value) not in tables}
    assert len(matrices) == 2 * 4
    assert all(name.startswith("trunk.blocks.") for name in matrices)
