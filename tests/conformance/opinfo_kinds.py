"""What an operator of PyTorch's database does, by name: the kinds that results are stated by."""

from __future__ import annotations

from typing import Any

from torch.testing._internal.opinfo import core

BY_CLASS = {
    core.UnaryUfuncInfo: "elementwise",
    core.BinaryUfuncInfo: "elementwise",
    core.ReductionOpInfo: "reduction",
    core.SpectralFuncInfo: "spectral",
    core.ShapeFuncInfo: "movement",
}
NAMES: dict[str, str] = {
    "elementwise": """
        addcdiv addcmul bool bfloat16 byte char double float half int long short
        clamp clone contiguous fill fmod lerp masked_fill nan_to_num to where zero_ isclose
        isin heaviside ldexp float_power rsub frexp positive xlogy conj_physical
        nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu
        nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
        nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid
        nn.functional.mish nn.functional.prelu nn.functional.relu nn.functional.relu6
        nn.functional.rrelu nn.functional.selu nn.functional.silu nn.functional.softplus
        nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink
        nn.functional.threshold bucketize cross linalg.cross addr outer masked.logaddexp
        native_dropout_backward gradient diff
    """,
    "reduction": """
        all any amax amin aminmax argmax argmin count_nonzero cummax cummin cumprod cumsum
        logcumsumexp logsumexp max mean median min mode nanmean nanmedian nansum norm prod std
        std_mean sum sum_to_size trace var var_mean dist equal allclose trapz trapezoid
        cumulative_trapezoid linalg.vector_norm linalg.norm linalg.vecdot vdot dot
        hash_tensor kthvalue quantile nanquantile renorm corrcoef cov
    """,
    "normalization": """
        softmax log_softmax _softmax_backward_data torch.ops.aten._safe_softmax.default
        nn.functional.softmin native_group_norm native_layer_norm native_batch_norm
        _native_batch_norm_legit _batch_norm_with_update nn.functional.batch_norm
        nn.functional.group_norm nn.functional.instance_norm nn.functional.layer_norm
        nn.functional.rms_norm nn.functional.local_response_norm nn.functional.normalize
    """,
    "loss": """
        nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
        nn.functional.cosine_embedding_loss nn.functional.cross_entropy nn.functional.ctc_loss
        nn.functional.gaussian_nll_loss nn.functional.hinge_embedding_loss
        nn.functional.huber_loss nn.functional.kl_div nn.functional.l1_loss
        nn.functional.linear_cross_entropy nn.functional.margin_ranking_loss
        nn.functional.mse_loss nn.functional.multi_margin_loss
        nn.functional.multilabel_margin_loss nn.functional.multilabel_soft_margin_loss
        nn.functional.nll_loss nn.functional.poisson_nll_loss nn.functional.smooth_l1_loss
        nn.functional.soft_margin_loss nn.functional.triplet_margin_loss
        nn.functional.triplet_margin_with_distance_loss nn.functional.cosine_similarity
        nn.functional.pairwise_distance nn.functional.pdist cdist
    """,
    "movement": """
        alias_copy as_strided as_strided_copy as_strided_scatter atleast_1d atleast_2d atleast_3d
        block_diag broadcast_shapes broadcast_tensors broadcast_to cartesian_prod cat chunk
        column_stack combinations constant_pad_nd diag diag_embed diagflat diagonal
        diagonal_copy diagonal_scatter dsplit dstack expand expand_as expand_copy flatten flip
        fliplr flipud hsplit hstack kron meshgrid movedim msort mH mT narrow narrow_copy
        nn.functional.channel_shuffle nn.functional.pad nn.functional.pixel_shuffle
        nn.functional.pixel_unshuffle permute permute_copy ravel repeat reshape reshape_as
        resize_ resize_as_ roll rot90 select select_scatter slice slice_scatter split
        split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack t t_copy T H
        tensor_split tile transpose transpose_copy tril triu unbind unbind_copy unflatten unfold
        unfold_copy unsafe_chunk unsafe_split unsqueeze unsqueeze_copy view view_as view_copy
        view_as_real vsplit vstack _chunk_cat linalg.diagonal real imag conj
        resolve_conj resolve_neg fft.fftshift fft.ifftshift item
    """,
    "gather and scatter": """
        __getitem__ _unsafe_masked_index _unsafe_masked_index_put_accumulate gather index_add
        index_copy index_fill index_put index_reduce index_select masked_scatter put scatter
        scatter_add scatter_reduce take take_along_dim nn.functional.embedding
        nn.functional.embedding_bag nn.functional.one_hot _segment_reduce bincount histc
        histogram histogramdd searchsorted unravel_index
    """,
    "window": """
        nn.functional.unfold nn.functional.interpolate nn.functional.upsample_bilinear
        _upsample_bilinear2d_aa nn.functional.upsample_nearest nn.functional.grid_sample
        grid_sampler_2d grid_sampler_3d max_pool2d_with_indices_backward
    """,
    "contraction": """
        __rmatmul__ addbmm addmm addmv baddbmm bmm einsum inner linalg.multi_dot matmul mm mv
        tensordot nn.functional.bilinear nn.functional.linear torch._scaled_mm
        torch._scaled_mm_v2 nn.functional.scaled_dot_product_attention
        torch.ops.aten._flash_attention_forward torch.ops.aten._efficient_attention_forward
        nn.functional.multi_head_attention_forward
    """,
    "creation": """
        arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace
        new_empty new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor
        tril_indices triu_indices zeros zeros_like linalg.vander
    """,
    "complex numbers": "complex polar cfloat cdouble chalf view_as_complex",
    "random": """
        bernoulli cauchy exponential geometric log_normal multinomial
        nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d
        nn.functional.dropout3d nn.functional.feature_alpha_dropout normal rand_like randint
        randint_like randn randn_like uniform
    """,
    "linear algebra": """
        cholesky cholesky_inverse cholesky_solve geqrf lu lu_solve lu_unpack matrix_exp logdet
        ormqr pca_lowrank pinverse qr svd svd_lowrank triangular_solve
    """,
    "order": "argsort sort topk unique unique_consecutive nonzero nonzero_static argwhere "
    "masked_select repeat_interleave",
}  # fmt: skip
PREFIXES = {
    "linalg.": "linear algebra",
    "fft.": "spectral",
    "signal.": "creation",
    "masked.": "reduction",
    "jiterator": "other",
    "nn.functional.adaptive_": "window",
    "nn.functional.avg_pool": "window",
    "nn.functional.max_": "window",
    "nn.functional.fractional_": "window",
    "nn.functional.conv": "contraction",
    "sparse.": "sparse",
    "to_sparse": "sparse",
}
_BY_NAME = {name: kind for kind, names in NAMES.items() for name in names.split()}


def kind_of(op: Any) -> str:
    """The kind of an entry of the database: by name, else by its class, else by its prefix."""
    if op.name in _BY_NAME:
        return _BY_NAME[op.name]
    by_class = next((kind for cls, kind in BY_CLASS.items() if isinstance(op, cls)), "")
    if by_class:
        return by_class
    by_prefix = (kind for prefix, kind in PREFIXES.items() if op.name.startswith(prefix))
    return next(by_prefix, "other")
