"""Which layers are cut for tensor parallelism, by the names of modules, as people write it down: transformers' base_model_tp_plan.

    {"layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise", "lm_head": "colwise_rep"}

A * is one part of a name, such as a number; a pattern is all of a name, or its end from a dot on. Only what is named is cut: pairs
of layers from a column to a row, as cut_nodes.py finds them. A colwise_rep layer, whose output transformers gathers, is cut
where the loss takes its classes in parts.
"""

import json
import re
from pathlib import Path

from paragauge_import.refusal import Refusal

# transformers' other styles (sequence_parallel, gather, local_colwise, …) say what isn't said here by name.
STYLES = {"colwise": "colwise", "colwise_rep": "colwise", "rowwise": "rowwise", "embedding_rowwise": "rowwise"}


class Plan:
    """How the layers that are named are to be cut, and no others. styles: of STYLES, by pattern."""

    def __init__(self, styles: dict):
        self.styles = {pattern: STYLES[style] for pattern, style in styles.items()}
        self.refused = {}  # by name of a layer and style: with which others it could be so, which aren't so in the plan

    def has(self, name: str, style: str) -> bool:
        """Whether the layer is to be cut so."""
        return any(style == of and is_named(name, pattern) for pattern, of in self.styles.items())

    def takes(self, layers: dict) -> bool:
        """Whether all layers of a region are to be cut so. layers: their styles by name."""
        others = [f"'{name}' {style}" for name, style in layers.items() if not self.has(name, style)]
        if others:
            for name, style in layers.items():
                self.refused.setdefault(name, {}).setdefault(style, others)
        return not others

    def check(self, names: list, found: dict, reasons: dict):
        """Refusal: what of the plan isn't so. names: of all nodes; found: the styles of those that are cut; reasons: why others
        aren't that the plan takes."""
        wrong = []
        for pattern, style in self.styles.items():
            matching = [name for name in names if is_named(name, pattern)]
            uncut = [name for name in matching if found.get(name) != style]
            if not matching:
                wrong.append(f"--tp-plan: no layer is named '{pattern}'")
            elif uncut:
                wrong.append(f"--tp-plan: '{pattern}' can't be {style}: '{uncut[0]}': {reasons.get(uncut[0]) or self.why(uncut[0], style)}")
        if wrong:
            raise Refusal("\n".join(wrong))

    def why(self, name: str, style: str) -> str:
        """What stands against a layer's being cut so."""
        if name not in self.refused:
            return "no pair of layers has it that can be cut"
        if style not in self.refused[name]:
            return f"it could be {' or '.join(self.refused[name])}"
        return f"it could be so only with {', '.join(self.refused[name][style])}"


def is_named(name: str, pattern: str) -> bool:
    """Whether a layer's name, or its end from a dot on, is as the pattern."""
    return re.fullmatch(r"(.*\.)?" + re.escape(pattern).replace(r"\*", r"[^.]+"), name) is not None


def read_plan(path: Path) -> Plan:
    """Of a JSON file. Refusal: it can't be read, or isn't names with styles."""
    try:
        styles = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"--tp-plan {path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    except json.JSONDecodeError as error:
        raise Refusal(f"--tp-plan {path}: not valid JSON: {error}") from None
    if not isinstance(styles, dict) or not styles:
        raise Refusal(f"--tp-plan {path}: expected names of layers and how each is cut, as {{\"layers.*.wq\": \"colwise\"}}")
    for pattern, style in styles.items():
        if not isinstance(style, str) or style not in STYLES:
            raise Refusal(f"--tp-plan {path}: '{pattern}' is {json.dumps(style)}; known: {', '.join(STYLES)}")
    return Plan(styles)
