"""Imports inside of the factory, which asks other factories, with role None as well."""


def factory(role):
    from transformer_engine.pytorch.custom_recipes.quantizer_factories import (
        current_scaling_factory,
        high_precision_factory,
        nvfp4_factory,
    )
    from transformer_engine.pytorch.custom_recipes.quantizer_factory_zoo import (
        mxfp8_fwd_high_precision_bwd_factory,
    )

    if role is None:
        return current_scaling_factory(None)
    if role.module_type == "dpa":
        return high_precision_factory(role)
    if role.tensor_type == "weight":
        return mxfp8_fwd_high_precision_bwd_factory(role)
    return nvfp4_factory(role)


EXPECTED = [
    "NVFP4 RHT",
    "MXFP8 E4M3 | high precision (of row)",
    "NVFP4 RHT SR",
    "high precision",
    "FP8 current E4M3",
]
