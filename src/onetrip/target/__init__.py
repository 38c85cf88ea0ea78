"""Floor 1: facts about chips, one data file each. Must not know what the figures are used for."""

from onetrip.target.load import RATE_UNIT, facts_of, load, names, told
from onetrip.target.model import Cores, Fact, Target, Unit
from onetrip.target.profile import profile

__all__ = [
    "RATE_UNIT", "Cores", "Fact", "Target", "Unit", "facts_of", "load", "names", "profile", "told",
]  # fmt: skip
