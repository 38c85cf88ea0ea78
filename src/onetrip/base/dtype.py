"""Element types: names, widths, and the type in which PyTorch computes on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Category(Enum):
    """Promotion category, in PyTorch's order."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    COMPLEX = 3


@dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
        name: short name used in printed IR, such as `f32`.
        torch_name: PyTorch's name, such as `float32`.
        category: promotion category.
        bits: storage width in bits.
        signed: whether negative values exist.
    """

    name: str
    torch_name: str
    category: Category
    bits: int
    signed: bool = True

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether this is a real floating-point type."""
        return self.category is Category.FLOAT

    @property
    def is_integral(self) -> bool:
        """Whether this is an integer type; bool is not."""
        return self.category is Category.INT

    @property
    def compute(self) -> DType:
        """The operation precision: narrow floats compute in f32, every other type in itself."""
        return f32 if self.is_float and self.bits < 32 else self

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        """By name alone: types are hashed with every expression that is looked up."""
        return hash(self.name)


bool_ = DType("bool", "bool", Category.BOOL, 8, signed=False)
u8 = DType("u8", "uint8", Category.INT, 8, signed=False)
u16 = DType("u16", "uint16", Category.INT, 16, signed=False)
u32 = DType("u32", "uint32", Category.INT, 32, signed=False)
u64 = DType("u64", "uint64", Category.INT, 64, signed=False)
i8 = DType("i8", "int8", Category.INT, 8)
i16 = DType("i16", "int16", Category.INT, 16)
i32 = DType("i32", "int32", Category.INT, 32)
i64 = DType("i64", "int64", Category.INT, 64)
f16 = DType("f16", "float16", Category.FLOAT, 16)
bf16 = DType("bf16", "bfloat16", Category.FLOAT, 16)
f32 = DType("f32", "float32", Category.FLOAT, 32)
f64 = DType("f64", "float64", Category.FLOAT, 64)
f8e4m3 = DType("f8e4m3", "float8_e4m3fn", Category.FLOAT, 8)
f8e5m2 = DType("f8e5m2", "float8_e5m2", Category.FLOAT, 8)
c32 = DType("c32", "complex32", Category.COMPLEX, 32)
c64 = DType("c64", "complex64", Category.COMPLEX, 64)
c128 = DType("c128", "complex128", Category.COMPLEX, 128)

ALL: tuple[DType, ...] = (
    bool_, u8, u16, u32, u64, i8, i16, i32, i64, f16, bf16, f32, f64, f8e4m3, f8e5m2, c32, c64,
    c128,
)  # fmt: skip
COMPILED: tuple[DType, ...] = (bool_, u8, i8, i16, i32, i64, f16, bf16, f32, f64, f8e4m3, f8e5m2)
"""The element types that generated kernels compute on; every other type runs as an extern."""

BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
BY_TORCH_NAME: dict[str, DType] = {d.torch_name: d for d in ALL}
