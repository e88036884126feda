"""QR5xx: what engines make of a written checkpoint, and where they disagree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qrole.auditing.declaration import DeclarationSubject, Stored
from qrole.auditing.engine_support import missing_support
from qrole.auditing.options import Engine
from qrole.auditing.registry import Hit, Severity, check
from qrole.auditing.resolution import Resolution, excluding

_EXPERT = re.compile(r"(^|\.)experts\.\d+\.")


@check("QR530", Severity.ERROR)
def engine_refuses(subject: DeclarationSubject) -> Iterator[Hit]:
    """An engine refuses the checkpoint.

    Found by reading the config as the engine does: a fused layer of which one part is ignored and
    another is not, a linear layer that SGLang finds neither among the targets nor among the
    ignored, a mixed-precision group without a format, an algorithm that it does not know.

    List every unquantized linear layer in `ignore`, fused layers completely, absent parts included.
    """
    for engine in subject.engines:
        for module, found in subject.readings[engine].items():
            if found.error:
                yield _hit(
                    subject, module, f"{engine} {found.error}", "list fused layers completely"
                )


def _hit(subject: DeclarationSubject, module: str, message: str, to_do: str) -> Hit:
    return Hit(module, message, to_do, module, subject.config_file, 1)


@check("QR531", Severity.ERROR)
def read_as_another(subject: DeclarationSubject) -> Iterator[Hit]:
    """An engine reads a tensor as something else than what is stored.

    The config gives the module a scheme that does not fit its tensors: codes read as values, values
    as codes, or codes with the scales of another format. Engines notice some of it by the shapes
    and load the rest.

    Correct the targets. Names must be those of the checkpoint, regular expressions end in `$`.
    """
    for engine in subject.engines:
        for module, found in subject.readings[engine].items():
            stored = subject.stored[module]
            if not found.error and _differs(found, stored):
                by = f" ({found.by})" if found.by else ""
                yield _hit(
                    subject,
                    module,
                    f"{engine} reads it as {found.label}{by}, stored is {stored.label}",
                    "correct the targets or the list of excluded modules",
                )


def _differs(found: Resolution, stored: Stored) -> bool:
    if "unknown" in (found.encoding, stored.encoding):
        return False
    return found.encoding != stored.encoding


@check("QR532", Severity.ERROR)
def engines_disagree(subject: DeclarationSubject) -> Iterator[Hit]:
    """Engines read one tensor differently.

    They sort targets differently, look at fused layers and classes in another order, and match
    entries of the ignore list as names, suffixes, globs or parts of names. A checkpoint that was
    tried in one of them fails, or is slightly wrong, in another.

    Write disjoint targets, full names or regular expressions that end in `$`, and all unquantized
    layers in `ignore`.
    """
    readings = {engine: found for engine, found in subject.readings.items() if found}
    for module in subject.stored:
        found = {engine: r[module].label for engine, r in readings.items() if module in r}
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{engine}: {label}" for engine, label in found.items())
            yield _hit(subject, module, shown, "write disjoint targets with full names")


@check("QR533", Severity.ERROR)
def excluded_by_part_of_name(subject: DeclarationSubject) -> Iterator[Hit]:
    """A part of a module's name is enough for vLLM to exclude it.

    vLLM takes the entries of ModelOpt's exclude list as parts of names: `mlp.gate` excludes
    `mlp.gate_proj`, `model.layers.1` excludes layer 10. The module's codes are
    then loaded as values.

    Write full names, or `prefix.*`.
    """
    if subject.method != "modelopt" or Engine.VLLM not in subject.engines:
        return
    for module, stored in subject.stored.items():
        entry = excluding(Engine.VLLM, subject, module)
        exact = excluding(Engine.SGLANG, subject, module)
        if stored.encoding and entry is not None and exact is None:
            yield _hit(
                subject,
                module,
                f"vllm finds {entry!r} in its name and leaves it out, stored is {stored.label}",
                "write full names, or prefix.*",
            )


@check("QR534", Severity.ERROR)
def silently_wrong(subject: DeclarationSubject) -> Iterator[Hit]:
    """An engine loads the checkpoint and computes something else, without an error.

    transformers does not know ModelOpt's layout: it warns, and takes FP8 codes for values. It
    dequantizes NVFP4 experts without their global scale. Its experts get the scheme of the first
    group whose target is a regular expression with `experts` in it, whatever the names say.

    Serve it with another engine, or write another layout (`qrole apply --layout`).
    """
    if Engine.TRANSFORMERS not in subject.engines:
        return
    experts = [m for m, s in subject.stored.items() if s.encoding and _EXPERT.search(m)]
    if subject.method == "modelopt":
        yield _hit(
            subject,
            "quantization_config",
            "transformers takes ModelOpt's codes for values",
            "write compressed-tensors for transformers",
        )
    if subject.method != "compressed-tensors" or not experts:
        return
    if any(subject.stored[m].encoding == "nvfp4" for m in experts):
        yield _hit(
            subject,
            experts[0],
            "transformers 5 dequantizes NVFP4 experts without the global scale",
            "serve it with another engine",
        )
    targets = [e for g in subject.groups.values() for e in g.get("targets") or ()]
    if not any(str(e).startswith("re:") and "experts" in str(e) for e in targets):
        yield _hit(
            subject,
            experts[0],
            "transformers 5 finds the experts' group only by a target 're:...experts...'",
            r"write a target such as re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$",
        )


@check("QR535", Severity.ERROR)
def layout_not_loaded(subject: DeclarationSubject) -> Iterator[Hit]:
    """The engine has no reader for a scheme in this layout.

    Checked with `--engine NAME`. Facts are those of the engines' releases that qrole was written
    against: vLLM 0.33, SGLang 0.5.23, transformers 5.24, TensorRT-LLM's main branch.

    Write another scheme, or serve with another engine.
    """
    for engine in subject.engines if subject.asked else ():
        asked = {
            (stored.encoding, bool(_EXPERT.search(module)))
            for module, stored in subject.stored.items()
            if stored.encoding not in ("", "unknown")
        }
        for (encoding, experts), reason in missing_support(engine, asked, subject.method).items():
            module = next(
                m
                for m, s in subject.stored.items()
                if s.encoding == encoding and bool(_EXPERT.search(m)) is experts
            )
            yield _hit(
                subject,
                module,
                f"{engine} does not load {encoding}: it {reason}",
                "write another scheme, or serve with another engine",
            )
