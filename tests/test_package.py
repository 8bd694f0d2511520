"""The installed package: public names, lazy imports, the demo and the README."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chainrule
from chainrule.families import family, single_families

ROOT = Path(__file__).parents[1]


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_package_exports_its_public_names_only() -> None:
    assert set(dir(chainrule)) == {"Run", "check_model", "compare", "load", "mix", "train", "__version__"}
    for name in set(dir(chainrule)) - {"__version__"}:
        assert getattr(chainrule, name).__name__ == name
    assert f'version = "{chainrule.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = chainrule.trian


@pytest.mark.parametrize("module", ["chainrule", "chainrule.cli"])
def test_importing_does_not_import_torch(module: str) -> None:
    heavy = "{'torch', 'numpy', 'tokenizers', 'sentencepiece', 'datasets'}"
    assert python(f"import sys, {module}; print({heavy} & set(sys.modules))").strip() == "set()"


def test_importing_the_models_does_not_need_an_extra() -> None:
    extras = "{'datasets', 'jieba', 'pyarrow', 'tensorboard', 'transformers', 'zstandard'}"
    code = f"import sys, chainrule.api, chainrule.testing; print({extras} & set(sys.modules))"
    assert python(code).strip() == "set()"


@pytest.mark.parametrize("name", sorted(single_families()))
def test_every_family_has_a_page_and_a_summary(name: str) -> None:
    page = (ROOT / "docs" / "families" / f"{name.removeprefix('labelled_')}.md").read_text(encoding="utf-8")
    assert "## When to use it" in page
    assert "chainrule train" in page
    assert len(family(name).summary()) > 20


def test_the_demo_runs(tmp_path: Path) -> None:
    """What `make demo` runs, with seconds instead of minutes; it ends by saying how to see its models on the page."""
    from chainrule.serving.registry import Registry

    script, out = ROOT / "examples" / "demo.py", tmp_path / "demo"
    command = [sys.executable, script, "--minutes", "0.05", "--families", "ngram,finite_memory", "--out", out]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "Pick" in done.stdout
    assert (out / "comparison" / "report.html").is_file()
    assert f"serve {out / 'comparison' / 'runs'}" in done.stdout
    assert Registry([out / "comparison" / "runs"]).names()
    assert done.stdout.index("n-gram") < done.stdout.index("Pick") < done.stdout.index("Text from the best")


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fenced block of Python, in order, in one folder, with a budget of seconds."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    assert blocks
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(text_file.read_text() * 3)
    small = "\n".join(blocks).replace("minutes=5", "steps=3")
    exec(small.replace("minutes=10", 'tokens=400, families=["ngram"]'), {})
    assert Path("runs/gpt-1/model.safetensors").is_file()
