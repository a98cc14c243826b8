"""Which backend computes which layer, on which device, and why."""

from .devices import find_device, probe
from .explanation import Candidate, Explanation, LayerGroup, explain
from .figures import Estimate, ModelFigures, estimate
from .listing import BackendRow, Listing, PluginRow, list_backends
from .policy import Policy, Rule, Wish
from .policy_reader import read_policy
from .profiles import PROFILES, Profile, profile
from .selector import Selector
from .tuned import installed_tuning

__all__ = [
    "PROFILES",
    "BackendRow",
    "Candidate",
    "Estimate",
    "Explanation",
    "LayerGroup",
    "Listing",
    "ModelFigures",
    "PluginRow",
    "Policy",
    "Profile",
    "Rule",
    "Selector",
    "Wish",
    "estimate",
    "explain",
    "find_device",
    "installed_tuning",
    "list_backends",
    "probe",
    "profile",
    "read_policy",
]
