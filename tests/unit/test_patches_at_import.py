"""A module that patches the code of models when it is imported would change the models of all explainers."""

import pytest
from transformers.models.bert import modeling_bert

from faithcheck.options import OptionError
from faithcheck.options.explainers import choose_explainers

MODULE = """
from transformers.models.bert import modeling_bert
from faithcheck.explainers import GradientTimesInput

{patch}

class Mine(GradientTimesInput):
    def __init__(self):
        super().__init__(name="mine")
"""


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ("modeling_bert.eager_attention_forward = print", "modeling_bert.eager_attention_forward"),
        ("modeling_bert.BertSelfAttention.forward = print", "modeling_bert.BertSelfAttention.forward"),
        ("modeling_bert.ALL_ATTENTION_FUNCTIONS['eager'] = print", "ALL_ATTENTION_FUNCTIONS"),
    ],
    ids=["function", "method", "registry"],
)
def test_it_is_refused_and_its_patch_is_undone(patch, name, tmp_path, monkeypatch, request):
    before = modeling_bert.eager_attention_forward, modeling_bert.BertSelfAttention.forward
    module = f"patches_{request.node.callspec.id}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(patch=patch))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=rf"the import of a module replaces \S*{name}, so that all explainers"):
        choose_explainers([f"{module}:Mine"])
    assert before == (modeling_bert.eager_attention_forward, modeling_bert.BertSelfAttention.forward)
    assert "eager" not in modeling_bert.ALL_ATTENTION_FUNCTIONS


def test_a_module_that_patches_nothing_is_taken(tmp_path, monkeypatch):
    (tmp_path / "patches_nothing.py").write_text(MODULE.format(patch="modeling_bert.new_name = print"))
    monkeypatch.syspath_prepend(tmp_path)
    assert [explainer.name for explainer in choose_explainers(["patches_nothing:Mine"])] == ["mine"]
    del modeling_bert.new_name
