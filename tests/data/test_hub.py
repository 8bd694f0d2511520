import socket
import sys

import pytest

import chainrule
from chainrule.comparison.plan import split_config
from chainrule.config import DataConfig
from chainrule.data import hub
from chainrule.data.corpus import prepare
from chainrule.errors import DataError, MissingExtra
from chainrule.mixing import mix
from chainrule.tasks.text_comparison import TextComparison

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Use a temporary cache of the library, offline."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    hub._load.cache_clear()


@pytest.fixture
def saved(tmp_path):
    """A dataset written by `save_to_disk`."""
    splits = {"train": ["one", "", "two\nlines"], "validation": ["three", None]}
    folder = tmp_path / "saved"
    tables = {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in splits.items()}
    datasets.DatasetDict(tables).save_to_disk(str(folder))
    return folder


@pytest.mark.parametrize("prefix", ["", "hub:"])
def test_a_saved_dataset_is_read_from_its_folder(saved, source, prefix):
    records = source(f"{prefix}{saved}")
    assert records.unit == "documents"
    assert list(records.pieces()) == ["one", "two\nlines"]
    assert "".join(source(f"{prefix}{saved}", unit="stream").pieces()) == "one\n\ntwo\nlines\n"


def test_a_split_can_be_named(saved, source):
    assert list(source(f"hub:{saved}::validation").pieces()) == ["three"]


def test_the_name_of_a_saved_folder_may_contain_a_colon(saved, source):
    folder = saved.rename(saved.with_name("a:b"))
    assert list(source(folder).pieces()) == ["one", "two\nlines"]


def test_a_dataset_without_splits_is_training_data(tmp_path, source):
    datasets.Dataset.from_dict({"text": ["alone"]}).save_to_disk(str(tmp_path / "single"))
    single = source(tmp_path / "single")
    assert list(single.pieces()) == ["alone"]
    assert single.held_out("validation") is None


def test_a_folder_of_data_files_is_loaded_by_the_library(tmp_path, source):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "t"}\n')
    (folder / "validation.jsonl").write_text('{"text": "v"}\n')
    records = source(f"hub:{folder}")
    assert list(records.pieces()) == ["t"]
    assert list(records.held_out("validation").pieces()) == ["v"]


def test_the_validation_split_is_used_when_no_validation_data_is_given(saved):
    prepared = prepare(DataConfig(train=str(saved)), "chars")
    assert prepared.valid.characters == len("three")
    assert prepared.train.characters == len("one") + len("two\nlines")
    assert prepared.warnings == ()


def test_a_split_is_not_its_own_validation_data(saved, source):
    assert source(f"hub:{saved}").held_out("validation").split == "validation"
    assert source(f"hub:{saved}::validation").held_out("validation") is None


@pytest.mark.parametrize(
    ("end", "settings", "complaint"),
    [
        ("::tests", {}, "no split 'tests'; choose from: train, validation"),
        ("::valid", {}, "did you mean 'validation'"),
        ("", {"field": "txt"}, "no field 'txt', only text; did you mean data.field=text?"),
    ],
)
def test_a_wrong_split_or_field_is_named(saved, source, end, settings, complaint):
    with pytest.raises(DataError) as caught:
        list(source(f"hub:{saved}{end}", **settings).pieces())
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_network_the_error_says_so(source):
    with pytest.raises(DataError, match=r"'Salesforce/wikitext' with config .* cannot be fetched: .*network"):
        list(source("hub:Salesforce/wikitext:wikitext-103-raw-v1").pieces())


def test_the_error_for_a_wrong_config_is_that_of_the_library(tmp_path, source):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text('{"text": "t"}\n')
    with pytest.raises(DataError, match=r"'nope' not found\. Available"):
        list(source(f"hub:{tmp_path / 'files'}:nope").pieces())


def test_no_name_is_an_error(source):
    with pytest.raises(DataError, match="has no dataset name"):
        source("hub:")


def test_the_library_is_an_extra(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"chainrule\[hub\]"):
        list(source("hub:anything").pieces())


@pytest.fixture
def three_splits(tmp_path):
    texts = {"train": ["one", "two", "three"] * 20, "validation": ["four", "one"], "test": ["two", "five", "one"]}
    tables = {name: datasets.Dataset.from_dict({"text": rows}) for name, rows in texts.items()}
    datasets.DatasetDict(tables).save_to_disk(str(tmp_path / "a:b"))
    return tmp_path / "a:b"


def test_the_splits_of_a_data_set_are_used_and_named(three_splits, tmp_path):
    run = chainrule.train("ngram", data=str(three_splits), out=tmp_path / "run", progress=False)
    about = run.info()
    assert about["validation"]["data"] == f"hub:{three_splits}::validation"
    assert about["test"]["data"] == f"hub:{three_splits}::test"
    assert about["test"]["tokens"] == len("twofiveone") + 3
    assert f"## Test: hub:{three_splits}::test" in run.card()
    assert {score["split"] for score in run.folder.records("scores.jsonl")} == {"validation", "test"}
    assert chainrule.load(run.path).score(data=run.config.data.test).nats_per_token == about["test"]["nats_per_token"]


def test_a_mixture_of_runs_uses_the_splits_of_their_data_set(three_splits, tmp_path):
    for order in (1, 2):
        overrides = [f"model.order={order}"]
        chainrule.train("ngram", data=str(three_splits), out=tmp_path / f"{order}", overrides=overrides, progress=False)
    mixture = mix([tmp_path / "1", tmp_path / "2"], out=tmp_path / "mixture", gate="fixed", progress=False)
    assert mixture.info()["validation"]["data"] == f"hub:{three_splits}::validation"
    assert mixture.info()["test"]["data"] == f"hub:{three_splits}::test"


def test_a_comparison_is_measured_on_the_test_split_of_the_data_set(three_splits):
    config = split_config(str(three_splits), None, None, None, {}, TextComparison.own_test)
    assert (config.test, config.test_fraction) == (f"hub:{three_splits}::test", None)
    data = TextComparison(config, "chars", lambda *_: None)
    assert data.data_config(config).named("validation") == f"hub:{three_splits}::validation"
    assert data.test.offsets.tolist() == [0, 4, 9, 13]
    cut = split_config(str(three_splits), None, None, 0.2, {}, TextComparison.own_test)
    assert (cut.test, cut.test_fraction) == (None, 0.2)


def test_a_hub_that_does_not_answer_is_an_error_of_one_line_without_further_attempts(monkeypatch, source, capfd):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert not hub.is_reachable(("127.0.0.1", port))
    with pytest.raises(DataError, match=r"no connection to 127.0.0.1, and no copy in the cache; check the network"):
        list(source("hub:nobody/nothing").pieces())
    assert capfd.readouterr().err == ""
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_hub_that_answers_is_reachable():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert hub.is_reachable(server.getsockname())
