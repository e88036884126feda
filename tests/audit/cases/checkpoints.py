"""Mistakes in written checkpoints: config against tensors, engine against engine."""

from __future__ import annotations

import copy
from typing import Any

from qrole.auditing import Engine
from tests.audit.building import (
    FP8_GROUP,
    MXFP8_GROUP,
    NVFP4_GROUP,
    Tensors,
    bf16,
    case,
    compressed,
    fp8,
    modelopt_fp8,
    mxfp8,
    nvfp4,
    scalar,
    stored,
    tensor,
)

ATTENTION = [f"layers.0.self_attn.{name}_proj" for name in "qkvo"]
MLP = [f"layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
HEAD: Tensors = bf16("lm_head", 512)
EMBEDDING: Tensors = bf16("embed_tokens", 512)
FP8_ATTENTION = r"re:.*self_attn\.(q|k|v|o)_proj$"
NVFP4_MLP = r"re:.*mlp\.(gate|up|down)_proj$"


def attention(**other: Any) -> Tensors:
    """FP8 attention and an unquantized head; `q=bf16` stores q_proj otherwise."""
    found: Tensors = {}
    for path in ATTENTION:
        write = other.get(path.rpartition(".")[2][0], fp8)
        found |= write(path)
    return found | HEAD | EMBEDDING


def mlp(**other: Any) -> Tensors:
    """An NVFP4 MLP."""
    found: Tensors = {}
    for path in MLP:
        write = other.get(path.rpartition(".")[2].removesuffix("_proj"), nvfp4)
        found |= write(path)
    return found


def fp8_config(**changes: Any) -> dict[str, Any]:
    return compressed((FP8_GROUP, [FP8_ATTENTION]), ignore=["lm_head"]) | changes


def mixed(**changes: Any) -> dict[str, Any]:
    config = compressed(
        (FP8_GROUP, [FP8_ATTENTION]), (NVFP4_GROUP, [NVFP4_MLP]), ignore=["lm_head"]
    )
    return config | changes


def edited(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one key changed; None removes it."""
    changed = copy.deepcopy(config)
    *parents, last = path.split("/")
    owner = changed
    for name in parents:
        owner = owner[name]
    if value is None:
        del owner[last]
    else:
        owner[last] = value
    return changed


def without(tensors: Tensors, *names: str) -> Tensors:
    return {name: value for name, value in tensors.items() if name not in names}


def shared(module: str, divisor: float) -> Any:
    return lambda path: nvfp4(path, divisor if path.endswith(module) else 2.0)


def modelopt(algorithm: str, exclude: list[str], **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": exclude, **more}


def modelopt_layers(*paths: str) -> Tensors:
    found: Tensors = {}
    for path in paths:
        found |= modelopt_fp8(path)
    return found | HEAD | EMBEDDING


def experts(write: Any) -> Tensors:
    found: Tensors = {}
    for i in range(2):
        for name in ("gate_proj", "up_proj", "down_proj"):
            found |= write(f"layers.0.mlp.experts.{i}.{name}")
    return found | HEAD | bf16("layers.0.mlp.gate", 8)


EXPERTS = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
EXPERT_NAMES = [
    f"layers.0.mlp.experts.{i}.{n}_proj" for i in range(2) for n in ("gate", "up", "down")
]
ROUTER = r"re:.*mlp\.gate$"
NOT_TRANSFORMERS = (Engine.VLLM, Engine.SGLANG)
CLEAN = stored(attention(), fp8_config())
CLEAN_MIXED = stored(attention() | mlp(), mixed())

CASES = [
    case(
        "quantization_status left out",
        "QR520",
        stored(attention(), edited(fp8_config(), "quantization_status", None)),
        CLEAN,
    ),
    case(
        "a note inside the arguments of a group",
        "QR520",
        stored(attention(), edited(fp8_config(), "config_groups/group_0/weights/note", "mine")),
        stored(attention(), fp8_config(qrole={"note": "mine"})),
    ),
    case(
        "mixed precision without a format per group",
        "QR520 QR530 QR532",
        stored(attention() | mlp(), edited(mixed(), "config_groups/group_0/format", None)),
        CLEAN_MIXED,
    ),
    case(
        "a glob where names or regular expressions are read",
        "QR521 QR530 QR532",
        stored(attention(), fp8_config(ignore=["*lm_head*"])),
        CLEAN,
    ),
    case(
        "an ignored layer that the model does not have",
        "QR521",
        stored(attention(), fp8_config(ignore=["lm_head", "layers.9.mlp.down_proj"])),
        CLEAN,
    ),
    case(
        "the head quantized and excluded at once",
        "QR522 QR531",
        stored(attention() | fp8("lm_head", 512), fp8_config()),
        stored(
            attention() | fp8("lm_head", 512),
            compressed((FP8_GROUP, [FP8_ATTENTION, "lm_head"]), ignore=[]),
        ),
    ),
    case(
        "a router's regular expression that takes gate_proj along",
        "QR522 QR530 QR531 QR532",
        stored(
            attention() | mlp() | bf16("layers.0.mlp.gate", 8),
            mixed(ignore=["lm_head", "re:.*gate"]),
        ),
        stored(
            attention() | mlp() | bf16("layers.0.mlp.gate", 8), mixed(ignore=["lm_head", ROUTER])
        ),
    ),
    case(
        "two regular expressions for one layer",
        "QR523 QR531",
        stored(
            attention() | mlp(),
            compressed(
                (FP8_GROUP, [r"re:.*_proj$"]), (NVFP4_GROUP, [NVFP4_MLP]), ignore=["lm_head"]
            ),
        ),
        CLEAN_MIXED,
    ),
    case(
        "a class target beside a group of names",
        "QR523 QR531 QR532",
        stored(
            attention() | mlp(),
            compressed((NVFP4_GROUP, ["Linear"]), (FP8_GROUP, [FP8_ATTENTION]), ignore=["lm_head"]),
        ),
        CLEAN_MIXED,
    ),
    case(
        "all groups target Linear",
        "QR523 QR531",
        stored(
            attention() | mlp(),
            compressed((FP8_GROUP, ["Linear"]), (NVFP4_GROUP, ["Linear"]), ignore=["lm_head"]),
        ),
        CLEAN_MIXED,
    ),
    case(
        "a scale that was not written",
        "QR524",
        stored(without(attention(), "layers.0.self_attn.o_proj.weight_scale"), fp8_config()),
        CLEAN,
    ),
    case(
        "the input scale of an expert that was never reached is missing",
        "QR524",
        stored(
            without(experts(nvfp4), "layers.0.mlp.experts.1.up_proj.input_global_scale"),
            compressed((NVFP4_GROUP, [EXPERTS]), ignore=["lm_head", ROUTER]),
            engines=NOT_TRANSFORMERS,
        ),
        stored(
            experts(nvfp4),
            compressed((NVFP4_GROUP, [EXPERTS]), ignore=["lm_head", ROUTER]),
            engines=NOT_TRANSFORMERS,
        ),
    ),
    case(
        "scales per channel as a vector",
        "QR524",
        stored(
            attention() | {"layers.0.self_attn.o_proj.weight_scale": tensor("F32", 256)},
            fp8_config(),
        ),
        CLEAN,
    ),
    case(
        "MX scales in float8_e8m0fnu",
        "QR524",
        stored(
            mxfp8("fc") | {"fc.weight_scale": tensor("F8_E8M0", 256, 8)},
            compressed((MXFP8_GROUP, ["fc"]), ignore=[]),
        ),
        stored(mxfp8("fc"), compressed((MXFP8_GROUP, ["fc"]), ignore=[])),
    ),
    case(
        "ModelOpt's names in a compressed-tensors file",
        "QR524",
        stored(
            without(nvfp4("fc"), "fc.weight_global_scale") | {"fc.weight_scale_2": scalar(0.5)},
            compressed((NVFP4_GROUP, ["fc"]), ignore=[]),
        ),
        stored(nvfp4("fc"), compressed((NVFP4_GROUP, ["fc"]), ignore=[])),
    ),
    case(
        "gate and up quantized with their own amax",
        "QR525",
        stored(attention() | mlp(up=shared("up_proj", 4.28)), mixed()),
        CLEAN_MIXED,
    ),
    case(
        "the scale of an expert that was never reached is zero",
        "QR526",
        stored(
            attention() | mlp() | {"layers.0.mlp.down_proj.input_global_scale": scalar(0.0)},
            mixed(),
        ),
        CLEAN_MIXED,
    ),
    case(
        "an amax of zero became an infinite scale",
        "QR526",
        stored(
            attention()
            | mlp()
            | {"layers.0.mlp.down_proj.weight_global_scale": scalar(float("inf"))},
            mixed(),
        ),
        CLEAN_MIXED,
    ),
    case(
        "a tied head is written as well",
        "QR527",
        stored(attention(), fp8_config(), config={"tie_word_embeddings": True}),
        stored(
            without(attention(), "lm_head.weight"),
            fp8_config(),
            config={"tie_word_embeddings": True},
        ),
    ),
    case(
        "weights without a tokenizer",
        "QR528",
        stored(attention(), fp8_config(), tokenizer=False),
        CLEAN,
    ),
    case(
        "one part of a fused layer is kept and ignored",
        "QR530 QR532",
        stored(attention(q=bf16), fp8_config(ignore=["lm_head", "layers.0.self_attn.q_proj"])),
        CLEAN,
    ),
    case(
        "a layer without v_proj, whose name is not ignored",
        "QR530 QR532",
        stored(
            without(
                attention(q=bf16, k=bf16),
                "layers.0.self_attn.v_proj.weight",
                "layers.0.self_attn.v_proj.weight_scale",
            ),
            compressed(
                (FP8_GROUP, ["layers.0.self_attn.o_proj"]),
                ignore=["lm_head", "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj"],
            ),
        ),
        stored(
            without(
                attention(q=bf16, k=bf16),
                "layers.0.self_attn.v_proj.weight",
                "layers.0.self_attn.v_proj.weight_scale",
            ),
            compressed(
                (FP8_GROUP, ["layers.0.self_attn.o_proj"]),
                ignore=["lm_head", *ATTENTION[:3]],
            ),
        ),
    ),
    case(
        "an unquantized layer that is not listed",
        "QR530 QR532",
        stored(
            attention(o=bf16),
            compressed((FP8_GROUP, [r"re:.*self_attn\.(q|k|v)_proj$"]), ignore=["lm_head"]),
        ),
        stored(
            attention(o=bf16),
            compressed(
                (FP8_GROUP, [r"re:.*self_attn\.(q|k|v)_proj$"]), ignore=["lm_head", ATTENTION[3]]
            ),
        ),
    ),
    case(
        "q, k and v in different schemes",
        "QR531 QR532",
        stored(
            attention(k=nvfp4, v=nvfp4),
            compressed(
                (FP8_GROUP, [r"re:.*self_attn\.(q|o)_proj$"]),
                (NVFP4_GROUP, [r"re:.*self_attn\.(k|v)_proj$"]),
                ignore=["lm_head"],
            ),
        ),
        CLEAN,
    ),
    case(
        "a head that is targeted and not quantized",
        "QR531",
        stored(attention(), compressed((FP8_GROUP, [FP8_ATTENTION, "lm_head"]), ignore=[])),
        CLEAN,
    ),
    case(
        "a part of a name in ModelOpt's exclude list",
        "QR531 QR532 QR533",
        stored(
            modelopt_layers("layers.0.mlp.gate_proj", "layers.0.mlp.down_proj")
            | bf16("layers.0.mlp.gate", 8),
            modelopt("FP8", ["lm_head", "layers.0.mlp.gate"]),
        ),
        stored(
            modelopt_layers("layers.0.mlp.gate_proj", "layers.0.mlp.down_proj")
            | bf16("layers.0.mlp.gate", 8),
            modelopt("FP8", ["lm_head", "*.mlp.gate"]),
        ),
    ),
    case(
        "a neighbour that ModelOpt's list of layers forgot",
        "QR531",
        stored(
            modelopt_layers(*ATTENTION),
            modelopt(
                "MIXED_PRECISION",
                ["lm_head"],
                quantized_layers={path: {"quant_algo": "FP8"} for path in ATTENTION[1:]},
            ),
        ),
        stored(
            modelopt_layers(*ATTENTION),
            modelopt(
                "MIXED_PRECISION",
                ["lm_head"],
                quantized_layers={path: {"quant_algo": "FP8"} for path in ATTENTION},
            ),
        ),
    ),
    case(
        "one part of a fused layer in ModelOpt's exclude list",
        "QR530 QR532",
        stored(
            modelopt_layers(*ATTENTION[1:]) | bf16(ATTENTION[0]),
            modelopt("FP8", ["lm_head", ATTENTION[0]]),
        ),
        stored(
            modelopt_layers(ATTENTION[3]) | bf16(ATTENTION[0]) | bf16(ATTENTION[1]),
            modelopt("FP8", ["lm_head", ATTENTION[0], ATTENTION[1]]),
        ),
    ),
    case(
        "NVFP4 experts in transformers",
        "QR534",
        stored(experts(nvfp4), compressed((NVFP4_GROUP, [EXPERTS]), ignore=["lm_head", ROUTER])),
        stored(experts(fp8), compressed((FP8_GROUP, [EXPERTS]), ignore=["lm_head", ROUTER])),
    ),
    case(
        "experts named one by one",
        "QR534",
        stored(experts(fp8), compressed((FP8_GROUP, EXPERT_NAMES), ignore=["lm_head", ROUTER])),
        stored(experts(fp8), compressed((FP8_GROUP, [EXPERTS]), ignore=["lm_head", ROUTER])),
    ),
    case(
        "ModelOpt's layout in transformers",
        "QR534 QR535",
        stored(
            modelopt_layers(*ATTENTION),
            modelopt("FP8", ["lm_head"]),
            engines=(Engine.TRANSFORMERS,),
        ),
        stored(
            modelopt_layers(*ATTENTION),
            modelopt("FP8", ["lm_head"]),
            engines=(Engine.TENSORRT_LLM,),
        ),
    ),
    case(
        "MXFP8 from compressed-tensors in SGLang",
        "QR535",
        stored(mxfp8("fc"), compressed((MXFP8_GROUP, ["fc"]), ignore=[]), engines=(Engine.SGLANG,)),
        stored(mxfp8("fc"), compressed((MXFP8_GROUP, ["fc"]), ignore=[]), engines=(Engine.VLLM,)),
    ),
]
