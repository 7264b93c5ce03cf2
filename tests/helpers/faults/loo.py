"""Faults of Leave-One-Out, budgeted Leave-One-Out and Attention Rollout."""

from __future__ import annotations

from faithcheck.explainers.loo.removal import GaussianNoise, Replacement
from faithcheck.tests.helpers.faults.fault import Fault, Line, Settings

LOO = "loo.leave_one_out:effects_of_parts"
IS_REMOVED, NEXT = "part[example] == removed.unsqueeze(1)", "(removed.unsqueeze(1) + 1) % len(number)"
REMOVAL = "loo.removal:Replacement.remove"
OUTPUTS = "loo.outputs:outputs_without"
PROGRESS = "loo.budget:RemovalProgress"


def _loo(name: str, old: str, new: str, why: str, function: str = LOO) -> Fault:
    return Fault(name, "loo", Line(function, old, new), why)


LEAVE_ONE_OUT = [
    _loo(
        "the output without the feature", "unchanged[example] - outputs[batch:]", "outputs[batch:]", "f(x) is missing"
    ),
    _loo("the next feature is removed", IS_REMOVED, f"part[example] == {NEXT}", "off by one"),
    _loo("the others are removed", IS_REMOVED, "part[example] != removed.unsqueeze(1)", "one is kept, not left out"),
    _loo("two features are removed", IS_REMOVED, f"({IS_REMOVED}) | (part[example] == {NEXT})", "and its neighbour"),
    _loo("removed features stay removed", IS_REMOVED, f"({IS_REMOVED}).cummax(0).values", "removals add up"),
    _loo("the first example's output", "unchanged[example]", "unchanged[0]", "f(x) of example 0 for the whole batch"),
    _loo("the mean output of the batch", "unchanged[example]", "unchanged.mean()", "f(x) is averaged over the batch"),
    _loo(
        "zero in place of the baseline",
        "self.value(case)",
        "torch.zeros_like(case.inputs)",
        "the baseline is ignored",
        REMOVAL,
    ),
    _loo(
        "halfway to the baseline", "self.value(case)", "(self.value(case) + case.inputs) / 2", "half removed", REMOVAL
    ),
    _loo(
        "one coordinate is removed",
        "at_features(removed, case.inputs)",
        "at_features(removed, case.inputs) & (torch.arange(case.inputs.shape[-1]) < 1)",
        "a token keeps its other coordinates",
        REMOVAL,
    ),
    _loo(
        "the wrong target",
        "select_target(output, part.target)",
        "select_target(output, part.target.flip(0))",
        "the targets do not fit the rows",
        OUTPUTS,
    ),
    _loo("the largest output", "select_target(output, part.target)", "output.amax(1)", "not the target's", OUTPUTS),
    _loo("the sum of the outputs", "select_target(output, part.target)", "output.sum(1)", "not the target's", OUTPUTS),
    _loo(
        "the probability",
        "select_target(output, part.target)",
        "select_target(output.softmax(1), part.target)",
        "after a softmax of the outputs",
        OUTPUTS,
    ),
    Fault("drawn noise", "loo", Settings({"removal": GaussianNoise(draws=1, seed=0)}), "not the baseline"),
    Fault("the zero value", "loo", Settings({"removal": Replacement("zero")}), "zero, not the baseline"),
]


def _budget(name: str, function: str, old: str, new: str, why: str, escapes: str = "") -> Fault:
    return Fault(name, "budgeted_loo", Line(function, old, new), why, escapes)


