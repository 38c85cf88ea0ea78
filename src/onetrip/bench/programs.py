"""The programs of the block suite, written as a user would write them.

Each `make_*` takes a `Draw` and the row's sizes and returns the `Work`. Knows nothing of which
sizes are measured.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from torch import Tensor

from onetrip.bench.table import Draw, Work

EPS = 1e-6


def widened(x: Tensor) -> Tensor:
    """float32, unless the tensor is wider: so that the float64 reference stays one."""
    return x if x.dtype == torch.float64 else x.float()


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in `dtype`, unless it is float64: the reference is not rounded."""
    return x if x.dtype == torch.float64 else x.to(dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square normalization of rows as Llama spells it."""
    wide = widened(x)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * scaled.to(x.dtype)


def make_chain8(draw: Draw, *shape: int) -> Work:
    """Eight pointwise operators; sizes: the shape."""

    def fn(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        y = F.gelu(x * scale + bias) * 1.5
        return torch.square(torch.relu(torch.tanh(y) + x))

    return Work(fn, (draw.normal(*shape), draw.normal(shape[-1]), draw.normal(shape[-1])))


def make_bias_dropout_norm(draw: Draw, *shape: int) -> Work:
    """layer_norm(dropout(x + bias)) in training mode; sizes: the shape."""
    width = shape[-1]

    def fn(x: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        dropped = F.dropout(x + bias, 0.1, training=True)
        return F.layer_norm(dropped, (width,), weight, shift)

    return Work(fn, (draw.normal(*shape), *(draw.normal(width) for _ in range(3))))


def make_matmul_bias_gelu_add_norm(draw: Draw, rows: int, inner: int, columns: int) -> Work:
    """layer_norm(gelu(x @ w.T + b) + residual); sizes: rows, inner, columns."""

    def fn(x: Tensor, w: Tensor, b: Tensor, residual: Tensor, g: Tensor, h: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(F.linear(x, w, b)) + residual, (columns,), g, h)

    vectors = tuple(draw.normal(columns) for _ in range(3))
    x, w = draw.normal(rows, inner), draw.weight(columns, inner)
    return Work(fn, (x, w, vectors[0], draw.normal(rows, columns), *vectors[1:]))


def make_swiglu(draw: Draw, rows: int, inner: int, columns: int) -> Work:
    """silu(x @ gate.T) * (x @ up.T); sizes: rows, inner, columns of each product."""

    def fn(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    weights = (draw.weight(columns, inner), draw.weight(columns, inner))
    return Work(fn, (draw.normal(rows, inner), *weights))


def make_rmsnorm_qkv(draw: Draw, rows: int, inner: int, query: int, key: int) -> Work:
    """Three products of one normalized input; sizes: rows, inner, query and key columns."""

    def fn(x: Tensor, g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        y = rms_norm(x, g)
        return F.linear(y, q), F.linear(y, k), F.linear(y, v)

    weights = (draw.weight(n, inner) for n in (query, key, key))
    return Work(fn, (draw.normal(rows, inner), draw.normal(inner), *weights))


def make_rmsnorm(draw: Draw, rows: int, width: int) -> Work:
    """RMS normalization; sizes: rows, width."""
    return Work(rms_norm, (draw.normal(rows, width), draw.normal(width)))


def make_add_rmsnorm(draw: Draw, rows: int, width: int) -> Work:
    """Residual sum and its RMS normalization, both kept; sizes: rows, width."""

    def fn(x: Tensor, residual: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return total, rms_norm(total, g)

    return Work(fn, (draw.normal(rows, width), draw.normal(rows, width), draw.normal(width)))


def make_rmsnorm_fp8_quant(draw: Draw, rows: int, width: int) -> Work:
    """RMS normalization quantized to float8 with one scale a row; sizes: rows, width."""
    largest = torch.finfo(torch.float8_e4m3fn).max

    def fn(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        y = widened(rms_norm(x, g))
        scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest
        return narrowed(y / scale, torch.float8_e4m3fn), scale

    return Work(fn, (draw.normal(rows, width), draw.normal(width)))


def make_softmax(draw: Draw, rows: int, width: int) -> Work:
    """Softmax of rows; sizes: rows, width."""
    return Work(lambda x: torch.softmax(x, -1), (draw.normal(rows, width),))


def make_cross_entropy(draw: Draw, rows: int, classes: int) -> Work:
    """Mean cross-entropy, forward; sizes: rows, classes."""

    def fn(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(widened(logits), labels)

    return Work(fn, (draw.normal(rows, classes), draw.integers(classes, rows)))


def make_linear_cross_entropy(draw: Draw, rows: int, inner: int, classes: int) -> Work:
    """Cross-entropy of a product, forward; sizes: rows, inner, classes."""

    def fn(x: Tensor, w: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(widened(F.linear(x, w)), labels)

    return Work(
        fn, (draw.normal(rows, inner), draw.weight(classes, inner), draw.integers(classes, rows))
    )


def make_attention_causal(draw: Draw, batch: int, heads: int, length: int, width: int) -> Work:
    """Attention spelled out, with a boolean mask; sizes: batch, heads, length, width."""

    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2)) * width**-0.5
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v

    qkv = (draw.normal(batch, heads, length, width) for _ in range(3))
    mask = torch.ones(length, length, dtype=torch.bool, device=draw.device).tril()
    return Work(fn, (*qkv, mask))


def make_attention_softcap(draw: Draw, batch: int, heads: int, length: int, width: int) -> Work:
    """Attention with capped scores and an additive bias; sizes: batch, heads, length, width."""

    def fn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2)) * width**-0.5
        return torch.softmax(torch.tanh(scores / 30.0) * 30.0 + bias, -1) @ v

    qkv = (draw.normal(batch, heads, length, width) for _ in range(3))
    return Work(fn, (*qkv, draw.normal(heads, length, length)))


def make_rope_qk(draw: Draw, batch: int, length: int, query: int, key: int, width: int) -> Work:
    """Rotary embedding of queries and keys; sizes: batch, length, query and key heads, width."""

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * cos[:, None] + turned * sin[:, None]

    def fn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return turn(q, cos, sin), turn(k, cos, sin)

    angles = (draw.normal(length, width) for _ in range(2))
    return Work(
        fn,
        (draw.normal(batch, length, query, width), draw.normal(batch, length, key, width), *angles),
    )


def make_groupnorm_silu(draw: Draw, batch: int, channels: int, height: int, groups: int) -> Work:
    """silu(group_norm(x)) of square images; sizes: batch, channels, height, groups."""

    def fn(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, groups, g, b))

    x = draw.normal(batch, channels, height, height)
    return Work(fn, (x, draw.normal(channels), draw.normal(channels)))


def make_conv_bn_relu(draw: Draw, batch: int, channels: int, height: int) -> Work:
    """relu(batch_norm(conv3x3(x))) in evaluation, channels last; sizes: batch, channels, height."""

    def fn(x: Tensor, w: Tensor, mean: Tensor, var: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return torch.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, g, b))

    x = draw.normal(batch, channels, height, height).to(memory_format=torch.channels_last)
    w = draw.normal(channels, channels, 3, 3, scale=(9 * channels) ** -0.5)
    vectors = (draw.normal(channels), draw.positive(channels), draw.positive(channels))
    w = w.to(memory_format=torch.channels_last)
    return Work(fn, (x, w, *vectors, draw.normal(channels)))


def make_siblings(draw: Draw, *shape: int) -> Work:
    """Three functions of one input; sizes: the shape."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.relu(x), torch.sigmoid(x), torch.tanh(x)

    return Work(fn, (draw.normal(*shape),))


def make_siblings_small(draw: Draw, count: int, rows: int, width: int) -> Work:
    """The same small function of many unlike inputs; sizes: count, rows, width."""

    def fn(*xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.silu(x) * 2 for x in xs)

    return Work(fn, tuple(draw.normal(rows, width) for _ in range(count)))


def make_row_and_col_reduce(draw: Draw, rows: int, width: int) -> Work:
    """Sums of rows and of columns of one input, in float32; sizes: rows, width."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = widened(x)
        return wide.sum(1), wide.sum(0)

    return Work(fn, (draw.normal(rows, width),))


def make_col_sum(draw: Draw, rows: int, width: int) -> Work:
    """Sums of columns, in float32; sizes: rows, width."""
    return Work(lambda x: widened(x).sum(0), (draw.normal(rows, width),))


def make_full_reduce(draw: Draw, *shape: int) -> Work:
    """Sum of squares and largest element of a whole tensor; sizes: the shape."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return widened(x).square().sum(), x.amax()

    return Work(fn, (draw.normal(*shape),))


def make_reductions(draw: Draw, rows: int, width: int) -> Work:
    """Sum and maximum of all, sums of columns; sizes: rows, width."""

    def fn(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sum(), x.amax(), x.sum(0)

    return Work(fn, (draw.normal(rows, width),))


def make_transpose_add(draw: Draw, width: int) -> Work:
    """relu(x + y.T) of squares; sizes: width."""
    return Work(
        lambda x, y: torch.relu(x + y.t()), (draw.normal(width, width), draw.normal(width, width))
    )


def make_tiny(draw: Draw, count: int) -> Work:
    """Three operators on so few elements that only the call costs; sizes: elements."""
    return Work(lambda x: torch.sigmoid(x * 2 + 1) * x, (draw.normal(count),))


def make_layernorm_training(draw: Draw, rows: int, width: int) -> Work:
    """layer_norm, forward and backward; sizes: rows, width."""

    def fn(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), g, b)

    args = (draw.normal(rows, width, grad=True), *(draw.normal(width, grad=True) for _ in "gb"))
    return Work(fn, args, sources=args)


def make_gelu_glu_training(draw: Draw, rows: int, width: int) -> Work:
    """gelu(a) * b of the halves of each row, forward and backward; sizes: rows, width of both."""

    def fn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return F.gelu(a) * b

    x = draw.normal(rows, width, grad=True)
    return Work(fn, (x,), sources=(x,))


def make_batchnorm_train_relu(draw: Draw, batch: int, channels: int, height: int) -> Work:
    """relu(batch_norm(x)) by the batch's statistics; sizes: batch, channels, height."""

    def fn(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
        return torch.relu(F.batch_norm(x, None, None, g, b, training=True))

    x = draw.normal(batch, channels, height, height).to(memory_format=torch.channels_last)
    return Work(fn, (x, draw.positive(channels), draw.normal(channels)))


def make_adamw_small(draw: Draw, count: int, width: int) -> Work:
    """One AdamW step of many small matrices, in place; sizes: matrices, width."""
    rate, beta1, beta2, decay, step = 1e-3, 0.9, 0.999, 0.01, 10

    def fn(*state: Tensor) -> None:
        for i in range(count):
            p, g, m, v = (state[kind * count + i] for kind in range(4))
            p.mul_(1 - rate * decay)
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            root = (v.sqrt() / (1 - beta2**step) ** 0.5).add_(1e-8)
            p.addcdiv_(m, root, value=-rate / (1 - beta1**step))

    kinds = [[draw.normal(width, width) for _ in range(count)] for _ in range(3)]
    variances = [draw.positive(width, width) for _ in range(count)]
    written = (*range(count), *range(2 * count, 4 * count))
    return Work(fn, (*kinds[0], *kinds[1], *kinds[2], *variances), writes=written)


def make_decode_layer(
    draw: Draw, batch: int, width: int, heads: int, shared: int, inner: int, length: int
) -> Work:
    """One decoder layer on one new token.

    Sizes: batch, width, query heads, key heads, inner width, length of the cache.
    """
    head = width // heads

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        grouped = q.view(batch, shared, heads // shared, head)
        scores = torch.softmax((grouped @ k.transpose(-1, -2)) * head**-0.5, -1)
        return (scores @ v).reshape(batch, width)

    def fn(
        x: Tensor, k: Tensor, v: Tensor, norms: Tensor, qkv: Tensor, out: Tensor, gate: Tensor,
        up: Tensor, down: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        y = F.linear(rms_norm(x, norms[0]), qkv)
        q, new_k, new_v = y.split([width, shared * head, shared * head], -1)
        keys = torch.cat([k, new_k.view(batch, shared, 1, head)], 2)
        values = torch.cat([v, new_v.view(batch, shared, 1, head)], 2)
        x = x + F.linear(attend(q, keys, values), out)
        y = rms_norm(x, norms[1])
        x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
        return x, new_k, new_v

    cache = (draw.normal(batch, shared, length, head) for _ in "kv")
    weights = (
        draw.weight(width + 2 * shared * head, width),
        draw.weight(width, width),
        draw.weight(inner, width),
        draw.weight(inner, width),
        draw.weight(width, inner),
    )
    return Work(fn, (draw.normal(batch, width), *cache, draw.positive(2, width), *weights))
