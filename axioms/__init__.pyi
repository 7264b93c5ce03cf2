from .engine.check import Check as Check
from .engine.check import Settings as Settings
from .engine.check_explainer import check_explainer as check_explainer
from .engine.plan import plan as plan
from .engine.record import Record as Record
from .engine.registry import AXIOMS as AXIOMS
from .engine.verdicts import Measurement as Measurement
from .engine.verdicts import settle as settle
