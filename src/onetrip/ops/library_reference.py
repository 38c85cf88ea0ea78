"""Numpy references of library calls that take more than a line. f64 arrays in, f64 arrays out."""

from __future__ import annotations

from itertools import product as every
from typing import Any

import numpy as np

from .schema import Attrs


def pair(value: Any, rank: int) -> tuple[Any, ...]:
    """A window attribute for each of `rank` dimensions; one number stands for all."""
    listed = tuple(value) if isinstance(value, tuple | list) else (value,)
    return listed if len(listed) == rank else listed * rank


def _taps(x: Any, w: Any, out: tuple[int, ...], at: Attrs) -> Any:
    """(position in the kernel, slices of the padded input that meet it) for every tap."""
    rank = x.ndim - 2
    stride, dilation = (pair(at[k], rank) for k in ("stride", "dilation"))
    for tap in every(*(range(n) for n in w.shape[2:])):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        cut = tuple(
            slice(b, b + s * (n - 1) + 1, s) for b, s, n in zip(starts, stride, out, strict=True)
        )
        yield tap, (slice(None), slice(None), *cut)


def _padded(x: Any, at: Attrs) -> tuple[Any, tuple[Any, ...]]:
    pad = pair(at["padding"], x.ndim - 2)
    wide = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    inner = tuple(slice(p, p + n) for p, n in zip(pad, x.shape[2:], strict=True))
    return wide, (slice(None), slice(None), *inner)


def _grouped(a: Any, groups: int, axis: int) -> Any:
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, *a.shape[axis + 1 :])


def _sizes(x: Any, w: Any, at: Attrs) -> tuple[int, ...]:
    rank = x.ndim - 2
    stride, pad, dilation = (pair(at[k], rank) for k in ("stride", "padding", "dilation"))
    rows = zip(x.shape[2:], w.shape[2:], stride, pad, dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows)


def convolution(x: Any, w: Any, *rest: Any) -> Any:
    """Sum over taps of weight times shifted input; not for transposed ones."""
    *bias, at = rest
    groups, sizes = at["groups"], _sizes(x, w, at)
    wide, _ = _padded(x, at)
    weight = _grouped(w, groups, 0)
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *sizes))
    for tap, cut in _taps(x, w, sizes, at):
        part = _grouped(wide[cut], groups, 1)
        y += np.einsum("ngc...,goc->ngo...", part, weight[(..., *tap)])
    y = y.reshape(x.shape[0], w.shape[0], *sizes)
    return y + bias[0].reshape(1, -1, *(1,) * len(sizes)) if bias else y


def convolution_backward(g: Any, x: Any, w: Any, at: Attrs) -> Any:
    """Gradients of input, weight and bias."""
    groups, sizes = at["groups"], g.shape[2:]
    wide, inner = _padded(x, at)
    dwide, dw = np.zeros_like(wide), np.zeros(_grouped(w, groups, 0).shape)
    weight, dy = _grouped(w, groups, 0), _grouped(g.reshape(*g.shape[:2], -1), groups, 1)
    for tap, cut in _taps(x, w, sizes, at):
        part = _grouped(wide[cut].reshape(*x.shape[:2], -1), groups, 1)
        dw[(..., *tap)] += np.einsum("ngci,ngoi->goc", part, dy)
        back = np.einsum("ngoi,goc->ngci", dy, weight[(..., *tap)])
        dwide[cut] += back.reshape(wide[cut].shape)
    axes = (0, *range(2, g.ndim))
    return dwide[inner], dw.reshape(w.shape), g.sum(axes)


def _scores(q: Any, k: Any, mask: Any, at: Attrs) -> tuple[Any, float]:
    scale = at.get("scale")
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ np.swapaxes(k, -1, -2) * factor
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if at.get("is_causal"):
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), factor


def _repeated(q: Any, t: Any, at: Attrs) -> Any:
    return np.repeat(t, q.shape[-3] // t.shape[-3], -3) if at.get("enable_gqa") else t


def attention(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """softmax(q k^T scale + mask) v."""
    *mask, at = rest
    p, _ = _scores(q, _repeated(q, k, at), mask[0] if mask else None, at)
    return p @ _repeated(q, v, at)


def attention_saving(*operands: Any) -> Any:
    """The same, and an empty token."""
    return attention(*operands), np.zeros(0, np.uint8)


def attention_backward(g: Any, q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """Gradients of query, key, value, and of an additive mask when it is asked for."""
    at = rest[-1]
    mask = rest[:1] if at.get("has_attn_mask") else ()
    wide_k, wide_v = _repeated(q, k, at), _repeated(q, v, at)
    p, factor = _scores(q, wide_k, mask[0] if mask else None, at)
    dp = g @ np.swapaxes(wide_v, -1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    dq = ds @ wide_k * factor
    dk = np.swapaxes(ds, -1, -2) @ q * factor
    dv = np.swapaxes(p, -1, -2) @ g
    found = [dq, *(_summed(d, t) for d, t in ((dk, k), (dv, v)))]
    if at.get("mask_gradient") and mask:
        found.append(_unbroadcast(ds, mask[0].shape))
    return tuple(found)


def _summed(d: Any, t: Any) -> Any:
    """The gradient of a head that several query heads share."""
    if d.shape == t.shape:
        return d
    groups = d.shape[-3] // t.shape[-3]
    return d.reshape(*d.shape[:-3], t.shape[-3], groups, *d.shape[-2:]).sum(-3)


def _unbroadcast(d: Any, shape: tuple[int, ...]) -> Any:
    d = d.sum(tuple(range(d.ndim - len(shape))))
    axes = tuple(k for k, n in enumerate(shape) if n == 1)
    return d.sum(axes, keepdims=True)


def embedding_backward(g: Any, index: Any, at: Attrs) -> Any:
    """Rows of the gradient added where the index says, but for the padding row."""
    dw = np.zeros((at["num_weights"], g.shape[-1]))
    flat, rows = index.reshape(-1), g.reshape(-1, g.shape[-1])
    kept = flat != at["padding_idx"]
    np.add.at(dw, flat[kept], rows[kept])
    return dw
