"""The block suite: one row a program, with its sizes by device. A table and nothing else."""

from __future__ import annotations

from onetrip.bench import programs as p
from onetrip.bench.table import Row

ONLY_F32 = {"cuda": "f32", "cpu": "f32"}


def sizes(
    cuda: tuple[int, ...], cpu: tuple[int, ...], tiny: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """The sizes of a row by device, and those that tests use."""
    return {"cuda": cuda, "cpu": cpu, "tiny": tiny}


def product(rows: int, inner: int, *columns: int) -> int:
    """FLOPs of products of one (rows, inner) operand: a multiply and an add each."""
    return 2 * rows * inner * sum(columns)


def attention(batch: int, heads: int, length: int, width: int) -> int:
    """FLOPs of both products of attention, every score counted."""
    return 4 * batch * heads * length * length * width


BLOCKS: tuple[Row, ...] = (
    Row("chain8", "x*s+b, gelu, *1.5, tanh, +x, relu, square", p.make_chain8,
        sizes((8, 4096, 4096), (2048, 4096), (3, 40))),
    Row("bias_dropout_norm", "layer_norm(dropout(x+b, 0.1)), training", p.make_bias_dropout_norm,
        sizes((8, 4096, 4096), (2048, 4096), (3, 40)), random=True),
    Row("matmul_bias_gelu_add_norm", "layer_norm(gelu(x@w+b) + r)",
        p.make_matmul_bias_gelu_add_norm,
        sizes((8192, 4096, 4096), (256, 512, 512), (5, 8, 24)), flops=product),
    Row("swiglu", "silu(x@g) * (x@u)", p.make_swiglu,
        sizes((8192, 4096, 14336), (256, 512, 1024), (5, 8, 24)),
        flops=lambda rows, inner, columns: product(rows, inner, columns, columns)),
    Row("rmsnorm_qkv", "three products of one normalized input", p.make_rmsnorm_qkv,
        sizes((8192, 4096, 4096, 1024), (256, 512, 512, 128), (5, 8, 24, 8)),
        flops=lambda rows, inner, query, key: product(rows, inner, query, key, key)),
    Row("rmsnorm", "RMS normalization", p.make_rmsnorm,
        sizes((16384, 4096), (2048, 4096), (5, 40))),
    Row("add_rmsnorm", "residual sum and its RMS normalization, both kept", p.make_add_rmsnorm,
        sizes((16384, 4096), (2048, 2048), (5, 40))),
    Row("rmsnorm_fp8_quant", "RMS normalization to float8, a scale a row",
        p.make_rmsnorm_fp8_quant, sizes((16384, 8192), (1024, 4096), (5, 40))),
    Row("softmax", "softmax of rows", p.make_softmax,
        sizes((16384, 4096), (1024, 8192), (5, 40))),
    Row("softmax_bigrow", "softmax of very long rows", p.make_softmax,
        sizes((2048, 131072), (32, 131072), (2, 900))),
    Row("cross_entropy", "mean cross-entropy, forward", p.make_cross_entropy,
        sizes((8192, 128256), (256, 16032), (5, 40))),
    Row("linear_cross_entropy", "cross-entropy of a product, forward",
        p.make_linear_cross_entropy,
        sizes((8192, 4096, 128256), (128, 256, 16032), (5, 8, 40)), flops=product),
    Row("attention_causal", "attention spelled out, boolean mask", p.make_attention_causal,
        sizes((4, 32, 2048, 128), (1, 8, 256, 64), (1, 2, 12, 8)),
        # Half of the scores are masked and need not be computed.
        flops=lambda *size: attention(*size) // 2),
    Row("attention_softcap", "attention with capped scores and a bias", p.make_attention_softcap,
        sizes((4, 32, 2048, 128), (1, 8, 256, 64), (1, 2, 12, 8)), flops=attention),
    Row("rope_qk", "rotary embedding of queries and keys", p.make_rope_qk,
        sizes((8, 4096, 32, 8, 128), (2, 512, 16, 4, 64), (2, 3, 4, 2, 8))),
    Row("groupnorm_silu", "silu(group_norm(x))", p.make_groupnorm_silu,
        sizes((16, 320, 64, 32), (2, 320, 32, 32), (2, 8, 4, 4))),
    Row("conv_bn_relu", "relu(batch_norm(conv3x3(x))), evaluation, channels last",
        p.make_conv_bn_relu, sizes((128, 64, 56), (4, 64, 28), (2, 4, 6)),
        flops=lambda batch, channels, height: 18 * batch * (channels * height) ** 2),
    Row("siblings", "relu, sigmoid and tanh of one input", p.make_siblings,
        sizes((8, 4096, 4096), (2048, 4096), (3, 40))),
    Row("siblings_small", "silu(x)*2 of many small inputs", p.make_siblings_small,
        sizes((24, 64, 1024), (24, 64, 256), (3, 4, 8))),
    Row("row_and_col_reduce", "fp32 sums of rows and of columns", p.make_row_and_col_reduce,
        sizes((32768, 4096), (4096, 4096), (6, 40))),
    Row("col_sum", "fp32 sums of columns", p.make_col_sum,
        sizes((131072, 1024), (8192, 1024), (60, 8))),
    Row("full_reduce", "sum of squares and maximum of a whole tensor", p.make_full_reduce,
        sizes((8, 4096, 4096), (4096, 4096), (3, 40))),
    Row("reductions", "sum, maximum and sums of columns", p.make_reductions,
        sizes((32768, 4096), (4096, 4096), (6, 40))),
    Row("transpose_add", "relu(x + y.T)", p.make_transpose_add,
        sizes((8192,), (2048,), (24,))),
    Row("tiny", "sigmoid(x*2+1)*x on 64 elements", p.make_tiny,
        sizes((64,), (64,), (64,))),
    Row("layernorm_training", "layer_norm, forward and backward", p.make_layernorm_training,
        sizes((16384, 4096), (1024, 2048), (5, 40))),
    Row("gelu_glu_training", "gelu(a)*b, forward and backward", p.make_gelu_glu_training,
        sizes((16384, 8192), (1024, 4096), (5, 40))),
    Row("batchnorm_train_relu", "relu(batch_norm(x)), the batch's statistics, channels last",
        p.make_batchnorm_train_relu, sizes((128, 256, 28), (8, 128, 28), (3, 4, 5)), rereads=1),
    Row("adamw_small", "one AdamW step of many small matrices, in place", p.make_adamw_small,
        sizes((60, 512), (12, 256), (2, 8)), dtypes=ONLY_F32),
    Row("decode_layer", "one decoder layer on one new token, GQA, SwiGLU", p.make_decode_layer,
        sizes((8, 2048, 32, 8, 5632, 512), (2, 512, 8, 2, 1024, 64), (2, 16, 4, 2, 24, 6))),
)  # fmt: skip
