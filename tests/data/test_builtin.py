import pytest

from chainrule.errors import DataError


@pytest.mark.parametrize(("name", "least"), [("prose", 300_000), ("python", 3_000_000)])
def test_a_builtin_text_is_a_stream_that_is_always_the_same(source, name, least):
    first, second = source(f"builtin:{name}"), source(f"builtin:{name}")
    assert first.unit == "stream"
    pieces = list(first.pieces())
    assert sum(map(len, pieces)) > least
    assert pieces == list(second.pieces())
    assert first.identity() == second.identity()


def test_prose_is_english_and_python_is_code(source):
    assert "The assert statement" in "".join(source("builtin:prose").pieces()).replace('"', "")
    assert "\nimport " in next(source("builtin:python").pieces())


def test_the_error_for_an_unknown_builtin_suggests_the_nearest(source):
    with pytest.raises(DataError, match="did you mean 'prose'"):
        source("builtin:prosa")
