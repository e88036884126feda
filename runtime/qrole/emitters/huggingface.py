"""Emitter and loading for transformers models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qrole.emitters.base import (
    EmitOptions,
    Emitter,
    attention_slots,
    class_name,
    linear_slots,
)
from qrole.errors import CheckpointError, UsageError
from qrole.roles import Slot

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["HuggingFaceEmitter", "build_from_directory", "build_from_state", "loaded_names"]


class HuggingFaceEmitter(Emitter):
    """GPT-2's `Conv1D` (a linear layer whose weight is (in, out)); attention when asked for."""

    name: ClassVar[str] = "transformers"
    priority: ClassVar[int] = 0

    def slots(self, path: str, module: nn.Module, options: EmitOptions) -> list[Slot] | None:
        """Slots of one module; None where it is neither. Works without transformers installed."""
        cls = type(module)
        if not cls.__module__.startswith("transformers."):
            return None
        if cls.__name__ == "Conv1D":
            rows, columns = module.get_parameter("weight").shape
            return linear_slots(
                path, class_name(module), weight=f"{path}.weight", shape=(columns, rows)
            )
        if options.attention and _computes_attention(module):
            return attention_slots(path, class_name(module), name=path)
        return None


def _computes_attention(module: nn.Module) -> bool:
    """Whether the module calls the attention function itself rather than through a child.

    transformers chooses that function by `config._attn_implementation`, so each such module keeps
    the config, and says whether it is causal or how it scales.
    """
    named = type(module).__name__.endswith(("Attention", "SelfAttention", "CrossAttention"))
    return named and hasattr(module, "config") and hasattr(module, "is_causal")


def build_from_directory(
    directory: Path, config: dict[str, Any], weights: bool, trust_remote_code: bool
) -> nn.Module:
    """The model of a HuggingFace directory, in eval mode.

    Args:
        directory: Holds config.json and, for `weights`, safetensors.
        config: The parsed config.json.
        weights: Load them in the dtype they are stored in; otherwise the model is on the meta
            device and costs no memory.
        trust_remote_code: Run code that the directory brings.

    Raises:
        UsageError: The config names a class that transformers does not have, or remote code.
        CheckpointError: The weights cannot be loaded, or leave keys missing.
        MissingExtraError: transformers is not installed.
    """
    from qrole.loading import require_transformers

    transformers = require_transformers(f"loading the model directory {directory}")
    if config.get("auto_map") and not trust_remote_code:
        raise UsageError(
            f"{directory}/config.json names Python code that comes with the model (auto_map)",
            expected="a model class that transformers ships",
            hint="read that code, then pass --trust-remote-code",
        )
    cls = _model_class(transformers, directory, config)
    if weights:
        return _load_weights(cls, directory, trust_remote_code)
    import torch

    try:
        parsed = transformers.AutoConfig.from_pretrained(
            directory, trust_remote_code=trust_remote_code, local_files_only=True
        )
        build = getattr(cls, "_from_config", None) or cls.from_config
        with torch.device("meta"):
            module: nn.Module = build(parsed)
    except Exception as error:
        raise CheckpointError(
            f"transformers cannot build the model of {directory}/config.json: "
            f"{str(error).splitlines()[0]}",
            expected=f"a config.json of a model that transformers {transformers.__version__} has",
            hint="check the file, or install a transformers release that has the model",
        ) from error
    module.tie_weights()  # type: ignore[operator]
    return module.eval()


def loaded_names(module: nn.Module) -> Callable[[str], str]:
    """What transformers calls a checkpoint's tensors in the model that it builds of them.

    Tensors that become part of a larger one, as those of experts do, are renamed but for that step.
    Models that are not of transformers keep the names.
    """
    import transformers

    if not isinstance(module, transformers.PreTrainedModel):
        return lambda stored: stored
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(module)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    known = module.state_dict()

    def loaded_name(stored: str) -> str:
        name, _ = rename_source_key(stored, renamings, [], module.base_model_prefix, known)
        return str(name)

    return loaded_name


def build_from_state(
    directory: Path,
    config: dict[str, Any],
    state: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    trust_remote_code: bool,
) -> tuple[nn.Module, list[str]]:
    """The model of a HuggingFace directory with weights from memory, in eval mode.

    Args:
        directory: Holds config.json; its weights are not read.
        config: The parsed config.json, without its quantization.
        state: Tensors by the names that the architecture's checkpoints have.
        dtype: Of the model.
        trust_remote_code: Run code that the directory brings.

    Returns:
        The model, and the names of tensors that it has no place for.

    Raises:
        UsageError, CheckpointError, MissingExtraError: As `build_from_directory`.
    """
    empty = build_from_directory(directory, config, False, trust_remote_code)
    parsed: Any = empty.config
    if hasattr(parsed, "quantization_config"):
        del parsed.quantization_config
    module, info = _from_pretrained(
        type(empty), directory, None, config=parsed, state_dict=dict(state), dtype=dtype
    )
    generation = directory / "generation_config.json"
    if generation.is_file() and getattr(module, "generation_config", None) is not None:
        owner: Any = module
        owner.generation_config = type(owner.generation_config).from_pretrained(
            directory, local_files_only=True
        )
    return module, sorted(info.get("unexpected_keys", ()))


def _model_class(transformers: Any, directory: Path, config: dict[str, Any]) -> Any:
    names = config.get("architectures") or []
    if config.get("auto_map"):
        return transformers.AutoModel
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    if names:
        raise UsageError(
            f"{directory}/config.json names the architecture {names[0]!r}",
            expected=f"a class of transformers {transformers.__version__}",
            hint="install a transformers release that has it",
        )
    return transformers.AutoModel


def _load_weights(cls: Any, directory: Path, trust_remote_code: bool) -> nn.Module:
    module, _ = _from_pretrained(
        cls,
        directory,
        directory,
        dtype="auto",
        local_files_only=True,
        trust_remote_code=trust_remote_code,
    )
    return module


def _from_pretrained(
    cls: Any, directory: Path, source: Path | None, **options: Any
) -> tuple[nn.Module, dict[str, Any]]:
    """What a class makes of weights, and what it says of their names; none may be missing."""
    from transformers.utils import logging

    # Its bar would run beside qrole's own, on terminals and in logs alike.
    logging.disable_progress_bar()
    try:
        module, info = cls.from_pretrained(source, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"transformers cannot load {directory}: {error}",
            expected="weights that fit config.json",
            hint="check that the download is complete",
        ) from error
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise CheckpointError(
            f"{directory} lacks {len(missing)} weights of {cls.__name__}, {missing[0]!r} first",
            expected="every weight of the architecture that config.json names",
            hint="check that the download is complete",
        )
    return module.eval(), info
