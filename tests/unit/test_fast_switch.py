"""The switch FAITHCHECK_PLAIN."""

from __future__ import annotations

import pytest

from faithcheck.explainers.fast.switch import is_fast


@pytest.mark.parametrize(("value", "fast"), [(None, True), ("", True), ("0", True), ("1", False)])
def test_one_runs_without_the_fast_parts(monkeypatch: pytest.MonkeyPatch, value: str | None, fast: bool) -> None:
    if value is None:
        monkeypatch.delenv("FAITHCHECK_PLAIN", raising=False)
    else:
        monkeypatch.setenv("FAITHCHECK_PLAIN", value)
    assert is_fast() is fast


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAITHCHECK_PLAIN", "yes")
    with pytest.raises(ValueError, match="set it to 1"):
        is_fast()
