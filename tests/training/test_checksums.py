"""A run whose files do not belong together is refused, and repaired where that is possible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import chainrule as package
from chainrule.errors import RunError
from chainrule.training import checksums
from chainrule.training.checkpoint import RunFolder
from chainrule.training.checksums import Checksums, sha256
from tests.conftest import LINES, Command

SIZES = {"layers": 1, "width": 16, "heads": 2, "context": 16}
TRAIN = {"batch_tokens": 64}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("".join(LINES) * 20)
    common = {"steps": 2, "settings": {"model": SIZES, "train": TRAIN}, "scored": False, "progress": False}
    package.train("gpt", data=str(folder / "text.txt"), out=folder / "run", **common)
    (folder / "other.txt").write_text("".join(LINES).replace("th", "xz") * 20)
    package.train("gpt", data=str(folder / "other.txt"), out=folder / "other", **common)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def files(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("config.toml", "tokenizer.json", "model.safetensors")}


def damage(file: Path) -> None:
    """Change two bytes in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    content[len(content) // 2 + 9] ^= 0x40
    file.write_bytes(content)


def test_the_tokenizer_of_another_run_is_refused(trained: Path, run: Path) -> None:
    shutil.copy(trained / "other" / "tokenizer.json", run)
    with pytest.raises(RunError, match=r"tokenizer.json' has changed .* another run.* --repair"):
        package.load(run)


def test_an_edited_setting_is_refused_by_name(run: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace("heads = 2", "heads = 4"))
    with pytest.raises(RunError, match=r"model.heads is 4 and was 2; .* --repair; .* --update-checksums"):
        package.load(run)


def test_two_damaged_bytes_of_the_weights_are_refused(run: Path) -> None:
    damage(run / "model.safetensors")
    with pytest.raises(RunError, match=r"model.safetensors' is truncated or damaged.* --repair"):
        package.load(run)


def test_a_damaged_checkpoint_is_not_resumed_from(run: Path) -> None:
    [tensors] = (run / "state").glob("*/tensors.safetensors")
    damage(tensors)
    with pytest.raises(RunError, match=r"tensors.safetensors' is damaged: its checksum differs"):
        package.train("gpt", out=run, steps=3, resume=True, progress=False)
    assert package.load(run)


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_verify_repairs_every_file(chainrule: Command, run: Path, name: str, how: str) -> None:
    before = files(run)
    if how == "damaged":
        damage(run / name)
    else:
        (run / name).unlink()
    outcome = chainrule("verify", run)
    assert outcome.code == 1
    assert f"✗ {name} matches its checksum" in outcome.out
    outcome = chainrule("verify", run, "--repair", "--json")
    assert outcome.code == 0, outcome.err
    report = {check["check"]: check for check in json.loads(outcome.out)["checks"]}
    assert report[f"{name} matches its checksum"]["message"].startswith(("restored", "replaced"))
    assert files(run) == before  # two steps: the last weights are the best ones
    assert package.load(run)


def test_damage_without_an_intact_copy_is_said_to_be_beyond_repair(chainrule: Command, run: Path) -> None:
    damage(run / "tokenizer.json")
    damage(run / "recovery" / "tokenizer.json")
    outcome = chainrule("verify", run, "--repair")
    assert outcome.code == 2
    assert "no intact copy" in outcome.err


def test_a_deliberate_change_is_accepted_on_request(chainrule: Command, run: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 7"))
    assert chainrule("info", run).code == 2
    assert chainrule("verify", run, "--update-checksums").code == 0
    assert package.load(run).config.seed == 7
    damage(config)
    assert chainrule("verify", run, "--repair").code == 0
    assert package.load(run).config.seed == 7  # the copy was renewed


def test_a_run_without_checksums_is_accepted(chainrule: Command, run: Path) -> None:
    (run / "checksums.json").unlink()
    assert package.load(run)
    assert "none are recorded" in " ".join(chainrule("verify", run).out.split())


def test_the_checksums_are_those_of_sha256sum_for_every_way_to_make_a_run(
    chainrule: Command, trained: Path, tmp_path: Path
) -> None:
    text = trained / "text.txt"
    package.train("ngram", data=str(text), out=tmp_path / "ngram", progress=False)
    package.train("gpt", out=shutil.copytree(trained / "run", tmp_path / "resumed"), steps=3, resume=True)
    assert chainrule("mix", trained / "run", tmp_path / "ngram", "--out", tmp_path / "mixed").code == 0
    assert chainrule("export", tmp_path / "ngram", "--to", "arpa", "--out", tmp_path / "arpa").code == 0
    arpa = tmp_path / "arpa" / "model.arpa"
    assert chainrule("import", arpa, "--from", "arpa", "--out", tmp_path / "imported").code == 0
    for name in ("ngram", "resumed", "mixed", "imported"):
        folder = tmp_path / name
        recorded = Checksums(folder).recorded()
        assert set(recorded) == {"config.toml", "tokenizer.json", "model.safetensors"}
        assert {file: sha256(folder / file) for file in recorded} == {file: new[0] for file, new in recorded.items()}


def test_a_crash_at_the_rename_leaves_a_run_that_loads(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of the new weights is recorded, and the old ones are still in place."""
    before = files(run)
    model = package.load(run).model
    with monkeypatch.context() as patched:
        real = Path.replace

        def crash(self: Path, target: Path) -> Path:
            if target.name == "model.safetensors":
                raise KeyboardInterrupt
            return real(self, target)

        patched.setattr(Path, "replace", crash)
        next(model.parameters()).data.add_(1.0)
        with pytest.raises(KeyboardInterrupt):
            RunFolder(run).write_weights(model)
    assert files(run) == before
    assert package.load(run)
    RunFolder(run).write_weights(model)
    assert files(run) != before
    assert package.load(run)


@pytest.mark.parametrize("at", [0, 500_000, -1], ids=["start", "middle", "end"])
def test_samples_find_another_or_truncated_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(checksums, "LARGE", 1 << 10)
    content = bytes(range(256)) * 4000
    file, folder = tmp_path / "model.safetensors", checksums.Checksums(tmp_path)
    file.write_bytes(content)
    folder.record_large(file.name, file)
    folder.require(file.name, sampled=True)
    file.write_bytes(content[:-1])
    with pytest.raises(RunError, match="truncated or damaged"):
        folder.require(file.name, sampled=True)
    changed = bytearray(content)
    changed[at] ^= 1
    file.write_bytes(changed)
    with pytest.raises(RunError, match="truncated or damaged"):
        folder.require(file.name)
    with pytest.raises(RunError, match="truncated or damaged"):  # the samples of so small a file are all of it
        folder.require(file.name, sampled=True)
