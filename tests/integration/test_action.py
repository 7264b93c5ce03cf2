"""The GitHub Action and the GitLab template: their scripts are run as a runner would run them.

``python`` is a script that writes the arguments of pip to a file and calls the running Python for anything else.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

import faithcheck.tests

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
ACTION, GITLAB = CLONE / "action.yml", CLONE / "docs" / "how_to" / "gitlab-ci.yml"

pytestmark = pytest.mark.skipif(
    not ACTION.is_file() or not shutil.which("bash"), reason="the action is in the clone, and its scripts need bash"
)

THEIRS = """
class Mine:
    name = "mine"
    claims = {"invariance"}
    calls = 0
    def attribute(self, model, case):
        Mine.calls += 1
        return case.inputs.abs() * (Mine.calls if RED else 1)
"""
PYTHON = f"""#!/usr/bin/env bash
if [[ $1 == -m && $2 == pip ]]; then
  printf '%s\\n' "$@" > "$PIP_LOG"
elif [[ -n ${{PYTEST_CODE:-}} ]]; then
  exit "$PYTEST_CODE"
else
  exec {sys.executable} "$@"
fi
"""
GITHUB = {"RUNNER_TEMP", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ACTION_PATH"}


@pytest.fixture(scope="module")
def action():
    return yaml.safe_load(ACTION.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def gitlab():
    return yaml.safe_load(GITLAB.read_text(encoding="utf-8"))[".faithcheck"]


def scripts():
    if not ACTION.is_file():
        return []
    steps = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    named = [(step["name"], step) for step in steps if "run" in step]
    job = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))[".faithcheck"]
    return [*named, ("GitLab", {"run": "\n".join(job["script"]), "env": job["variables"]})]


SCRIPTS = [pytest.param(step, id=name) for name, step in scripts()]


# --- declarations and their use --------------------------------------------------------------------------------------


def test_the_declared_inputs_are_those_that_are_used(action):
    used = set(re.findall(r"inputs\.([\w-]+)", json.dumps(action["runs"])))
    assert used == set(action["inputs"])
    assert all(one["description"] and ("default" in one or one["required"]) for one in action["inputs"].values())


def test_every_output_that_is_used_is_written_by_its_step(action):
    steps = {step["id"]: step["run"] for step in action["runs"]["steps"] if "id" in step}
    used = set(re.findall(r"steps\.([\w-]+)\.outputs\.([\w-]+)", json.dumps(action)))
    assert used == {("check", "report"), ("check", "code"), ("report", "compared"), ("report", "judged")}
    for step, name in used:
        assert re.search(rf'echo "{name}=', steps[step]), f"{step} does not write {name}"


@pytest.mark.parametrize("step", SCRIPTS)
def test_a_script_parses_and_reads_inputs_only_from_the_environment(step):
    assert "${{" not in step["run"], "an input pasted into a script would be part of the program"
    done = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    read = set(re.findall(r"\$\{?([A-Z][A-Z_]+)\b|\(\( ([A-Z]+)", step["run"]))
    read = {name for names in read for name in names if name}
    assert read - GITHUB == set(step["env"]), "variables that are read and variables that are set"


def test_every_step_has_a_shell_or_an_action_with_a_commit(action):
    for step in action["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        # A tag can be moved to other code; a commit cannot.
        assert step["shell"] == "bash" if "run" in step else re.search(r"@[0-9a-f]{40}$", step["uses"])
    (upload,) = (step for step in action["runs"]["steps"] if "upload-artifact" in step.get("uses", ""))
    assert upload["if"].startswith("always()"), "also where something failed"


def test_the_commands_and_options_of_the_scripts_exist():
    """The options of pytest and of the command, by their own help."""
    from faithcheck.cli.main import parser

    (commands,) = (one for one in parser()._actions if one.dest == "command")
    known = {"report": {"--md", "--html", "--exit-code"}, "compare": {"--md"}}
    for command, flags in known.items():
        assert flags <= set(commands.choices[command]._option_string_actions)
    text = ACTION.read_text(encoding="utf-8") + GITLAB.read_text(encoding="utf-8")
    calls = re.findall(r"\bfaithcheck (report|compare) (.*)", text)
    assert {command for command, _ in calls} == set(known)
    for command, rest in calls:
        assert set(re.findall(r"--[\w-]+", rest)) <= known[command]


# --- the action, run -------------------------------------------------------------------------------------------------


class Runner:
    """A folder with a user's project, and a runner that runs the steps of the action there."""

    def __init__(self, action, folder, *, red=False):
        self.action, self.folder, self.outputs = action, folder, {}
        (folder / "project").mkdir(parents=True)
        (folder / "bin").mkdir()
        (folder / "temp").mkdir()
        (folder / "project" / "their_module.py").write_text(f"RED = {red}\n{THEIRS}")
        python = folder / "bin" / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        command = folder / "bin" / "faithcheck"
        command.write_text(f"#!{sys.executable}\nfrom faithcheck.cli.main import main\nraise SystemExit(main())\n")
        command.chmod(0o755)
        self.summary = folder / "summary.md"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_LOG": str(folder / "pip.log"),
            "RUNNER_TEMP": str(folder / "temp"),
            "GITHUB_ACTION_PATH": "/the/action",
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def step(self, name, inputs=None, **environment):
        """Run the script of a step, read its outputs and return the finished process."""
        (step,) = (one for one in self.action["runs"]["steps"] if one["name"] == name)
        inputs = {**{key: one.get("default", "") for key, one in self.action["inputs"].items()}, **(inputs or {})}
        output = self.folder / "output"
        output.write_text("")
        values = {**{f"inputs.{key}": value for key, value in inputs.items()}, **self.outputs}
        variables = {
            key: re.sub(r"\$\{\{ (.*?) \}\}", lambda match: values[match[1]], value)
            for key, value in step["env"].items()
        }
        script = self.folder / "script.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder / "project",
            env={**self.environment, "GITHUB_OUTPUT": str(output), **variables, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        print(done.stdout, done.stderr)
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.outputs[f"steps.{step['id']}.outputs.{key}"] = value
        return done

    def checked(self):
        """The step that runs the suite, on one pair and the explainer of the project."""
        done = self.step("Check the explainer", {"explainer": "their_module:Mine", "pairs": "product.x1x2x3"})
        assert done.returncode == 0, "the step stores the exit code for the last step"
        return self

    @property
    def report(self):
        return Path(self.outputs["steps.check.outputs.report"])


@pytest.fixture(scope="module")
def green(action, tmp_path_factory):
    return Runner(action, tmp_path_factory.mktemp("green") / "runner").checked()


@pytest.fixture(scope="module")
def red(action, tmp_path_factory):
    return Runner(action, tmp_path_factory.mktemp("red") / "runner", red=True).checked()


@pytest.fixture
def runner(action, tmp_path):
    return Runner(action, tmp_path / "runner")


def ended(runner, fail_on, baseline=None):
    """Report and verdict of a run: the exit code of the verdict, and the summary."""
    runner.summary.write_text("")
    for page in runner.report.glob("*.md"):
        page.unlink()
    inputs = {"fail-on": fail_on, "baseline": str(baseline or "")}
    assert runner.step("Report", inputs).returncode == 0
    return runner.step("Verdict", inputs).returncode, runner.summary.read_text()


@pytest.mark.slow
def test_a_green_run_passes_and_leaves_every_file(green):
    code, summary = ended(green, "red")
    assert code == 0
    assert summary.startswith("# faithcheck: mine: 2 checks as expected, 0 red")
    assert {path.name for path in green.report.iterdir()} == {
        "faithcheck.json",
        "faithcheck.md",
        "faithcheck.html",
        "junit.xml",
    }
    document = json.loads((green.report / "faithcheck.json").read_text())
    assert [record["id"] for record in document["records"]] == [
        "equivalence/product.x1x2x3",
        "invariance/mine-product.x1x2x3",
    ]
    assert ElementTree.parse(green.report / "junit.xml").getroot().find("testsuite").get("failures") == "0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail_on", "before", "code"),
    [
        ("red", None, 1),
        ("never", None, 0),
        ("regression", "green", 1),
        ("regression", "red", 0),
        ("never", "green", 0),
        ("red", "red", 1),
    ],
)
def test_a_red_run_fails_as_fail_on_says(red, green, fail_on, before, code):
    baseline = {"green": green, "red": red}[before].report / "faithcheck.json" if before else None
    exit_code, summary = ended(red, fail_on, baseline)
    assert exit_code == code
    assert "broken claim: mine" not in summary.splitlines()[0]
    assert "# faithcheck: red: " in summary
    assert ": 1 red, 1 check as expected" in summary
    if before:
        assert summary.startswith("### ✗ faithcheck: 1 regression" if before == "green" else "### ✓ faithcheck: no")
        assert (red.report / "compare.md").is_file()


