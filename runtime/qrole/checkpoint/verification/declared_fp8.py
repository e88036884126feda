"""Reading an `fp8` quantization_config (blocks of 128x128) as engines do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qrole.checkpoint.verification.declared import Declared

__all__ = ["declared_fp8"]


def declared_fp8(config: Mapping[str, Any], modules: Sequence[str]) -> Declared:
    """Resolves an `fp8` config: every linear layer but those that are named."""
    found = Declared("fp8-block")
    if config.get("weight_block_size") != [128, 128]:
        found.complain(
            "config-scheme",
            "config.json",
            f"weight_block_size is {config.get('weight_block_size')}; only [128, 128] means the "
            "same in all engines",
        )
    kept = set(config.get("modules_to_not_convert") or ())
    for module in modules:
        if module in kept:
            found.ignored.add(module)
        else:
            found.schemes[module] = "fp8_block"
    for entry in sorted(kept):
        wide = [m for m in found.schemes if re.match(entry, m)]
        if wide:
            found.complain(
                "wide-ignore", "modules_to_not_convert", f"{entry!r} also begins {wide[0]}"
            )
    return found
