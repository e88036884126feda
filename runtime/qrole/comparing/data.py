"""Input batches: from the model's file, text and its tokenizer, JSON lines, or safetensors."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrole.errors import CheckpointError, UsageError
from qrole.loading import LoadedModel, require_transformers
from qrole.user_code import running_user_code

if TYPE_CHECKING:
    import torch

    from qrole.comparing.outputs import Batch

__all__ = ["Data", "DataOptions", "load_data"]

_CHOICES = (
    "--data FILE (.txt with the model's tokenizer, .jsonl, .safetensors), or a model file with "
    "calibration_data() or example_inputs()"
)
_TOKENS = "input_ids"


@dataclass(frozen=True)
class DataOptions:
    """What to feed.

    Invariants: samples, seq_len and batch_size are >= 1.

    Attributes:
        file: Text, JSON lines or safetensors; None takes what the model's source offers.
        samples: Samples at most.
        seq_len: Tokens per sample at most.
        batch_size: Samples per batch.
    """

    file: Path | None = None
    samples: int = 16
    seq_len: int = 256
    batch_size: int = 4

    def __post_init__(self) -> None:
        for name in ("samples", "seq_len", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name} is {getattr(self, name)}", expected=">= 1", hint="leave it out"
                )


@dataclass(frozen=True)
class Data:
    """Batches, and where they came from.

    Attributes:
        batches: Positional (tuple) or keyword (dict) arguments of one forward each.
        source: A file's name, `calibration_data()`, `example_inputs()`, or a text's name.
        samples: Samples in all batches.
        tokens: Tokens that count (padding excluded); 0 where inputs are no tokens.
        sha256: Over all tensors.
    """

    batches: tuple[Batch, ...]
    source: str
    samples: int
    tokens: int
    sha256: str

    def facts(self) -> dict[str, Any]:
        """What reports say of it."""
        return {
            "source": self.source,
            "batches": len(self.batches),
            "samples": self.samples,
            "tokens": self.tokens,
            "sha256": self.sha256,
        }


def load_data(model: LoadedModel, options: DataOptions) -> Data:
    """The batches that a model is to be run on; floating-point inputs in the model's dtype.

    Raises:
        UsageError: There is no data to be had, or the file does not fit the model.
        CheckpointError: A file cannot be read.
        UserCodeError: The model file's function raised.
    """
    options = replace(options, seq_len=min(options.seq_len, _longest(model)))
    if options.file is not None:
        batches, source = _from_file(model, options, options.file), options.file.name
    elif model.calibration_data is not None:
        with running_user_code("calibration_data()", None):
            given = islice(model.calibration_data(), options.samples)
            batches, source = [_as_batch(b) for b in given], "calibration_data()"
    elif model.example_inputs is not None:
        with running_user_code("example_inputs()", None):
            batches, source = [_as_batch(model.example_inputs())], "example_inputs()"
    elif _has_tokenizer(model) and _main_input(model) == _TOKENS:
        batches, source = _from_text(model, options, _builtin_text()), "pydoc_data.topics"
    else:
        raise UsageError(
            f"there is no input data for {model.spec}",
            expected=_CHOICES,
            hint="pass --data, or add example_inputs() to the model file",
        )
    batches = [_fitted(b, model) for b in batches if b]
    if not batches:
        raise UsageError(f"{source} holds no samples", expected=_CHOICES, hint="give more data")
    return Data(tuple(batches), source, *_counts(batches), _digest(batches))


def _fitted(batch: Batch, model: LoadedModel) -> Batch:
    """Inputs on the model's device, floating-point ones in its dtype."""
    import torch

    first = next(model.module.parameters(), None) if model.module is not None else None
    if first is None:
        return batch

    def fit(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point() and first.is_floating_point():
            return value.to(first.device, first.dtype)
        return value.to(first.device)

    if isinstance(batch, dict):
        return {name: fit(value) for name, value in batch.items()}
    return tuple(map(fit, batch))


def _as_batch(given: Any) -> Batch:
    import torch

    if isinstance(given, torch.Tensor):
        return (given,)
    if isinstance(given, (tuple, list)):
        return tuple(given)
    if isinstance(given, dict):
        return dict(given)
    raise UsageError(
        f"the model file gave an input of type {type(given).__name__}",
        expected="a tensor, a tuple of positional inputs, or a dict of keyword inputs",
        hint="return the arguments of one forward",
    )


def _from_file(model: LoadedModel, options: DataOptions, path: Path) -> list[Batch]:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}", expected=_CHOICES, hint="check --data")
    if path.suffix == ".safetensors":
        return _from_safetensors(path, options)
    if path.suffix == ".jsonl":
        return _from_json_lines(model, options, path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no UTF-8 text ({error.reason} at byte {error.start})",
            expected=_CHOICES,
            hint="convert it to UTF-8, or name a .safetensors file of batches",
        ) from error
    return _from_text(model, options, text)


