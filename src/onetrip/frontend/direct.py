"""Calls of a compiled function past what torch.compile wraps around them.

    seen = {name: value of every argument and free variable}
    guards(seen) -> program(arguments)          what Dynamo made, as it made it
    else -> torch.compile's own callable

A call through torch.compile saves and restores a dozen states of the process, which takes longer
than three small kernels. They matter to a call that compiles, or that leaves a graph and enters
another. A call that does neither needs Dynamo's guards, evaluated by Dynamo's own checker, and the
program that Dynamo wrote for them; that is all that runs here. Whatever else may hold is left to
torch.compile: tracing of any kind, a stance, an outer compiled function, processes that agree on
guards, a program of several graphs. It must not know graphs or kernels.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch._C._dynamo import eval_frame as cached
from torch._dynamo import eval_frame
from torch.autograd import profiler
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.modules.module import _has_any_global_hook

_GRAPH = "__compiled_fn"
"""How the names of Dynamo's graphs begin."""

_MARKS = "__import_torch_dot__dynamo_dot_utils"
"""How Dynamo names the module of the two calls by which it marks a profile."""

_WHOLE = "_onetrip_whole"
"""Attribute of a compiled graph: whether the function it was captured from ends with it."""

_INNER = "_torchdynamo_orig_callable"
_WRAPPER = "_torchdynamo_wrapper_id"
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


class _NoMarks:
    """That module where nothing profiles."""

    record_pregraph_bytecode_enter = record_pregraph_bytecode_exit = bool

    def __getattr__(self, name: str) -> Any:
        return getattr(torch._dynamo.utils, name)


_NO_MARKS = _NoMarks()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One program of Dynamo's with what it holds for.

    Attributes:
        owner: Dynamo's own record; its `cache_entry` is None once the program is forgotten.
        guards: (values by name) -> whether the program holds for them.
    """

    owner: Any
    guards: Callable[[dict[str, Any]], bool]
    program: Callable[..., Any]


@dataclass(frozen=True)
class _Callee:
    """The function whose frame Dynamo compiled, as a call reaches it.

    Attributes:
        first: what stands before the caller's arguments.
        unchanged: whether a call still reaches it, and nothing but it.
    """

    function: FunctionType
    first: tuple[Any, ...]
    unchanged: Callable[[], bool]


def directly(made: Callable[..., Any], backend: object) -> Callable[..., Any]:
    """`made` with a short way for calls whose guards hold.

    Args:
        made: what torch.compile answered; where it is neither that of a function nor that of a
            module, it comes back as it is.
        backend: what Dynamo's records of this compilation say they were compiled by.
    """
    if isinstance(made, eval_frame.OptimizedModule):
        made.forward = directly(made.forward, backend)
        return made
    callee = _callee(getattr(made, _INNER, None))
    if callee is None or not isinstance(made, FunctionType):
        return made
    region = getattr(made, "_isolate_recompiles_id", -1)
    call = _caller(made, callee, lambda e: e.backend == backend and _region(e) == region)
    call.__dict__.update(made.__dict__)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(call, name, getattr(made, name))
    setattr(call, _WRAPPER, id(call))
    eval_frame.skip_code(call.__code__)
    return call


def mark_whole(compiled: Callable[..., Any], module: torch.fx.GraphModule) -> None:
    """Notes on a compiled graph whether it is all of the function it was captured from.

    Args:
        compiled: what a backend gives Dynamo for the graph.
        module: Dynamo's graph.
    """
    reason = getattr(module, "compile_subgraph_reason", None)
    whole = reason is not None and not reason.graph_break
    with contextlib.suppress(AttributeError):  # a bound method takes no marks: the long way is kept
        setattr(getattr(compiled, _INNER, compiled), _WHOLE, whole)


def _region(entry: Any) -> int:
    return getattr(entry, "isolate_recompiles_id", -1)


# ---------------------------------------------------------------- whom a call reaches


def _callee(compiled: Any) -> _Callee | None:
    if isinstance(compiled, FunctionType) and _is_plain(compiled.__code__):
        return _Callee(compiled, (), _same(compiled))
    is_call = getattr(compiled, "__func__", None) is torch.nn.Module._wrapped_call_impl
    return _callee_of_module(compiled.__self__) if is_call else None


def _callee_of_module(module: torch.nn.Module) -> _Callee | None:
    """A module's call is that of `forward`, where no hook and no other method of it stands
    between."""
    kind, forward = type(module), type(module).forward
    if not isinstance(forward, FunctionType) or not _is_plain(forward.__code__):
        return None
    if not isinstance(module.forward, MethodType):
        return None
    own, same, (a, b, c, d) = module.__dict__, _same(forward), _HOOKS

    def unchanged() -> bool:
        return (
            kind.forward is forward
            and type(module) is kind
            and "forward" not in own
            and not (own[a] or own[b] or own[c] or own[d])
            and module._compiled_call_impl is None
            and kind._call_impl is torch.nn.Module._call_impl
            and not _has_any_global_hook()
            and same()
        )

    return _Callee(forward, (module,), unchanged)


def _is_plain(code: CodeType) -> bool:
    odd = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not code.co_flags & odd


def _same(function: FunctionType) -> Callable[[], bool]:
    """Whether a function is what it was: what binds its arguments is made once."""
    code, defaults, named = function.__code__, function.__defaults__, function.__kwdefaults__
    return lambda: (
        function.__code__ is code
        and function.__defaults__ is defaults
        and function.__kwdefaults__ is named
    )


def _undisturbed() -> Callable[[], bool]:
    """Whether nothing traces, profiles, steers or joins the calls of compiled functions now."""
    traced, faked = torch._C._is_tracing, torch._C._meta_in_tls_dispatch_include
    exported = torch.compiler.is_exporting
    joined = torch.distributed.is_initialized if torch.distributed.is_available() else bool

    def undisturbed() -> bool:
        stance = eval_frame._stance
        return (
            stance.stance == "default"
            and stance.backend is None
            and not profiler._is_profiler_enabled
            and not (is_fx_symbolic_tracing() or traced() or exported() or faked())
            and not joined()
        )

    return undisturbed


# ---------------------------------------------------------------- the call


def _caller(
    made: Callable[..., Any], callee: _Callee, is_ours: Callable[[Any], bool]
) -> FunctionType:
    first, unchanged = callee.first, callee.unchanged
    values = _values_of(callee.function)
    callback, undisturbed = cached.get_eval_frame_callback, _undisturbed()
    entries: tuple[_Entry, ...] | None = ()

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal entries
        found = entries
        if found is None or callback() is not None or not undisturbed():
            return made(*args, **kwargs)
        if found and unchanged():
            try:
                seen = values(*first, *args, **kwargs)
            except (TypeError, ValueError):  # no such arguments, or an empty cell
                return made(*args, **kwargs)
            for entry in found:
                if entry.owner.cache_entry is not None and entry.guards(seen):
                    return entry.program(*first, *args, **kwargs)
        result = made(*args, **kwargs)
        entries = _entries(callee.function, is_ours, found)
        return result

    return call  # type: ignore[return-value]


def _values_of(function: FunctionType) -> Callable[..., dict[str, Any]]:
    """What binds arguments as the function itself does, to the values its guards read."""
    code = function.__code__
    names, by_place, plain = code.co_varnames, code.co_argcount, _plain_arguments(code)
    heads, taken = list(names[:by_place]), list(names[:plain])
    if code.co_posonlyargcount:
        heads.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        taken.append(names[plain])
        heads.append(f"*{names[plain]}")
    elif plain > by_place:
        heads.append("*")
    heads += names[by_place:plain]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        taken.append(names[len(taken)])
        heads.append(f"**{taken[-1]}")
    scope: dict[str, Any] = {}
    pairs = [f"{name!r}: {name}" for name in taken]
    for k, (name, cell) in enumerate(_cells(function).items()):
        pairs.append(f"{name!r}: _cells_[{k}].cell_contents")
        scope.setdefault("_cells_", []).append(cell)
    exec(f"def values({', '.join(heads)}): return {{{', '.join(pairs)}}}", scope)
    values: FunctionType = scope["values"]
    values.__defaults__, values.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return values


def _plain_arguments(code: CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount


def _cells(function: FunctionType) -> dict[str, Any]:
    """A function's free variables by name."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


