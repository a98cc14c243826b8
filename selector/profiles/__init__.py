"""Devices that need not be here: the figures of cards and CPUs, as their makers state them."""

from .lookup import PROFILES, profile, profile_of
from .value import Profile

__all__ = ["PROFILES", "Profile", "profile", "profile_of"]