def _from_safetensors(path: Path, options: DataOptions) -> list[Batch]:
    """Tensors named after forward's keywords, samples along the first dimension."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}",
            expected="a safetensors file of inputs",
            hint="write it again with safetensors.torch.save_file",
        ) from error
    sizes = {name: tensor.shape[0] for name, tensor in tensors.items() if tensor.dim()}
    if not sizes or len(set(sizes.values())) != 1:
        raise UsageError(
            f"the tensors of {path} have first dimensions {sizes}",
            expected="one tensor per keyword of forward(), all with the same number of samples",
            hint="stack the samples along dimension 0",
        )
    total = min(next(iter(sizes.values())), options.samples)
    return [
        {name: t[start : min(start + options.batch_size, total)] for name, t in tensors.items()}
        for start in range(0, total, options.batch_size)
    ]


def _from_json_lines(model: LoadedModel, options: DataOptions, path: Path) -> list[Batch]:
    """One object per line: `text` (or `prompt`, `content`), or `input_ids`."""
    texts: list[str] = []
    ids: list[list[int]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}:{number} is no JSON: {error}",
                expected='one object per line, such as {"text": "..."}',
                hint="fix that line",
            ) from error
        text = next((record[k] for k in ("text", "prompt", "content") if k in record), None)
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(record.get("input_ids"), list):
            ids.append(record["input_ids"])
        else:
            raise UsageError(
                f"{path}:{number} has the keys {sorted(record)}",
                expected="a key text, prompt or content (a string), or input_ids (a list)",
                hint="rename the key",
            )
        if len(texts) + len(ids) == options.samples:
            break
    if ids:
        return _batches_of_ids([i[: options.seq_len] for i in ids], options, pad=0)
    return _tokenized(model, options, texts)


def _has_tokenizer(model: LoadedModel) -> bool:
    if model.directory is None or model.module is None:
        return False
    return any(
        (model.directory / name).is_file()
        for name in ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")
    )


def _builtin_text() -> str:
    """English prose that every Python ships, in a fixed order."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def _from_text(model: LoadedModel, options: DataOptions, text: str) -> list[Batch]:
    """Lines as samples for encoders; a run of tokens cut into windows for causal models."""
    if _is_causal(model):
        return _windows(model, options, text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _tokenized(model, options, lines[: options.samples])


def _main_input(model: LoadedModel) -> str:
    """The keyword that transformers says a model cannot do without."""
    return str(getattr(model.module, "main_input_name", _TOKENS))


def _longest(model: LoadedModel) -> int:
    """Tokens that the model has positions for, as far as its config says."""
    config = getattr(model.module, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else sys.maxsize


def _is_causal(model: LoadedModel) -> bool:
    return type(model.module).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def _tokenizer(model: LoadedModel) -> Any:
    if not _has_tokenizer(model):
        raise UsageError(
            f"{model.spec} has no tokenizer, so text cannot be turned into its inputs",
            expected="a HuggingFace directory with tokenizer.json or vocab.txt",
            hint="name a .safetensors file whose tensors are forward()'s keywords",
        )
    if _main_input(model) != _TOKENS:
        raise UsageError(
            f"{model.spec} reads {_main_input(model)}, which text does not give",
            expected="a .safetensors file whose tensors are forward()'s keywords",
            hint="save a few inputs as the model's processor makes them, or write a model file "
            "with example_inputs()",
        )
    transformers = require_transformers("tokenizing text")
    assert model.directory is not None
    try:
        return transformers.AutoTokenizer.from_pretrained(model.directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the tokenizer of {model.directory} cannot be loaded: {error}",
            expected="tokenizer files that transformers reads",
            hint="fetch them again",
        ) from error


def _tokenized(model: LoadedModel, options: DataOptions, texts: list[str]) -> list[Batch]:
    """Padded batches of truncated texts."""
    tokenizer = _tokenizer(model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return [
        dict(
            tokenizer(
                texts[start : start + options.batch_size],
                padding=True,
                truncation=True,
                max_length=options.seq_len,
                return_tensors="pt",
            )
        )
        for start in range(0, len(texts), options.batch_size)
    ]


def _windows(model: LoadedModel, options: DataOptions, text: str) -> list[Batch]:
    """Consecutive windows of `seq_len` tokens; a shorter text gives one shorter window."""
    wanted = options.samples * options.seq_len
    # The windows are as long as the model takes, which the tokenizer cannot know.
    encoded = _tokenizer(model)(text[: wanted * 12], add_special_tokens=False, verbose=False)
    ids = encoded["input_ids"]
    count = min(len(ids) // options.seq_len, options.samples)
    if not count:
        return _batches_of_ids([ids], options, pad=0) if ids else []
    windows = [ids[i * options.seq_len : (i + 1) * options.seq_len] for i in range(count)]
    return _batches_of_ids(windows, options, pad=0)


def _batches_of_ids(ids: list[list[int]], options: DataOptions, *, pad: int) -> list[Batch]:
    import torch

    batches: list[Batch] = []
    for start in range(0, len(ids), options.batch_size):
        group = ids[start : start + options.batch_size]
        longest = max(map(len, group))
        batch = {"input_ids": torch.tensor([i + [pad] * (longest - len(i)) for i in group])}
        if any(len(i) < longest for i in group):
            mask = [[1] * len(i) + [0] * (longest - len(i)) for i in group]
            batch["attention_mask"] = torch.tensor(mask)
        batches.append(batch)
    return batches


def _tensors(batches: Iterable[Batch]) -> Iterator[torch.Tensor]:
    import torch

    for batch in batches:
        values = batch.values() if isinstance(batch, dict) else batch
        yield from (value for value in values if isinstance(value, torch.Tensor))


def _counts(batches: list[Batch]) -> tuple[int, int]:
    samples = tokens = 0
    for batch in batches:
        first = next(_tensors([batch]), None)
        samples += first.shape[0] if first is not None and first.dim() else 1
        if isinstance(batch, dict) and "input_ids" in batch:
            mask = batch.get("attention_mask")
            tokens += int(mask.sum()) if mask is not None else batch["input_ids"].numel()
    return samples, tokens


def _digest(batches: list[Batch]) -> str:
    import torch

    digest = hashlib.sha256()
    for tensor in _tensors(batches):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