@pytest.mark.slow
def test_a_baseline_that_cannot_be_read_always_fails(green, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    assert ended(green, "never", tmp_path / "broken.json")[0] == 2


@pytest.mark.slow
def test_a_page_too_long_for_the_summary_is_named_there(green):
    (green.report / "faithcheck.json").rename(green.report / "kept.json")
    document = json.loads((green.report / "kept.json").read_text())
    document["records"] = [{**document["records"][0], "subject": f"{'x' * 100}.{i}"} for i in range(3000)]
    (green.report / "faithcheck.json").write_text(json.dumps(document))
    try:
        _, summary = ended(green, "red")
    finally:
        (green.report / "kept.json").rename(green.report / "faithcheck.json")
    assert len(summary) < 1000
    assert "too long for this page, see faithcheck.md in the artifact" in summary


def test_a_run_that_cannot_start_always_fails(runner):
    assert runner.step("Check the explainer", {"explainer": "their_module:Nope"}).returncode == 0
    assert runner.outputs["steps.check.outputs.code"] == "4"
    code, summary = ended(runner, "never")
    assert code == 4
    assert summary == "✗ faithcheck: no check ran (pytest ended with exit code 4); the log says why\n"


@pytest.mark.parametrize("fail_on", ["red", "never"])
def test_a_process_that_was_ended_with_0_fails_without_a_report(runner, fail_on):
    runner.step("Check the explainer", {"explainer": "x"}, PYTEST_CODE="0")
    code, summary = ended(runner, fail_on)
    assert code == 3
    assert summary == "✗ faithcheck: no check ran (pytest ended with exit code 0); the log says why\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail_on", "missing", "code"), [("red", 1, 3), ("never", 1, 3), ("red", 0, 1), ("never", 0, 0)]
)
def test_the_report_is_believed_and_not_the_exit_code(runner, red, fail_on, missing, code):
    runner.step("Check the explainer", {"explainer": "x"}, PYTEST_CODE="0")
    document = json.loads((red.report / "faithcheck.json").read_text())
    document["counts"]["planned"] += missing
    (runner.report / "faithcheck.json").write_text(json.dumps(document))
    assert ended(runner, fail_on)[0] == code


