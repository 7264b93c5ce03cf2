"""Who explains: Leave-One-Out, gradients, Attention Rollout, Layer-wise Relevance Propagation and DeepLIFT."""

from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.deeplift import DeepLiftRescale
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.epsilon_lrp import EpsilonLRP
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported
from faithcheck.explainers.registry import builtin_explainers, load_explainer

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
