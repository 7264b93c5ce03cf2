"""Who explains: Leave-One-Out, gradients, Attention Rollout, Layer-wise Relevance Propagation and DeepLIFT."""

from faithcheck.explainers.deeplift import DeepLiftRescale
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
    "DeepLiftRescale",
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
