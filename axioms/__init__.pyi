from .measure.measurement import Measurement as Measurement
from .measure.record import Record as Record
from .measure.registry import AXIOMS as AXIOMS
from .measure.settling import settle as settle