@pytest.mark.parametrize("code", [2, 3, 5])
def test_a_run_that_was_cut_short_or_collected_no_test_always_fails(runner, code):
    runner.step("Check the explainer", {"explainer": "x"}, PYTEST_CODE=str(code))
    assert ended(runner, "never")[0] == code


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "explainer is empty"),
        ({"explainer": " \n"}, "explainer is empty"),
        ({"explainer": "x", "fail-on": "always"}, "fail-on is red, regression or never"),
        ({"explainer": "x", "fail-on": "regression"}, "fail-on: regression needs a baseline"),
        ({"explainer": "x", "baseline": "none.json"}, "the baseline does not exist"),
    ],
)
def test_inputs_are_checked_first(runner, inputs, message):
    done = runner.step("Check the inputs", inputs)
    assert done.returncode == 2
    assert done.stdout.startswith("::error title=faithcheck::")
    assert message in done.stdout
    assert runner.step("Check the inputs", {"explainer": "x"}).returncode == 0


def test_the_install_step_installs_the_action_or_the_named_faithcheck(runner):
    assert runner.step("Install").returncode == 0
    log = runner.folder / "pip.log"
    *_, flag, requirements, last = log.read_text().splitlines()
    assert (flag, last) == ("-r", "/the/action")
    assert Path(requirements).read_text().strip() == ""
    given = {"faithcheck": "faithcheck==0.1.0", "requirements": ".\n-c constraints.txt\n"}
    assert runner.step("Install", given).returncode == 0
    assert log.read_text().splitlines()[-1] == "faithcheck==0.1.0"
    assert Path(requirements).read_text().split("\n")[:2] == [".", "-c constraints.txt"]


INJECTED = 'x"; touch "$OLDPWD/pwned" pwned; echo "$(touch pwned) `touch pwned`'


def test_inputs_are_never_executed(action, runner):
    inputs = dict.fromkeys(action["inputs"], INJECTED)
    for name in ("Check the inputs", "Install", "Check the explainer", "Report", "Verdict"):
        runner.step(name, inputs, PYTEST_CODE="1")
    assert not list(runner.folder.rglob("pwned"))


ECHO = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" > "$PIP_LOG"\n'


def arguments(runner, run):
    """The arguments that pytest gets, a line each."""
    (runner.folder / "bin" / "python").write_text(ECHO)
    run()
    return (runner.folder / "pip.log").read_text().splitlines()


GIVEN = {
    "explainer": "a.b:C\n  d:E F  \n\n",
    "markers": "invariance or loo",
    "pairs": "product.*\nnorm *",
    "expectations": "known failures.toml",
    "max-skips": "3",
    "explainer-timeout": "2.5",
}
EXPECTED = [
    *("-m", "invariance or loo", "--explainer=a.b:C", "--explainer=d:E F", "--pairs=product.*", "--pairs=norm *"),
    *("--expectations=known failures.toml", "--max-skips=3", "--explainer-timeout=2.5"),
]


