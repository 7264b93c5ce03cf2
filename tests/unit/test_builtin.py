"""Built-in explainers register themselves, and describe themselves."""

import pytest

from faithcheck.explainers import builtin, describe_settings, display_label
from faithcheck.explainers.builtin import builtin as register
from faithcheck.explainers.builtin import builtin_explainers


class Named:
    name = "named"

    def attribute(self, model, case):
        raise NotImplementedError


@pytest.fixture
def factories(monkeypatch):
    """The registered factories, without what a test adds to them."""
    builtin_explainers()  # imports every module first, which registers its explainers
    copied = list(builtin._factories)
    monkeypatch.setattr(builtin, "_factories", copied)
    return copied


def test_a_decorated_class_is_a_built_in_explainer(factories):
    assert "named" not in builtin_explainers()
    assert register("kind")(Named) is Named
    register("kind")(Named)  # again: no second explainer
    assert isinstance(builtin_explainers()["named"], Named)


def test_the_explainers_are_in_alphabetical_order():
    assert list(builtin_explainers()) == sorted(builtin_explainers())


def test_two_explainers_with_the_same_name_are_an_error(factories):
    register("kind")(Named)
    register("kind")(lambda: Named())
    with pytest.raises(ValueError, match="two built-in explainers are named 'named': rename one of them"):
        builtin_explainers()


@pytest.mark.parametrize("name", builtin_explainers())
def test_every_built_in_explainer_describes_itself(name):
    explainer = builtin_explainers()[name]
    for text in (explainer.label, explainer.summary):
        assert isinstance(text, str)
        assert text
        assert "\n" not in text


def test_an_explainer_without_a_description_is_described_by_its_name_and_class():
    explainer = Named()
    assert display_label(explainer) == "named"
    assert describe_settings(explainer) == f"{Named.__module__}.Named"
    explainer.label, explainer.settings = "Named", "its settings"
    assert (display_label(explainer), describe_settings(explainer)) == ("Named", "its settings")