# ---------------------------------------------------------------- Dynamo's programs


def _entries(
    function: FunctionType, is_ours: Callable[[Any], bool], known: tuple[_Entry, ...]
) -> tuple[_Entry, ...] | None:
    """The programs that Dynamo has for a function, the last used first; None where one of them
    needs what torch.compile does around a call."""
    made = {e.owner: e for e in known}
    found = list(filter(is_ours, cached._debug_get_cache_entry_list(function.__code__)))
    entries = [made.get(e.guard_manager) or _entry(function, e) for e in found]
    return None if None in entries else tuple(e for e in entries if e is not None)


def _entry(function: FunctionType, found: Any) -> _Entry | None:
    code, cells = found.code, _cells(function)
    scope = _scope(code, function.__globals__)
    if scope is None or not cells.keys() >= {*code.co_freevars}:
        return None
    closure = tuple(cells[name] for name in code.co_freevars)
    program = FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    program.__kwdefaults__ = function.__kwdefaults__
    return _Entry(found.guard_manager, found.guard_manager.root.check, program)


def _scope(code: CodeType, names: dict[str, Any]) -> dict[str, Any] | None:
    """The globals of a program of one graph that holds the whole function; None for another one.

    Such a program takes arguments apart, calls the graph and puts results together: it calls
    nothing of the user's that Dynamo would have to see. Where it touches no other global, it gets
    the graph itself instead of a wrapper that keeps Dynamo away, and marks no profile.
    """
    touched = {str(i.argval) for i in dis.get_instructions(code) if i.opname in _GLOBALS}
    graphs = [names.get(name) for name in touched if name.startswith(_GRAPH)]
    if len(graphs) != 1 or not getattr(graphs[0], _WHOLE, False):
        return None
    own = {n: _NO_MARKS if n == _MARKS else getattr(names[n], _INNER, names[n])
           for n in touched if n == _MARKS or n.startswith(_GRAPH)}  # fmt: skip
    return own if touched == own.keys() else names


_GLOBALS = frozenset(n for n in dis.opmap if n.endswith(("_GLOBAL", "_NAME")))


__all__ = ["directly", "mark_whole"]
