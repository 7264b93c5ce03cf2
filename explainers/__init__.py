"""Who explains: Leave-One-Out, gradients, Attention Rollout and Layer-wise Relevance Propagation."""

from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo import LeaveOneOut
from faithcheck.explainers.lrp import CPLRP, LRP, AttnLRP, EpsilonLRP
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported
from faithcheck.explainers.registry import builtin_explainers, load_explainer
from faithcheck.explainers.rollout import AttentionRollout

__all__ = [
    "CPLRP",
    "LRP",
    "AttentionRollout",
    "AttnLRP",
    "EpsilonLRP",
    "Explainer",
    "GradientTimesInput",
    "IntegratedGradients",
    "InvalidAttribution",
    "LeaveOneOut",
    "Unsupported",
    "builtin_explainers",
    "load_explainer",
]