BUDGETED = [
    _budget(
        "the sign of what is exact",
        f"{PROGRESS}.remove",
        "self.outputs[example] - outputs",
        "outputs - self.outputs[example]",
        "f without i − f",
    ),
    _budget(
        "half of what is exact",
        f"{PROGRESS}.remove",
        "self.outputs[example] - outputs",
        "(self.outputs[example] - outputs) / 2",
        "½ LOO",
    ),
    _budget(
        "the absolute value of what is exact",
        f"{PROGRESS}.remove",
        "self.outputs[example] - outputs",
        "(self.outputs[example] - outputs).abs()",
        "no sign",
    ),
    _budget(
        "the next feature is removed",
        f"{PROGRESS}.remove",
        "one_hot(feature, self.case.shape[1])",
        "one_hot((feature + 1) % self.case.shape[1], self.case.shape[1])",
        "off by one",
    ),
    _budget("the sign of the estimates", f"{PROGRESS}._run_gates", "(effects.sum(1), ", "(-effects.sum(1), ", "−φ"),
    _budget("half of the estimates", f"{PROGRESS}._run_gates", "(effects.sum(1), ", "(effects.sum(1) / 2, ", "½ φ"),
    _budget("absolute estimates", f"{PROGRESS}._run_gates", "(effects.sum(1), ", "(effects.abs().sum(1), ", "Σ|φ|"),
    _budget(
        "the smallest effects are removed",
        f"{PROGRESS}.__init__",
        "order.argsort(dim=1, descending=True, stable=True)",
        "order.argsort(dim=1, descending=False, stable=True)",
        "the budget goes where it does not matter",
    ),
    _budget(
        "the budget is not spent",
        "loo.budget:BudgetedLeaveOneOut.spend",
        "progress.remove(most)",
        "progress.remove(0 * most)",
        "all features are estimated",
    ),
    _budget(
        "the budget is exceeded",
        "loo.budget:BudgetedLeaveOneOut.spend",
        "progress.remove(most)",
        "progress.remove(most + 99)",
        "all features are exact, at the cost of full LOO",
    ),
    _budget(
        "one row too many",
        "loo.budget:BudgetedLeaveOneOut.spend",
        "progress.remove(most)",
        "progress.remove(most + 1)",
        "a row more than the budget",
    ),
    _budget(
        "padding attributed",
        f"{PROGRESS}.attribution",
        ".masked_fill(~self.case.unpadded, 0)",
        "",
        "values at padding",
        escapes="attention to padding is 0, and so are the effects of its gates: the change changes no number",
    ),
]


def _rollout(
    name: str, old: str, new: str, why: str, function: str = "attention_rollout:AttentionRollout.attribute"
) -> Fault:
    return Fault(name, "attention_rollout", Line(function, old, new), why)


ROLLOUT = [
    Fault("no residual", "attention_rollout", Settings({"residual": False}), "A, not ½A + ½I"),
    Fault("the wrong row", "attention_rollout", Settings({"row": 1}), "row 1, whatever row the output is read at"),
    _rollout("the layers transposed", "else weights) @", "else weights).mT @", "Aᵀ: who is attended by whom"),
    _rollout("the layers in reverse", "in attention.weights:", "in reversed(attention.weights):", "A⁽¹⁾ A⁽²⁾ …"),
    _rollout(
        "the first layer alone", "in attention.weights:", "in attention.weights[:1]:", "the other layers are forgotten"
    ),
    _rollout(
        "the last layer alone", "in attention.weights:", "in attention.weights[-1:]:", "the other layers are forgotten"
    ),
    _rollout("twice the residual", "(weights + identity) / 2", "(weights + 2 * identity) / 3", "another mixture"),
    _rollout("not halved", "(weights + identity) / 2", "(weights + identity)", "the rows do not sum to 1"),
    _rollout(
        "1 % of the residual missing",
        "(weights + identity) / 2",
        "(1.01 * weights + 0.99 * identity) / 2",
        "another mixture",
    ),
    _rollout(
        "a column in place of the row",
        "share.unsqueeze(1) @ rollout",
        "share.unsqueeze(1) @ rollout.mT",
        "the column of the position",
    ),
    _rollout(
        "the mean over rows",
        "read_rows[:, 0, positions - case.shape[1] :]",
        "rollout.mean(1)[:, positions - case.shape[1] :]",
        "every row, not the one that is read",
    ),
    _rollout("the last row", "read_rows[:, 0,", "rollout[:, -1,", "always the last position"),
    _rollout("the largest head", ".mean(1)", ".amax(1)", "max over heads", "attention_rollout:HeadMeans.attend"),
    _rollout(
        "the first head", ".mean(1)", "[:, 0]", "the other heads are forgotten", "attention_rollout:HeadMeans.attend"
    ),
    _rollout(
        "the sum over heads",
        ".mean(1)",
        ".sum(1)",
        "rows sum to the number of heads",
        "attention_rollout:HeadMeans.attend",
    ),
    _rollout(
        "weights before the softmax",
        "self.note(self.last_weights.detach()",
        "self.note(logits.detach()",
        "logits, not weights",
        "attention_rollout:HeadMeans.attend",
    ),
]

FAULTS = [*LEAVE_ONE_OUT, *BUDGETED, *ROLLOUT]
