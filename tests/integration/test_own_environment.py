"""Peers in an environment of their own: the file protocol, with small workers written here, and the peers themselves.

The tests of the peers need ``FAITHCHECK_LXT_PYTHON`` and the like, see docs/how_to/peers.md; they take seconds per
worker.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from faithcheck.axioms.completeness import completeness
from faithcheck.axioms.invariance import invariance
from faithcheck.axioms.measure.measurement import relative_gap
from faithcheck.axioms.trace import trace
from faithcheck.explainers import CPLRP, AttnLRP, GradientTimesInput, IntegratedGradients
from faithcheck.explainers.peers import own_environment
from faithcheck.explainers.peers.own_environment import WORKERS, OwnEnvironment, WorkerFailed
from faithcheck.explainers.protocol import InvalidAttribution, Unsupported, attribution_of
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.case import Case
from faithcheck.models.pair import registered_pairs
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.linear_model import linear_model_and_case
from faithcheck.tests.helpers.small_models import save

pytestmark = pytest.mark.slow

WORKER_IMPORTS = f"import sys; sys.path.insert(0, {str(WORKERS)!r})\nfrom worker_protocol import *\n"
GRADIENT_X_INPUT = (
    WORKER_IMPORTS
    + """
def explain(request):
    model, point = request.load(), request.inputs.clone().requires_grad_()
    output = model(point, **request.forward_arguments)
    explained = output.gather(1, request.target.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(explained, point)
    attribution = (point * gradient).reshape(*point.shape[:2], -1).sum(2)
    return WorkerAnswer(attribution, output, {"folder": sorted(file.name for file in request.folder.iterdir())})
serve("safetensors", explain)
"""
)


@pytest.fixture
def worker(tmp_path):
    """A function that makes an explainer whose worker is the given script, run in this environment."""

    def make(script, form="exported", **options):
        file = tmp_path / "a_worker.py"
        file.write_text(script, encoding="utf-8")
        return OwnEnvironment(
            "safetensors", "a_method", form, "a_name", options=options, python=sys.executable, worker=file
        )

    return make


def model_and_case(name, side=0, dtype=torch.float64):
    pair, device = registered_pairs()[name], torch.device("cpu")
    return pair.build(0, dtype, device)[side], pair.case(0, dtype, device)


# --- a worker that answers ------------------------------------------------------------------------------------------


def test_an_exported_program_gets_the_same_attribution_from_a_worker(worker):
    model, case = model_and_case("softmax.stable", 1, torch.float32)
    answer = worker(GRADIENT_X_INPUT).ask(model, case)
    expected = GradientTimesInput().attribute(model, case)
    assert relative_gap(answer.attribution - expected, expected) < 1e-5
    assert answer.attribution.dtype == torch.float32
    assert answer.figures["folder"] == ["case.safetensors", "log.txt", "model.pt2", "request.json"]
    assert set(answer.versions) == {"python", "torch", "transformers", "safetensors"}


def test_a_transformers_model_gets_the_same_attribution_from_a_worker(worker):
    cpu = torch.device("cpu")
    model = BASE_MODELS["llama"].model(0, torch.float64, cpu)
    case = BASE_MODELS["llama"].case(0, torch.float64, cpu)
    attribution = attribution_of(worker(GRADIENT_X_INPUT, "transformers"), model, case)
    expected = GradientTimesInput().attribute(model, case)
    assert relative_gap(attribution - expected, expected) < 1e-12


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_attention_mask_of_padded_texts_reaches_the_worker(worker, name, tmp_path):
    model = load(save(name, tmp_path / "model"), dtype=torch.float64)
    case = model.case(model.encode(["the film is good", "bad"]))
    assert not case.unpadded.all()
    attribution = attribution_of(worker(GRADIENT_X_INPUT, "transformers"), model, case)
    torch.testing.assert_close(attribution, GradientTimesInput().attribute(model, case))


def test_a_worker_leaves_the_model_unchanged(worker):
    model, case = linear_model_and_case()
    assert trace(worker(GRADIENT_X_INPUT), model, case).gap == 0


def test_the_origin_names_the_versions(worker):
    origin = worker(GRADIENT_X_INPUT).origin
    assert origin.startswith("safetensors ")
    assert f"torch {torch.__version__}" in origin


# --- a worker that fails --------------------------------------------------------------------------------------------


def test_a_crash_shows_the_traceback_of_the_worker_once(worker):
    script = (
        WORKER_IMPORTS
        + "def explain(request):\n    raise ZeroDivisionError('in the worker')\nserve('safetensors', explain)\n"
    )
    with pytest.raises(WorkerFailed, match=r"safetensors's worker failed: ZeroDivisionError: in the worker") as failure:
        worker(script).attribute(*linear_model_and_case())
    shown = "".join(traceback.format_exception(failure.value))
    assert shown.count("in explain\n") == 1
    assert "a_worker.py" in shown


def test_the_error_of_a_script_that_does_not_start_is_shown(worker):
    with pytest.raises(WorkerFailed, match="ended without an answer") as failure:
        worker("import no_such_peer\n").attribute(*linear_model_and_case())
    assert "No module named 'no_such_peer'" in "".join(failure.value.__notes__)


def test_a_refusal_of_the_worker_raises_unsupported(worker):
    script = (
        WORKER_IMPORTS + "def explain(request):\n    raise Refused('no such rule')\nserve('safetensors', explain)\n"
    )
    with pytest.raises(Unsupported, match="safetensors: no such rule"):
        worker(script).attribute(*linear_model_and_case())


ANSWERS = (
    WORKER_IMPORTS
    + """
def explain(request):
    attribution = torch.zeros(*request.inputs.shape[:2], dtype=request.inputs.dtype)
    return WorkerAnswer({attribution}, {output})
serve("safetensors", explain)
"""
)


@pytest.mark.parametrize(
    ("attribution", "message"),
    [("attribution / 0", "6 of 6 values are NaN"), ("attribution[:, :1]", r"expected shape .* \(3, 2\)")],
)
def test_an_answer_that_is_no_attribution_is_refused(worker, attribution, message):
    script = ANSWERS.format(attribution=attribution, output="request.load()(request.inputs)")
    with pytest.raises(InvalidAttribution, match=message):
        attribution_of(worker(script), *linear_model_and_case())


@pytest.mark.parametrize(
    ("output", "message"), [("request.load()(request.inputs) + 1e-6", "1.0+.*e-06"), ("torch.zeros(3, 5)", "inf")]
)
def test_a_worker_that_explains_another_function_raises_an_error(worker, output, message):
    script = ANSWERS.format(attribution="attribution", output=output)
    with pytest.raises(WorkerFailed, match=f"up to .*{message}.*not the model that was sent"):
        worker(script).attribute(*linear_model_and_case())


def test_an_answer_with_another_protocol_version_is_refused(worker):
    answer = json.dumps({"protocol": 1, "status": "answered"})
    script = f"import pathlib, sys; pathlib.Path(sys.argv[1], 'answer.json').write_text({answer!r})"
    with pytest.raises(WorkerFailed, match="answered in protocol 1, expected 2"):
        worker(script).attribute(*linear_model_and_case())


def test_a_request_with_another_protocol_version_is_refused(tmp_path):
    (tmp_path / "request.json").write_text(json.dumps({"protocol": 1}), encoding="utf-8")
    with pytest.raises(
        own_environment.protocol.Refused, match="the request has protocol 1, this worker has protocol 2"
    ):
        own_environment.protocol.read(tmp_path)


# --- a worker that hangs --------------------------------------------------------------------------------------------

HANGS = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open({file!r} + ".part", "w") as pids:
    pids.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({file!r} + ".part", {file!r})
os.kill(os.getppid(), signal.SIGALRM)
time.sleep(600)
"""


def running(pid):
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition is still false after {seconds} s"
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look processes up")
def test_an_interruption_ends_a_hanging_worker_and_its_children(worker, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    pid_file = tmp_path / "pids"
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)  # in case the worker never starts
        with pytest.raises(Interrupted):
            worker(HANGS.format(file=str(pid_file))).attribute(*linear_model_and_case())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pids = list(map(int, pid_file.read_text().split()))
    assert len(pids) == 2
    wait_until(lambda: not any(map(running, pids)), 5)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look processes up")
def test_a_worker_does_not_outlive_a_killed_run(tmp_path):
    pid_file, script = tmp_path / "pid", tmp_path / "a_worker.py"
    wait = (
        "import time\n"
        f"def explain(request):\n    Path({str(pid_file)!r}).write_text(str(os.getpid())); time.sleep(600)\n"
    )
    script.write_text(WORKER_IMPORTS + wait + "serve('safetensors', explain)\n", encoding="utf-8")
    run = (
        "from pathlib import Path; import sys\n"
        "from faithcheck.explainers.peers.own_environment import OwnEnvironment\n"
        "from faithcheck.tests.helpers.linear_model import linear_model_and_case\n"
        f"environment = {{'python': sys.executable, 'worker': Path({str(script)!r})}}\n"
        "OwnEnvironment('safetensors', 'm', 'exported', 'n', **environment).attribute(*linear_model_and_case())\n"
    )
    variables = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed run cannot remove its request
    parent = subprocess.Popen([sys.executable, "-c", run], env=variables)
    try:
        wait_until(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
        assert running(pid)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not running(pid), 10)


# --- an environment that does not exist ------------------------------------------------------------------------------


def test_no_environment_is_unsupported_and_names_the_variable(monkeypatch):
    monkeypatch.delenv("FAITHCHECK_LXT_PYTHON", raising=False)
    with pytest.raises(Unsupported, match=r"set FAITHCHECK_LXT_PYTHON to its interpreter; docs/how_to/peers\.md"):
        own_environment.LXT_ATTNLRP.attribute(*linear_model_and_case())
    assert own_environment.LXT_ATTNLRP.origin == "lxt, no environment"


def test_an_environment_that_is_named_but_does_not_exist_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("FAITHCHECK_LXT_PYTHON", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match=r"FAITHCHECK_LXT_PYTHON: the interpreter .*python does not exist"):
        own_environment.LXT_ATTNLRP.attribute(*linear_model_and_case())


# --- what cannot be sent --------------------------------------------------------------------------------------------

REFUSED_PAIRS = {
    "attention.separate_gpt2": "is not as transformers makes it",  # modules of another name
    "sharing.activations_bert": "is not as transformers makes it",  # one module in two places
    "attention.fused_bert": "cannot be sent as a folder",  # one weight in three places
    "batching.padded_bert": "{model} is no text model of transformers",
    "attention.sdpa_vit": "{model} is no text model of transformers",
}


@pytest.mark.parametrize("pair", REFUSED_PAIRS)
def test_a_model_that_transformers_would_not_make_is_refused(worker, pair):
    model, case = model_and_case(pair, 1)
    with pytest.raises(Unsupported, match=REFUSED_PAIRS[pair].format(model=type(model).__name__)):
        worker("raise SystemExit", "transformers").attribute(model, case)


def test_another_operation_of_the_same_function_is_refused(worker):
    model, case = model_and_case("control.bert")
    for layer in model.model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn.forward = lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2
    gelu = functional.gelu(case.inputs)
    torch.testing.assert_close(case.inputs * (1 + torch.erf(case.inputs / 2**0.5)) / 2, gelu)
    with pytest.raises(Unsupported, match="would not have its operations"):
        worker("raise SystemExit", "transformers").attribute(model, case)


def test_a_program_for_one_number_of_rows_is_refused(worker):
    with pytest.raises(Unsupported, match="OneByOne cannot be exported"):
        worker("raise SystemExit").attribute(*model_and_case("batching.single_bert", 1))


def test_an_archive_with_a_pickle_is_not_read(tmp_path):
    model, case = linear_model_and_case()
    program = torch.export.export(model, (case.inputs,))
    torch.export.save(program, tmp_path / "model.pt2")  # with its example inputs, which torch pickles
    with pytest.raises(own_environment.protocol.Refused, match="has a pickle in it"):
        own_environment.protocol.exported(tmp_path / "model.pt2")


# --- the peers themselves -------------------------------------------------------------------------------------------


def environment(peer):
    """Skip where the peer has no environment."""
    variable = f"FAITHCHECK_{peer.upper()}_PYTHON"
    return pytest.mark.skipif(variable not in os.environ, reason=f"{variable} is not set to an interpreter with {peer}")


def gap(explainer, ours, pair, side=0):
    model, case = model_and_case(pair, side)
    expected = ours.attribute(model, case)
    return relative_gap(attribution_of(explainer, model, case) - expected, expected)


@environment("lxt")
@pytest.mark.parametrize("pair", ["attention.sdpa_bert", "basis.query_key_gpt2", "attention.expanded_llama"])
def test_attnlrp_of_lxt_equals_ours_up_to_its_stabiliser(pair):
    assert gap(own_environment.LXT_ATTNLRP, AttnLRP(), pair) < 1e-6  # z + 1e-10 without a sign


@environment("lxt")
def test_cplrp_of_lxt_equals_ours_except_at_the_gate_of_llama():
    assert gap(own_environment.LXT_CPLRP, CPLRP(), "basis.query_key_gpt2") < 1e-6
    assert gap(own_environment.LXT_CPLRP, CPLRP(), "basis.query_key_llama") > 0.1  # lxt gives the gate no relevance


@environment("lxt")
def test_lxt_has_no_rules_for_roberta():
    with pytest.raises(Unsupported, match="no rules for 'roberta'"):
        own_environment.LXT_ATTNLRP.attribute(*model_and_case("basis.query_key_roberta"))


@environment("inseq")
def test_attributions_of_inseq_equal_ours():
    assert gap(own_environment.INSEQ_INPUT_X_GRADIENT, GradientTimesInput(), "basis.query_key_gpt2") < 1e-12
    assert gap(own_environment.INSEQ_INTEGRATED_GRADIENTS, IntegratedGradients(), "basis.query_key_gpt2") < 1e-6


@environment("quantus")
def test_input_x_gradient_of_quantus_equals_ours_and_its_quadrature_is_too_coarse():
    pair = "linear_attention.assoc"
    assert gap(own_environment.QUANTUS_INPUT_X_GRADIENT, GradientTimesInput(), pair) < 1e-12
    model, case = model_and_case(pair)
    ten_steps = own_environment.QUANTUS_INTEGRATED_GRADIENTS
    assert completeness(ten_steps, model, case).gap > 0.01
    assert invariance(ten_steps, model, model_and_case(pair, 1)[0], case).gap < 1e-9


@environment("quantus")
def test_the_completeness_of_quantus_requires_equal_bits():
    """quantus compares floats by ==, and by default divides the map by its maximum first."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2, bias=False).eval()
    inputs = torch.randn(32, 8)
    case = Case(inputs, torch.zeros(32, dtype=torch.int64), torch.zeros_like(inputs))
    explainer = replace(own_environment.QUANTUS_INPUT_X_GRADIENT, options={"completeness": True})
    figures = explainer.ask(model, case).figures
    ours = completeness(GradientTimesInput(), model, case)
    assert ours.gap < ours.tol
    assert not any(figures["default"])
    assert not any(figures["not normalised"])  # its baseline is the smallest input of each example
    assert 0 < sum(figures["not normalised, from 0"]) < 32  # round-off decides
