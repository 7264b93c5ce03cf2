"""The explainers of other libraries that run in this process."""

from faithcheck.explainers.peers import autolrp, captum, lxt, shap, zennit
from faithcheck.explainers.peers.peer import Peer


def every_peer():
    """One explainer of each class of peers, whether its library is installed or not; imports no library."""
    modules = (captum, autolrp, shap, zennit, lxt)
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return [peer() for peer in classes if issubclass(peer, Peer) and "name" in vars(peer)]
