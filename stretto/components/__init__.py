"""The ready-made components, the parts that apps are composed of."""

from stretto.apps.components import *  # noqa: F403
from stretto.apps.components import __all__ as __all__
