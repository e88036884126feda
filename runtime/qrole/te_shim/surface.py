"""Which name of TransformerEngine is which object of qrole.

One entry per module; a target is `module:attribute`, or the module alone for a submodule. Nothing
is imported before a name is used.
"""

from __future__ import annotations

__all__ = ["RENAMED", "REST", "SURFACE"]


def _same(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_ROLES = _same("qrole.roles", "DelayedScalingRequest", "QuantizerRequest", "QuantizerRole")
_RECIPES = _same(
    "qrole.recipes",
    "CustomRecipe",
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "Format",
    "MMParams",
    "MXFP8BlockScaling",
    "NVFP4BlockScaling",
    "QParams",
    "Recipe",
)
_QUANTIZERS = _same(
    "qrole.quantizers",
    "Float8BlockQuantizer",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "HybridQuantizer",
    "IdentityQuantizer",
    "MXFP8Quantizer",
    "NVFP4Quantizer",
)
_BASES = _same("qrole.quantizers", "QuantizedTensor", "QuantizedTensorStorage", "Quantizer")
_CONTEXTS = _same(
    "qrole.autocasting", "autocast", "fp8_autocast", "fp8_model_init", "quantized_model_init"
)
_STATES = _same(
    "qrole.state",
    "CustomRecipeState",
    "DelayedScalingRecipeState",
    "Float8BlockScalingRecipeState",
    "Float8CurrentScalingRecipeState",
    "MXFP8BlockScalingRecipeState",
    "NVFP4BlockScalingRecipeState",
    "RecipeState",
)
_AVAILABLE = _same(
    "qrole.te_shim.availability",
    "get_default_fp8_recipe",
    "get_default_recipe",
    "is_bf16_available",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
)
_LINEARS = _same("qrole.modules", "GroupedLinear", "LayerNormLinear", "LayerNormMLP", "Linear")
_NORMS = _same("qrole.modules", "LayerNorm", "RMSNorm")
_PADDING = _same("qrole.modules", "Fp8Padding", "Fp8Unpadding")
_ATTENTION = _same("qrole.modules", "DotProductAttention", "MultiheadAttention")
_MODULES = {
    **_LINEARS,
    **_NORMS,
    **_PADDING,
    **_ATTENTION,
    **_same("qrole.modules", "TransformerLayer"),
}
_CONSTANTS = {
    "DType": "qrole.dtypes:DType",
    "TE_DType": "qrole.te_shim.torch_dtypes:TE_DType",
    **_same(
        "qrole.te_shim.constants",
        "FP8BwdTensorIdx",
        "FP8FwdTensorIdx",
        "MXFP8_BLOCK_SCALING_SIZE",
        "NVFP4_BLOCK_SCALING_SIZE",
    ),
}
_MANAGER = {"FP8GlobalStateManager": "qrole.te_shim.global_state:FP8GlobalStateManager"}
_BUILTIN = _same(
    "qrole.factories.builtin",
    "current_scaling_factory",
    "delayed_scaling_factory",
    "float8_block_scaling_factory",
    "high_precision_factory",
    "mxfp8_factory",
    "nvfp4_factory",
)
_ZOO = _same(
    "qrole.factories.zoo",
    "high_precision_fwd_mxfp8_bwd_factory",
    "mxfp8_fwd_high_precision_bwd_factory",
    "mxfp8_fwd_nvfp4_bwd_factory",
    "nvfp4_1d_weight_factory",
    "nvfp4_linear_fp8_dpa_factory",
    "nvfp4_row_scaled_fwd_high_precision_bwd_factory",
    "nvfp4_row_scaled_fwd_mxfp8_bwd_factory",
)
_REFERENCES = _same("qrole.quantizers.reference", "CurrentScalingQuantizerRef", "NVFP4QuantizerRef")
_NVFP4_REFERENCE = {
    "NVFP4QuantizerRef": _REFERENCES["NVFP4QuantizerRef"],
    "nvfp4_ref_rht_2d_factory": "qrole.factories.reference:nvfp4_ref_rht_2d_factory",
}
_CURRENT_REFERENCE = {
    "CurrentScalingQuantizerRef": _REFERENCES["CurrentScalingQuantizerRef"],
    "current_scaling_ref_factory": "qrole.factories.reference:current_scaling_ref_factory",
}
_FP4_FORMATS = _same("qrole.quantizers.reference", "Fp4Formats")
_CUSTOM_GEMM = _same("qrole.custom_gemm", "GEMMType", "MMParams")
_TE = "transformer_engine"
_PT = "transformer_engine.pytorch"
_RECIPE_ROOM = f"{_PT}.custom_recipes"


def _tensor_module(*names: str) -> dict[str, str]:
    return {name: _QUANTIZERS[name] for name in names}


SURFACE: dict[str, dict[str, str]] = {
    _TE: {"common": f"{_TE}.common", "pytorch": _PT},
    f"{_TE}.common": {"recipe": f"{_TE}.common.recipe"},
    f"{_TE}.common.recipe": _RECIPES,
    _PT: {
        **_ROLES,
        **_BASES,
        **_QUANTIZERS,
        **_CONTEXTS,
        **_AVAILABLE,
        **_MODULES,
        "DType": _CONSTANTS["DType"],
        "ops": f"{_PT}.ops",
        "constants": f"{_PT}.constants",
        "quantization": f"{_PT}.quantization",
        "tensor": f"{_PT}.tensor",
    },
    f"{_PT}.quantization": {
        **_ROLES,
        **_CONTEXTS,
        **_STATES,
        **_MANAGER,
        **_AVAILABLE,
        "get_align_size_for_quantization": "qrole.recipes:get_align_size_for_quantization",
    },
    f"{_PT}.fp8": {
        **_CONTEXTS,
        **_STATES,
        **_MANAGER,
        **_AVAILABLE,
        **_same("qrole.te_shim.availability", "check_fp8_support"),
    },
    f"{_PT}.constants": _CONSTANTS,
    f"{_PT}.quantized_tensor": _BASES,
    f"{_PT}.tensor": {**_QUANTIZERS, **_BASES},
    f"{_PT}.tensor.quantized_tensor": _BASES,
    f"{_PT}.tensor.float8_tensor": _tensor_module(
        "Float8Quantizer", "Float8CurrentScalingQuantizer"
    ),
    f"{_PT}.tensor.float8_blockwise_tensor": _tensor_module("Float8BlockQuantizer"),
    f"{_PT}.tensor.mxfp8_tensor": _tensor_module("MXFP8Quantizer"),
    f"{_PT}.tensor.nvfp4_tensor": _tensor_module("NVFP4Quantizer"),
    f"{_PT}.tensor.hybrid_tensor": _tensor_module("HybridQuantizer"),
    f"{_PT}.tensor.identity_tensor": _tensor_module("IdentityQuantizer"),
    f"{_PT}.custom_recipes": {},
    f"{_RECIPE_ROOM}.quantizer_factories": _BUILTIN,
    f"{_RECIPE_ROOM}.quantizer_factory_zoo": _ZOO,
    f"{_RECIPE_ROOM}.reference_nvfp4": _NVFP4_REFERENCE,
    f"{_RECIPE_ROOM}.reference_current_scaling": _CURRENT_REFERENCE,
    f"{_RECIPE_ROOM}.reference_utils": _FP4_FORMATS,
    f"{_RECIPE_ROOM}.gemm": _CUSTOM_GEMM,
    f"{_PT}.ops": _same(
        "qrole.modules.ops", "BasicLinear", "GroupedLinear", "Linear", "Quantize", "Sequential"
    ),
    f"{_PT}.module": {**_LINEARS, **_NORMS, **_PADDING},
    f"{_PT}.attention": _ATTENTION,
    f"{_PT}.transformer": _same("qrole.modules", "TransformerLayer"),
    "transformer_engine_torch": {
        "DType": "qrole.dtypes:DType",
        "FP8BwdTensors": "qrole.te_shim.constants:FP8BwdTensorIdx",
        "FP8FwdTensors": "qrole.te_shim.constants:FP8FwdTensorIdx",
    },
}

#: Where a module's other names are, such as activations among the ops: whatever is public there.
REST: dict[str, str] = {
    _PT: "qrole.modules",
    f"{_PT}.attention": "qrole.modules",
    f"{_PT}.ops": "qrole.modules.ops",
}

_OLD = "qrole.te_shim.older"

#: Modules of older releases, with the module that took their place.
RENAMED: dict[str, str] = {
    f"{_RECIPE_ROOM}.quantization": f"{_RECIPE_ROOM}.gemm",
    f"{_RECIPE_ROOM}.quantization_nvfp4": f"{_RECIPE_ROOM}.reference_nvfp4",
    f"{_RECIPE_ROOM}.quantization_current_scaling": f"{_RECIPE_ROOM}.reference_current_scaling",
    f"{_RECIPE_ROOM}.quantization_ref_nvfp4": f"{_RECIPE_ROOM}.reference_nvfp4",
    f"{_RECIPE_ROOM}.quantization_ref_current_scaling": (
        f"{_RECIPE_ROOM}.reference_current_scaling"
    ),
    f"{_RECIPE_ROOM}.quantization_recipes_base": f"{_RECIPE_ROOM}.quantizer_factories",
    f"{_RECIPE_ROOM}.quantization_factory_examples": f"{_RECIPE_ROOM}.quantizer_factory_zoo",
    f"{_RECIPE_ROOM}.utils": f"{_RECIPE_ROOM}.reference_utils",
}
SURFACE |= {
    f"{_RECIPE_ROOM}.quantization": _CUSTOM_GEMM,
    f"{_RECIPE_ROOM}.quantization_nvfp4": {
        "NVFP4QuantizerRef": _REFERENCES["NVFP4QuantizerRef"],
        **_same(_OLD, "nvfp4_ref_rht_2d_quantizer_factory"),
    },
    f"{_RECIPE_ROOM}.quantization_current_scaling": {
        "CurrentScalingQuantizerRef": _REFERENCES["CurrentScalingQuantizerRef"],
        **_same(_OLD, "current_scaling_ref_quantizer_factory"),
    },
    f"{_RECIPE_ROOM}.quantization_ref_nvfp4": {
        "NVFP4QuantizerRef": _REFERENCES["NVFP4QuantizerRef"],
        **_same(_OLD, "nvfp4_ref_rht_2d_quantizer_factory"),
    },
    f"{_RECIPE_ROOM}.quantization_ref_current_scaling": {
        "CurrentScalingQuantizerRef": _REFERENCES["CurrentScalingQuantizerRef"],
        **_same(_OLD, "current_scaling_ref_quantizer_factory"),
    },
    f"{_RECIPE_ROOM}.quantization_recipes_base": {
        name.replace("_factory", "_quantizer_factory"): target for name, target in _BUILTIN.items()
    },
    f"{_RECIPE_ROOM}.quantization_factory_examples": _same(
        "qrole.factories.zoo",
        "nvfp4_linear_fp8_dpa_factory",
        "nvfp4_linear_mxfp8_dpa_factory",
        "nvfp4_linear_mxfp8_grouped_linear_factory",
    ),
    f"{_RECIPE_ROOM}.utils": _FP4_FORMATS,
}
