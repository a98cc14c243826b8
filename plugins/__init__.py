"""How packages bring backends and more to Headstock. Importing this imports neither torch nor any plugin."""

from .environment import VARIABLES, Variable, check_environment
from .guard import Failure, Guard
from .hooks import Hooks
from .hookspecs import hookimpl
from .names import ALIASES, AUTO
from .offer import Offer
from .ops import Ops
from .placement import Placement
from .plugins import Plugins, load_plugins
from .record import PluginRecord
from .registry import BackendRegistry
from .switches import Switches, read_switches

__all__ = [
    "ALIASES",
    "AUTO",
    "VARIABLES",
    "BackendRegistry",
    "Failure",
    "Guard",
    "Hooks",
    "Offer",
    "Ops",
    "Placement",
    "PluginRecord",
    "Plugins",
    "Switches",
    "Variable",
    "check_environment",
    "hookimpl",
    "load_plugins",
    "read_switches",
]
