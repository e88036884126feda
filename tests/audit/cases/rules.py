"""Mistakes in rules files."""

from __future__ import annotations

from tests.audit.building import case, decoder, ruled

MXFP8 = 'quantizer = "MXFP8Quantizer"\n'
HIGH = 'quantizer = "IdentityQuantizer"\n'
DEFAULT = 'default = "mxfp8"\n'
REST = f"[[rule]]\n{MXFP8}"

CASES = [
    case(
        "an excluded name that the model no longer has",
        "QR209",
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "*.fc_out"\n{HIGH}'),
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "*.o_proj"\n{HIGH}'),
    ),
    case(
        "a regular expression without re:",
        "QR209",
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "layers\\\\.[01]\\\\.mlp.*"\n{HIGH}'),
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "re:layers\\\\.[01]\\\\.mlp.*"\n{HIGH}'),
    ),
    case(
        "a regular expression for a part of the name",
        "QR209",
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "re:self_attn"\n{HIGH}'),
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "re:.*self_attn.*"\n{HIGH}'),
    ),
    case(
        "a general rule above a special one",
        "QR210",
        ruled(decoder, f'{REST}[[rule]]\nmodule = "*.down_proj"\n{HIGH}'),
        ruled(decoder, f'[[rule]]\nmodule = "*.down_proj"\n{HIGH}{REST}'),
    ),
    case(
        "a pattern that takes more layers than meant",
        "QR211",
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "layers.*.mlp.*"\nexpect = 3\n{HIGH}'),
        ruled(decoder, f'{DEFAULT}[[rule]]\nmodule = "layers.*.mlp.*"\nexpect = 18\n{HIGH}'),
    ),
    case(
        "layers that no rule is about",
        "QR212",
        ruled(decoder, f'[[rule]]\nmodule = "layers.*.mlp.*"\n{MXFP8}'),
        ruled(decoder, f'default = "high_precision"\n[[rule]]\nmodule = "layers.*.mlp.*"\n{MXFP8}'),
    ),
]
