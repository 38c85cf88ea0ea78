"""onetrip: an operator-fusion compiler for PyTorch.

The names below are the whole public interface; each lives in `onetrip.api` and is imported at its
first use, so that the command line and the planner's data stay usable without loading torch.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["barrier", "compile", "explain", "fuse", "kernels", "load_plan", "plan", "verify"]

if TYPE_CHECKING:
    from onetrip.api import barrier, compile, explain, fuse, kernels, load_plan, plan, verify


def __getattr__(name: str) -> Any:
    if name in __all__:
        from onetrip import api

        return getattr(api, name)
    raise AttributeError(f"module 'onetrip' has no attribute {name!r}; it has {', '.join(__all__)}")


class _Package(ModuleType):
    """This package, with `plan` always the function.

    Importing the folder `onetrip/plan` binds the package's attribute of that name to the folder,
    and `onetrip.plan(model, args)` would then call a module.
    """

    @property
    def plan(self) -> Any:
        return __getattr__("plan")

    @plan.setter
    def plan(self, folder: ModuleType) -> None:
        """The import system offers the folder here; `sys.modules` is where it is found."""


sys.modules[__name__].__class__ = _Package
