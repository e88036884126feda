"""`python -m tests.models [NAME...]`: makes the real models that slow tests and benchmarks use.

Each becomes a folder below `.models`; one that is complete is left as it is. Needs the packages
that `make models` installs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from qrole.errors import QroleError
from tests.models import dinov2, efficientnet, minilm, moe, smollm2, whisper

ROOT = Path(__file__).resolve().parents[2] / ".models"
MODELS = {
    "minilm": minilm.MODEL,
    "smollm2": smollm2.MODEL,
    "dinov2": dinov2.MODEL,
    "whisper": whisper.MODEL,
    "efficientnet": efficientnet.MODEL,
    "moe": moe.MODEL,
}


def main(arguments: list[str] | None = None) -> int:
    """Makes the named models, or all; `None` means the arguments of the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    names = parser.parse_args(arguments).names or list(MODELS)
    if unknown := set(names) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    try:
        for name in names:
            _make(name)
    except ModuleNotFoundError as error:
        return _failed(f"the package {error.name!r} is not installed\nto do: `make models`")
    except QroleError as error:
        return _failed(str(error))
    return 0


def _make(name: str) -> None:
    model = MODELS[name]
    if not model.missing(ROOT):
        print(f"{name}: {model.folder} is complete", flush=True)
        return
    print(f"{name}: making {model.folder}", flush=True)
    model.build(ROOT)


def _failed(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
