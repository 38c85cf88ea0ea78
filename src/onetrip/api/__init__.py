"""Floor 9: the public functions, composed of the floors below. Must not know the command line."""

from ..frontend.annotations import barrier, fuse
from .backend import backend
from .explain import explain
from .kernels import kernels
from .models import load_model
from .plans import compile, load_plan, plan
from .verify import verify

__all__ = [
    "backend",
    "barrier",
    "compile",
    "explain",
    "fuse",
    "kernels",
    "load_model",
    "load_plan",
    "plan",
    "verify",
]