def test_every_input_reaches_pytest_unchanged(runner):
    given = arguments(runner, lambda: runner.step("Check the explainer", GIVEN))
    assert given[: -2 - len(EXPECTED)] == [
        "-m",
        "pytest",
        "-p",
        "faithcheck.plugin",
        "--pyargs",
        "faithcheck.tests.test_axioms",
        "--isolate",
    ]
    assert given[-2 - len(EXPECTED) : -2] == EXPECTED
    bare = arguments(runner, lambda: runner.step("Check the explainer", {"explainer": "a:B"}))
    assert bare[7:-2] == ["-m", "invariance or trace", "--explainer=a:B"]


# --- GitLab ----------------------------------------------------------------------------------------------------------


def gitlab_job(job, runner, **variables):
    """Run the job's script in the project, with these variables."""
    done = subprocess.run(
        ["bash", "-c", "\n".join(job["script"])],
        cwd=runner.folder / "project",
        env={**runner.environment, **job["variables"], "FAITHCHECK": "faithcheck==0.1.0", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    return done


STUB = """#!/usr/bin/env bash
if [[ $* == *pytest* ]]; then
  for argument in "$@"; do
    [[ $argument != --axioms-json=* || -z $DOCUMENT ]] || cp "$DOCUMENT" "${argument#*=}"
    [[ $argument != --junitxml=* ]] || touch "${argument#*=}"
  done
  exit "$PYTEST_CODE"
fi
"""


def test_the_gitlab_job_needs_the_faithcheck_to_install(gitlab, runner):
    done = gitlab_job(gitlab, runner, EXPLAINER="x", FAITHCHECK="")
    assert done.returncode == 2
    assert "FAITHCHECK is empty" in done.stderr


@pytest.mark.slow
def test_the_gitlab_job_writes_the_declared_artifacts(gitlab, runner, green):
    (runner.folder / "bin" / "python").write_text(STUB)
    document = str(green.report / "faithcheck.json")
    done = gitlab_job(gitlab, runner, EXPLAINER="x", DOCUMENT=document, BASELINE=document, PYTEST_CODE="0")
    assert done.returncode == 0
    assert "✓ no regression\n" in done.stdout
    report = runner.folder / "project" / gitlab["artifacts"]["paths"][0]
    assert {path.name for path in report.iterdir()} == {
        "compare.md",
        "faithcheck.html",
        "faithcheck.json",
        "faithcheck.md",
        "junit.xml",
        "requirements.txt",
    }
    assert runner.folder / "project" / gitlab["artifacts"]["reports"]["junit"] == report / "junit.xml"
    assert gitlab["artifacts"]["when"] == "always"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail_on", "baseline", "pytest_code", "code"),
    [
        ("red", "", 1, 1),
        ("never", "", 1, 0),
        ("regression", "green", 1, 1),
        ("regression", "red", 1, 0),
        ("regression", "", 1, 2),
        ("always", "", 0, 2),
        ("never", "none.json", 0, 2),
        ("never", "", 3, 2),
        ("never", "no document", 4, 2),
    ],
)
def test_the_gitlab_job_fails_as_fail_on_says(gitlab, runner, red, green, fail_on, baseline, pytest_code, code):
    documents = {name: str(one.report / "faithcheck.json") for name, one in {"green": green, "red": red}.items()}
    (runner.folder / "bin" / "python").write_text(STUB)
    done = gitlab_job(
        gitlab,
        runner,
        EXPLAINER="x",
        FAIL_ON=fail_on,
        BASELINE=documents.get(baseline, "" if " " in baseline else baseline),
        DOCUMENT="" if baseline == "no document" else documents["red"],
        PYTEST_CODE=str(pytest_code),
    )
    assert done.returncode == code


def test_the_gitlab_job_calls_pytest_like_the_action(gitlab, runner):
    names = {key: key.replace("-", "_").upper() for key in GIVEN}
    variables = {names[key]: value for key, value in GIVEN.items()}
    given = arguments(runner, lambda: gitlab_job(gitlab, runner, **variables))
    assert given[7:-2] == EXPECTED
    (runner.folder / "bin" / "python").write_text(PYTHON)
    gitlab_job(gitlab, runner, **dict.fromkeys(gitlab["variables"], INJECTED), PYTEST_CODE="1")
    assert not list(runner.folder.rglob("pwned"))
