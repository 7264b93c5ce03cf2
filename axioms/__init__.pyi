from .measure.record import Record as Record
from .measure.registry import AXIOMS as AXIOMS
from .measure.verdicts import Measurement as Measurement
from .measure.verdicts import settle as settle
