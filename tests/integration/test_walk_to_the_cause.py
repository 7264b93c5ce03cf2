"""From the top of a red page to the line that names the cause: one click, on each of these seeded faults."""

import re
from dataclasses import replace

import pytest
import torch
from playwright.sync_api import expect

from faithcheck import check_explainer, outcomes
from faithcheck.axioms import AXIOMS
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.reports.pages import report
from faithcheck.tests.helpers.browser import browser, check_page, opened
from faithcheck.tests.helpers.documents import EVIDENCE, document, record
from faithcheck.tests.helpers.faults.fault import Line, Rule, around, result

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.integration

BASELINE_IGNORED = Line(
    "gradients:IntegratedGradients.attribute_with_error", "path = case.inputs - case.baseline", "path = case.inputs"
)


def hook_left(explainer, model, case):
    """A forward hook stays on the model."""
    model.register_forward_hook(lambda module, arguments, output: None)
    return explainer.attribute(model, case)


def train_mode_left(explainer, model, case):
    """The model is left in train mode."""
    attribution = explainer.attribute(model, case)
    model.train()
    return attribution


def inputs_overwritten(explainer, model, case):
    """The inputs are normalised in place."""
    case.inputs.div_(2)
    return explainer.attribute(model, case)


def mask_ignored(explainer, model, case):
    """The model runs without its attention mask."""
    return explainer.attribute(model, replace(case, forward_arguments={}))


# {what is wrong: (explainer, change, axiom, pair, words of the line that names it)}
FAULTS = {
    "the sign": ("integrated_gradients", result(lambda a, case: -a), "completeness", "control.mlp", "sign is wrong"),
    "a factor": ("integrated_gradients", result(lambda a, case: a / 2), "completeness", "control.mlp", "0.5 times"),
    "normalised": (
        *("integrated_gradients", result(lambda a, case: a / a.sum(1, keepdim=True))),
        *("completeness", "control.mlp", "normalised"),
    ),
    "the baseline": ("integrated_gradients", BASELINE_IGNORED, "completeness", "probe.affine", "wrong baseline"),
    "a missing rule": (
        *("attnlrp", Rule("lrp.attnlrp:ATTNLRP", "mul", None), "invariance", "product.x1x2x3"),
        "no rule for an operation",
    ),
    "noise": (
        *("gradient_x_input", result(lambda a, case: a + 1e-3 * torch.randn_like(a)), "determinism", "control.mlp"),
        "draws random numbers without a seed",
    ),
    "the dtype": ("gradient_x_input", result(lambda a, case: a.float()), "trace", "control.mlp", "wrong dtype"),
    "NaN": ("gradient_x_input", result(lambda a, case: a / (a - a)), "trace", "control.mlp", "division by zero"),
    "the shape": (
        *("gradient_x_input", result(lambda a, case: case.inputs.clone()), "completeness", "probe.linear"),
        "one number per coordinate",
    ),
    "a hook": ("gradient_x_input", around(hook_left), "trace", "control.mlp", "Hooks are left on the model"),
    "train mode": ("gradient_x_input", around(train_mode_left), "trace", "control.mlp", "left in another mode"),
    "in place": ("gradient_x_input", around(inputs_overwritten), "trace", "control.mlp", "into its inputs in place"),
    "padding": ("gradient_x_input", around(mask_ignored), "batching", "probe.padded", "reads padding"),
    "the order": ("loo", result(lambda a, case: a.roll(1, 1)), "full_removal", "probe.linear", "wrong order"),
    "all zeros": ("loo", result(lambda a, case: 0 * a), "full_removal", "probe.linear", "all zeros"),
    "no signs": ("loo", result(lambda a, case: a.abs()), "full_removal", "probe.linear", "the signs are lost"),
}


def page_of(explainer, change, axiom, pair):
    """The page of a run of one axiom on one pair."""
    with change.applied(builtin_explainers()[explainer]) as faulty:
        records = list(check_explainer(faulty, [axiom], [pair]))
    about = document([], {"explainers": [explainer]}).settings
    return report.to_html(outcomes.of_records(records, len(records), about, AXIOMS))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_link_leads_to_the_line_that_names_the_cause(fault):
    *run, words = FAULTS[fault]
    page = page_of(*run)
    target = re.search(r'class="cause-links".*?<a href="#([^"]+)"', page, re.DOTALL)[1]
    line = re.search(rf'id="{target}".*?<p class="likely">(.*?)</p>', page, re.DOTALL)[1]
    assert words in line


def test_one_click_brings_the_line_into_view(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page_of(*FAULTS["padding"][:-1]), encoding="utf-8")
    with opened(browser, file) as page:
        page.locator(".cause-links a").first.click()
        expect(page.locator(".cause:target .likely")).to_be_in_viewport()


@pytest.mark.slow
def test_cards_with_evidence_are_accessible_at_any_width_and_in_the_dark(browser, tmp_path):
    records = [record("broken claim", axiom=layout, evidence=kept) for layout, kept in EVIDENCE.items()]
    (tmp_path / "page.html").write_text(report.to_html(document(records)), encoding="utf-8")
    check_page(browser, tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        for link in page.locator(".cause-links a").all():
            link.click()
            expect(page.locator(".cause:target h3")).to_have_text(link.inner_text().split(maxsplit=1)[1])
