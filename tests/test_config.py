from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.config import DataConfig, RunConfig, TrainConfig, apply_overrides, read_toml, write_toml
from chainrule.errors import ConfigError


def test_overrides_are_read_as_toml_or_else_as_a_string() -> None:
    values = apply_overrides(
        {"model": {"order": 3, "kept": 1}},
        ["model.order=7", "train.betas=[0.9, 0.99]", "data.field=body text", "train.compile=true", "train.clip=0.5"],
    )
    assert values["model"] == {"order": 7, "kept": 1}
    assert values["train"] == {"betas": [0.9, 0.99], "compile": True, "clip": 0.5}
    assert values["data"] == {"field": "body text"}


def test_overriding_does_not_modify_the_original() -> None:
    original = {"model": {"order": 3}}
    apply_overrides(original, ["model.order=7"])
    assert original == {"model": {"order": 3}}


@pytest.mark.parametrize("text", ["model.order", "=3", "model..order=3", ".order=3"])
def test_an_override_without_a_key_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        apply_overrides({}, [text])


def test_a_value_is_not_a_table() -> None:
    with pytest.raises(ConfigError, match="'seed' is a value"):
        apply_overrides({"seed": 1}, ["seed.more=2"])


def test_a_config_survives_its_file(tmp_path: Path) -> None:
    config = RunConfig(family="gpt", data=DataConfig(train="my.txt"), train=TrainConfig(minutes=3), model={"width": 64})
    (tmp_path / "config.toml").write_text(write_toml(config))
    assert RunConfig.parse(read_toml(tmp_path / "config.toml")) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"train": "x"}}, "'family' is missing"),
        ({"family": "gpt", "data": {"train": "x", "filed": "y"}}, "'data.filed'; did you mean 'field'"),
        ({"family": "gpt", "data": {"train": "x"}, "train": {"clip": "much"}}, "'train.clip' got 'much'"),
        ({"family": "gpt", "data": {"train": "x", "valid_fraction": 1.5}}, "'data.valid_fraction' got 1.5"),
    ],
)
def test_an_invalid_setting_is_a_one_line_error(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_file_that_is_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("a = ")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path / "broken.toml")
