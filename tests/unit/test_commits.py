"""Documents name the commit of the user's code, and under another key that of faithcheck."""

import subprocess

import pytest
import torch

from faithcheck.alignment.document import digest_of
from faithcheck.models.data.images import Images
from faithcheck.models.data.texts import Texts
from faithcheck.reports.documents.environment import environment
from faithcheck.tests.helpers.documents import document


@pytest.fixture
def git(tmp_path, monkeypatch):
    """A function that runs git in a new clone of the user's, which is the working folder."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.chdir(theirs)

    def run(*arguments):
        identity = ("-c", "user.name=u", "-c", "user.email=u@example.org")
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    run("init", "-q")
    (theirs / "mine.py").write_text("x = 1\n")
    run("add", "mine.py")
    run("commit", "-q", "-m", "mine")
    return run


def test_the_commit_of_the_user_is_that_of_the_working_folder(git, tmp_path):
    named = document([], environment=environment())
    assert named.user_commit == git("rev-parse", "HEAD")
    assert named.faithcheck_commit != named.user_commit
    (tmp_path / "theirs" / "results.json").write_text("{}")
    assert environment()["user_commit"] == git("rev-parse", "HEAD"), "a file that is not in git changes nothing"
    (tmp_path / "theirs" / "mine.py").write_text("x = 2\n")
    assert environment()["user_commit"] == git("rev-parse", "HEAD") + "-dirty"


def test_outside_a_clone_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert environment()["user_commit"] is None


def test_a_document_of_an_older_version_names_faithchecks_commit():
    older = document([], environment={"commit": "abc"})
    assert (older.faithcheck_commit, older.user_commit) == ("abc", None)


def test_an_example_is_known_by_its_content():
    texts, others = Texts("own", ["a", "b", "a"], None, "f"), Texts("own", ["b"], None, "g")
    assert digest_of(texts, 0) == digest_of(texts, 2) != digest_of(texts, 1) == digest_of(others, 0)
    images = Images("digits", [torch.zeros(1, 2, 2), torch.ones(1, 2, 2)], None, "f")
    assert digest_of(images, 0) != digest_of(images, 1)
