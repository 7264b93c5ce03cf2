"""Built-in explainers that do not yet bear the decorator `builtin`; delete this file as soon as all of them do."""

from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.deeplift import DeepLiftRescale
from faithcheck.explainers.gates.mask_gates import FiniteMaskGate, GroupedMaskGate, MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.engine import CPLRP, AttnLRP, EpsilonLRP

for make in (
    LeaveOneOut,
    GradientTimesInput,
    IntegratedGradients,
    AttentionRollout,
    EpsilonLRP,
    AttnLRP,
    CPLRP,
    DeepLiftRescale,
    BlockwiseLRP,
    MaskGate,
    FiniteMaskGate,
    ReadoutGate,
    GroupedMaskGate,
    BudgetedLeaveOneOut,
):
    builtin(make)
