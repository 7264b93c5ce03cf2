"""The key of a run names the code of an explainer, wherever the command is started."""

import sys
from types import ModuleType

from faithcheck.alignment.run_key import state_of


def test_a_module_with_a_relative_path_is_not_looked_for_in_the_users_folder(tmp_path, monkeypatch):
    """torch.classes says that its file is ``_classes.py``, which is none; the user's folder may have one, or not."""
    module = tmp_path / "their_key_module.py"
    module.write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import their_key_module

    assert not str(sys.modules["torch.classes"].__file__).startswith("/")
    elsewhere = ModuleType("elsewhere")
    elsewhere.__file__ = "users_file.py"
    (tmp_path / "users_file.py").write_text("of the user, and imported by nothing")
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    before = state_of(their_key_module.Thing)
    monkeypatch.chdir("/")
    assert state_of(their_key_module.Thing) == before
    sys.modules.pop("their_key_module")
