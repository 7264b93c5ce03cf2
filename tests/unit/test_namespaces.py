"""Dictionaries are compared by their versions where the interpreter counts them, and entry by entry elsewhere."""

import sys

import pytest

from faithcheck.axioms.traces import namespaces
from faithcheck.axioms.traces.namespaces import DictionariesSnapshot


class Owner:
    first = 1

    def method(self):
        """A method."""


WRITES = {
    "another value": lambda space: space.update(a=object()),
    "an equal value": lambda space: space.update(a=[1]),
    "a new key": lambda space: space.update(new=1),
    "a key less": lambda space: space.pop("b"),
    "another order": lambda space: space.update(a=space.pop("a")),
    "another name": lambda space: space.update(c=space.pop("b")),
    "emptied": lambda space: space.clear(),
}


@pytest.fixture(params=[True, False], ids=["versions", "entries"])
def snapshot(request, monkeypatch):
    """A snapshot of dictionaries, by versions or by entries."""
    if request.param and not namespaces._HAVE_VERSIONS:
        pytest.skip(f"the dictionaries of {sys.implementation.name} {sys.version_info[:2]} have no versions")
    monkeypatch.setattr(namespaces, "_HAVE_VERSIONS", request.param)
    return lambda *spaces: DictionariesSnapshot([(space, dict(space)) for space in spaces])


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_change_is_seen_at_once_and_later(snapshot, write):
    spaces = {"a": [1], "b": 2}, {"a": [1], "b": 2}
    before = snapshot(*spaces)
    write(spaces[1])
    assert not before.unchanged()
    assert not before.unchanged()
    spaces = {"a": [1], "b": 2}, {"a": [1], "b": 2}
    before = snapshot(*spaces)
    assert before.unchanged()
    write(spaces[1])
    assert not before.unchanged()


def test_what_is_put_back_is_no_change(snapshot):
    space = {"a": [1], "b": 2}
    before, value = snapshot(space), space["a"]
    for _ in range(2):
        space["a"] = 3
        assert not before.unchanged()
        space["a"] = value
        assert before.unchanged()


def test_the_attributes_of_a_class_are_compared(snapshot):
    before, method = snapshot(vars(Owner)), Owner.method
    assert before.unchanged()
    Owner.method = lambda self: None
    assert not before.unchanged()
    Owner.method = method
    assert before.unchanged()


def test_the_attributes_of_an_object_are_compared(snapshot):
    owner = Owner()
    owner.a, owner.b = 1, 2
    before = snapshot(vars(owner))
    assert before.unchanged()
    owner.a = 3
    assert not before.unchanged()
    owner.a = 1
    assert before.unchanged()
    del owner.b
    assert not before.unchanged()


def test_python_3_11_has_versions():
    assert namespaces._HAVE_VERSIONS or sys.version_info >= (3, 12)
