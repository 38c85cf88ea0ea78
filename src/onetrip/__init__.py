"""onetrip: an operator-fusion compiler for PyTorch.

The names below are the whole public interface; each lives in `onetrip.api` and is imported at its
first use, so that the command line and the planner's data stay usable without loading torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["compile", "explain", "load_plan", "plan", "verify"]

if TYPE_CHECKING:
    from onetrip.api import compile, explain, load_plan, plan, verify


def __getattr__(name: str) -> Any:
    if name in __all__:
        from onetrip import api

        return getattr(api, name)
    raise AttributeError(f"module 'onetrip' has no attribute {name!r}; it has {', '.join(__all__)}")
