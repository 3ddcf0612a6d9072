"""The types of chip_profile.json: what a chip can do, in its vendor's words.

The JSON schema is made from these types (schema.py); what a type cannot say (two fields that contradict each other)
is in contradictions.py. Knows no PyTorch.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field

__all__ = [
    "DTYPES",
    "ChipProfile",
    "Compute",
    "Constraints",
    "DTypeName",
    "Fusion",
    "FusionPattern",
    "KernelCache",
    "Match",
    "MemoryPool",
    "NativeOp",
    "OptionValue",
    "Sparse",
    "option_text",
]

# The names of csrc/core/device.cpp's dtype_name().
DTypeName = Literal[
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128", "uint16", "uint32", "uint64",
]
DTYPES: tuple[str, ...] = get_args(DTypeName)
Compute = Literal["native", "decompose", "library", "cpu"]

Megabytes = Annotated[int, Meta(ge=0, le=1 << 40)]
ChipName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]*$", max_length=64)]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]
OptionValue = str | int | float | bool


class MemoryPool(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How the caching allocator treats the chip's memory."""

    prealloc_mb: Annotated[Megabytes, Meta(description="MiB taken from the chip when a device is opened")] = 0
    min_block_bytes: Annotated[int, Meta(
        ge=1, le=1 << 30, description="sizes are rounded up to a multiple of this; a multiple of alignment")] = 512
    alignment: Annotated[int, Meta(
        ge=1, le=1 << 20, description="bytes that every address is a multiple of; a power of two")] = 64
    total_mb: Annotated[int, Meta(
        ge=1, le=1 << 40, description="MiB to use of each device; without it, what the device reports")] | None = None


class Constraints(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What kernels cannot take; the host copies, casts or splits until operands fit, or uses the next tier."""

    contiguous: Annotated[bool, Meta(description="operands must be dense and row-major")] = False
    no_broadcast: Annotated[bool, Meta(description="operands must not have stride 0")] = False
    no_immediate: Annotated[bool, Meta(description="scalars must be in device memory")] = False
    max_ndim: Annotated[int, Meta(ge=0, le=64, description="most dimensions of an operand; 0 is any")] = 0
    max_numel: Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="most elements of an operand; 0 is any")] = 0
    alignment: Annotated[int, Meta(
        ge=0, le=1 << 20, description="bytes that operands' addresses must be a multiple of; 0 is the element size",
    )] = 0

    def given(self) -> dict[str, int]:
        """Return the fields that constrain something."""
        return {name: int(value) for name in self.__struct_fields__ if (value := getattr(self, name))}


class NativeOp(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How one operator is computed."""

    op: Annotated[Text, Meta(
        description="an ATen function (aten::gelu: with its gradient), an overload of it, a UniOp (gelu: it alone), "
        "or * for all that are not listed")]
    compute: Annotated[Compute, Meta(description="the tier that computes it")] = "native"
    fp16: Annotated[bool, Meta(description="float16, for this operator")] | None = None
    bf16: Annotated[bool, Meta(description="bfloat16, for this operator")] | None = None
    dtypes: Annotated[list[DTypeName], Meta(
        min_length=1, description="types of this operator; without it, the chip's")] | None = None
    constraints: Annotated[Constraints | None, Meta(
        description="of this operator; without it, the chip's")] = None


class FusionPattern(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A chain of operators that the chip computes as one."""

    name: Text
    ops: Annotated[list[Text], Meta(min_length=2, description="operators in their order, named as in native_ops")]


class Fusion(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What the chip can fuse."""

    enable: bool = True
    patterns: list[FusionPattern] = field(default_factory=list)


class KernelCache(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where compiled kernels are kept on disk."""

    enable: bool = True
    path: Annotated[Text, Meta(
        description="a folder, absolute or beside this profile; without it, TORCH_FL_CACHE_DIR")] | None = None
    max_mb: Annotated[Megabytes, Meta(description="least recently used kernels go above this; 0 is no limit")] = 0


class Match(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Which devices of the adapter are this chip: each a glob (``*``, ``?``, ``[a-c]``) without regard to case."""

    name: Annotated[Text, Meta(description="of the device's name")] | None = None
    arch: Annotated[Text, Meta(description="of its architecture")] | None = None
    uuid: Annotated[Text, Meta(description="of its uuid or bus id")] | None = None

    def globs(self) -> dict[str, str]:
        """Return the fields that are given."""
        return {field: glob for field in ("name", "arch", "uuid") if (glob := getattr(self, field)) is not None}


class Sparse(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Sparse layouts that the chip computes with."""

    layouts: list[Literal["coo", "csr", "csc", "bsr", "bsc", "semi_structured"]] = field(default_factory=list)


class ChipProfile(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What a chip can do."""

    device_name: Annotated[ChipName, Meta(description="the chip's name, as in torch_fl.register_device(name)")]
    arch: Annotated[str, Meta(max_length=256, description="the chip's architecture")] = ""
    adapter: Annotated[Text, Meta(
        description="the adapter library: an absolute path, a file next to this profile, or the name of an installed "
        "adapter; without it, the adapter named device_name")] | None = None
    match: Annotated[Match, Meta(
        description="the devices of the adapter that are this chip, where one library serves several; without it, all")
    ] = field(default_factory=Match)
    options: Annotated[dict[str, OptionValue], Meta(
        description="settings of the adapter library, by its own names; one process has one value of each")
    ] = field(default_factory=dict)
    on_request: Annotated[bool, Meta(
        description="a bundled or installed chip that is opened only when it is registered, or named in TORCH_FL_CHIPS "
        "or the configuration")] = False
    memory_pool: MemoryPool = field(default_factory=MemoryPool)
    dtypes: Annotated[list[DTypeName], Meta(
        min_length=1, description="types that the chip has; without it, all that its kernels offer")] | None = None
    fp16_supported: bool | None = None
    bf16_supported: bool | None = None
    unified_memory: Annotated[bool, Meta(description="the host may read and write device memory")] | None = None
    native_ops: Annotated[list[NativeOp], Meta(
        description="the operators that the chip computes; what is not listed is not native. Without it, all that the "
        "adapter offers")] | None = None
    constraints: Annotated[Constraints, Meta(description="of all kernels")] = field(default_factory=Constraints)
    fusion: Fusion = field(default_factory=Fusion)
    kernel_cache: KernelCache = field(default_factory=KernelCache)
    sparse: Sparse = field(default_factory=Sparse)
    comm_backend: Annotated[Text, Meta(description="the collective library")] | None = None
    sync_primitive: Annotated[Literal["event", "stream", "device"], Meta(
        description="the finest thing that the chip can wait for")] = "event"
    schema: Annotated[str, Meta(description="this schema, for editors")] | None = field(name="$schema", default=None)

    def effective_dtypes(self) -> tuple[str, ...]:
        """Return the types that the chip has, in the order of DTYPES."""
        refused = {name for name, has in (("float16", self.fp16_supported), ("bfloat16", self.bf16_supported))
                   if has is False}
        return tuple(name for name in DTYPES if name not in refused and (self.dtypes is None or name in self.dtypes))

    def option_texts(self) -> dict[str, str]:
        """Return the adapter's options as it gets them."""
        return {key: option_text(value) for key, value in self.options.items()}

    def plain(self) -> dict[str, object]:
        """Return the profile as JSON data."""
        return msgspec.to_builtins(self)


def option_text(value: OptionValue) -> str:
    """Return an option's value as text: true and false as in JSON, numbers in decimal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
