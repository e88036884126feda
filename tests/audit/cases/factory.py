"""Mistakes in factories, whatever the formats are."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn

from qrole import (
    DelayedScalingRequest,
    IdentityQuantizer,
    MXFP8Quantizer,
    QuantizerRequest,
    QuantizerRole,
)
from qrole.dtypes import DType
from qrole.factories.builtin import current_scaling_factory, high_precision_factory, mxfp8_factory
from qrole.modules import Linear
from tests.audit.building import case, decoder, one_layer, planned, sourced

E4M3 = DType.kFloat8E4M3


def te_linear() -> nn.Module:
    """A TransformerEngine-style layer, whose boundary slots have no role."""
    return nn.ModuleList([Linear(256, 256, bias=False, device="meta", name="fc")])


def none_without_a_role(role: QuantizerRole | None) -> Any:
    return None if role is None else MXFP8Quantizer(E4M3)


def identity_without_a_role(role: QuantizerRole | None) -> Any:
    return IdentityQuantizer() if role is None else MXFP8Quantizer(E4M3)


def the_class(role: QuantizerRole | None) -> Any:
    return MXFP8Quantizer


def bare_request(role: QuantizerRole | None) -> Any:
    return QuantizerRequest()


def asks_none_for_its_type(role: QuantizerRole | None) -> Any:
    gradient = role.tensor_type == "grad_output"  # type: ignore[union-attr]
    return MXFP8Quantizer(E4M3, with_2d_quantization=gradient and False)


def misspelt_option(role: QuantizerRole | None) -> Any:
    return MXFP8Quantizer(E4M3, with_2d=True)  # type: ignore[call-arg]


def cached() -> Any:
    quantizer = MXFP8Quantizer(E4M3)
    return lambda role: quantizer


def delayed(weight_history: int) -> Any:
    def factory(role: QuantizerRole | None) -> Any:
        weight = role is not None and role.tensor_type == "weight"
        return DelayedScalingRequest(amax_history_len=weight_history if weight else 1024)

    return factory


def every_other_call() -> Any:
    calls = itertools.count()

    def factory(role: QuantizerRole | None) -> Any:
        return MXFP8Quantizer(E4M3, with_2d_quantization=bool(next(calls) // 3 % 2))

    return factory


def twice_the_same_module() -> nn.Module:
    """Two layers with equal names, as an unnamed operation used twice has."""
    root = te_linear()
    root.append(Linear(256, 256, bias=False, device="meta", name="fc"))
    return root


HEADER = "from qrole import IdentityQuantizer, MXFP8Quantizer, Float8CurrentScalingQuantizer\n"

OTHER_MODELS_NAME = (
    HEADER
    + """
def f(role):
    if role is not None and role.name.endswith("{name}"):
        return IdentityQuantizer()
    return MXFP8Quantizer(7)
"""
)

MATCHERS = (
    HEADER
    + """
MATCHERS = [{{"pattern": "mlp.", {flag}"quantizer": MXFP8Quantizer}}]

def f(role):
    for matcher in MATCHERS:
        if matcher.get("enabled") and matcher["pattern"] in role.name:
            return matcher["quantizer"](7)
    return IdentityQuantizer()
"""
)

RECIPE = (
    HEADER
    + """
from qrole import CustomRecipe

def f(role):
    return MXFP8Quantizer(7)

recipe = lambda: CustomRecipe(qfactory=f, {keyword}=True)
"""
)

GUARDED = (
    HEADER
    + """
def f(role):
{guard}    return MXFP8Quantizer(7)
"""
)

WARNS = (
    HEADER
    + """
import warnings

def f(role):
{warning}    return MXFP8Quantizer(7)
"""
)


def from_a_string() -> Any:
    """A factory whose source no file holds, as one that is typed into a shell."""
    return eval("lambda role: MXFP8Quantizer(7)", {"MXFP8Quantizer": MXFP8Quantizer})


CASES = [
    case(
        "None for a boundary slot",
        "QR201",
        planned(te_linear, none_without_a_role),
        planned(te_linear, identity_without_a_role),
    ),
    case(
        "the class instead of an instance",
        "QR202",
        planned(one_layer, the_class),
        planned(one_layer, mxfp8_factory),
    ),
    case(
        "a request that nothing resolves",
        "QR202",
        planned(one_layer, bare_request),
        planned(one_layer, delayed(1024)),
    ),
    case(
        "a role that is None is asked for its type",
        "QR203",
        planned(te_linear, asks_none_for_its_type),
        planned(te_linear, identity_without_a_role),
    ),
    case(
        "a constructor keyword that does not exist",
        "QR203",
        planned(one_layer, misspelt_option),
        planned(one_layer, mxfp8_factory),
    ),
    case(
        "one quantizer for all slots",
        "QR204",
        planned(one_layer, cached()),
        planned(one_layer, mxfp8_factory),
    ),
    case(
        "delayed scaling with two history lengths",
        "QR205",
        planned(one_layer, delayed(16)),
        planned(one_layer, delayed(1024)),
    ),
    case(
        "a factory that counts its calls",
        "QR206",
        planned(twice_the_same_module, every_other_call()),
        planned(twice_the_same_module, mxfp8_factory),
        also="QR103",
    ),
    case(
        "a name that another model has",
        "QR207",
        sourced(decoder, OTHER_MODELS_NAME.format(name="c_proj")),
        sourced(decoder, OTHER_MODELS_NAME.format(name="o_proj")),
    ),
    case(
        "a matcher dropped for want of a flag",
        "QR207 QR216",
        sourced(decoder, MATCHERS.format(flag="")),
        sourced(decoder, MATCHERS.format(flag='"enabled": True, ')),
    ),
    case(
        "a guard that this model does not need",
        "QR208",
        sourced(
            one_layer,
            GUARDED.format(guard="    if role is None:\n        return IdentityQuantizer()\n"),
        ),
        sourced(one_layer, GUARDED.format(guard="")),
    ),
    case(
        "a misspelt keyword of a recipe",
        "QR213",
        sourced(one_layer, RECIPE.format(keyword="fp8_dap")),
        sourced(one_layer, RECIPE.format(keyword="fp8_dpa")),
    ),
    case(
        "a factory without a source file",
        "QR214",
        planned(one_layer, from_a_string()),
        planned(one_layer, lambda role: MXFP8Quantizer(E4M3)),
    ),
    case(
        "a factory that warns",
        "QR215",
        sourced(one_layer, WARNS.format(warning='    warnings.warn("old name", stacklevel=2)\n')),
        sourced(one_layer, WARNS.format(warning="")),
    ),
    case(
        "nothing is quantized",
        "QR216",
        planned(one_layer, lambda role: high_precision_factory(role)),
        planned(one_layer, current_scaling_factory),
    ),
]
