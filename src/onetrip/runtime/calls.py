"""Calls from Python into a built library: as a builtin function, where the interpreter allows it.

A foreign call through ctypes costs more than a small kernel. The interpreter's stable interface has
what a builtin needs, so one short library serves all: its function calls the address that is the
builtin's `self`. An interpreter that does not show that interface to libraries is called through
ctypes. Knows nothing of what is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .build_cpp import CppUnit

Function = Callable[..., int]
"""(pointer, ..., threads) -> error code, 0 for none; without the interpreter's lock meanwhile."""

MOST_POINTERS = 64
"""Pointers that a call takes one by one; more are in a table."""

CALL = CppUnit("the call of kernels", f"""
constexpr long most = {MOST_POINTERS};""" + """
struct object;
extern "C" {
#define OT_PYTHON __attribute__((weak))
void* PyLong_AsVoidPtr(object*) OT_PYTHON;
object* PyLong_FromLong(long) OT_PYTHON;
void* PyEval_SaveThread() OT_PYTHON;
void PyEval_RestoreThread(void*) OT_PYTHON;
#define OT_SHOWN __attribute__((visibility("default")))

OT_SHOWN int onetrip_callable() {
  return PyLong_AsVoidPtr && PyLong_FromLong && PyEval_SaveThread && PyEval_RestoreThread;
}

typedef int (*function)(void* const*, void*, int);

static object* called(object* self, void* const* pointers, void* sizes, object* threads) {
  function f = (function)PyLong_AsVoidPtr(self);
  int team = (int)(long)PyLong_AsVoidPtr(threads);
  void* state = PyEval_SaveThread();
  int code = f(pointers, sizes, team);
  PyEval_RestoreThread(state);
  return PyLong_FromLong(code);
}

// (table of pointers, table of sizes, threads)
OT_SHOWN object* onetrip_call(object* self, object* const* arguments, long) {
  void* const* pointers = (void* const*)PyLong_AsVoidPtr(arguments[0]);
  return called(self, pointers, PyLong_AsVoidPtr(arguments[1]), arguments[2]);
}

// (pointer, ..., threads)
OT_SHOWN object* onetrip_call_each(object* self, object* const* arguments, long count) {
  void* pointers[most];
  for (long i = 0; i < count - 1; i++) pointers[i] = PyLong_AsVoidPtr(arguments[i]);
  return called(self, pointers, nullptr, arguments[count - 1]);
}
}
""")  # fmt: skip
"""The library behind the builtins."""

_FASTCALL = 0x0080
_lasting: list[object] = []


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def caller(function: Any, library: ctypes.CDLL) -> Function:
    """A function of a loaded library as something cheap to call.

    Args:
        function: int f(void* const* pointers, const int64_t* sizes, int threads).
        library: what `CALL` was built to.
    """
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    function.restype = ctypes.c_int
    if not library.onetrip_callable():
        plain: Function = function
        return plain
    return _builtin(library.onetrip_call, function)


def caller_of_each(function: Any, library: ctypes.CDLL) -> Function | None:
    """As `caller`, of (pointer, ..., threads) with fewer than MOST_POINTERS pointers.

    None where the interpreter does not allow it.
    """
    if not library.onetrip_callable():
        return None
    return _builtin(library.onetrip_call_each, function)


def _builtin(call: Any, function: Any) -> Function:
    method = _Method(b"segment", ctypes.cast(call, ctypes.c_void_p).value, _FASTCALL, None)
    _lasting.append(method)  # a builtin keeps no reference to its definition
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = (ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p)
    make.restype = ctypes.py_object
    made: Function = make(method, ctypes.cast(function, ctypes.c_void_p).value, None)
    return made
