"""What an environment takes and gives, as schemas that two sides can compare.

`contract_of` makes a contract of types, `first_difference` says where two differ, and `first_misfit` where a client
and a server cannot understand each other though they may differ otherwise.
"""

from __future__ import annotations

from .contract import PARTS, Contract, contract_of
from .difference import Difference, differences, first_difference
from .fit import first_misfit
from .schema import schema_of

__all__ = [
    "PARTS",
    "Contract",
    "Difference",
    "contract_of",
    "differences",
    "first_difference",
    "first_misfit",
    "schema_of",
]
