"""Which backend computes which layer, on which device, and why."""

from .estimate import Estimate, ModelFigures, estimate
from .explain import Candidate, Explanation, LayerGroup, explain
from .listing import BackendRow, Listing, PluginRow, list_backends
from .manifest import check_manifest, manifest, summary
from .policy import Policy, Rule, Wish
from .policy_reader import read_policy
from .probe import find_device, probe
from .profiles import PROFILES, Profile, profile
from .selector import Selector

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
    "check_manifest",
    "estimate",
    "explain",
    "find_device",
    "list_backends",
    "manifest",
    "probe",
    "profile",
    "read_policy",
    "summary",
]
