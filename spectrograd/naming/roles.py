"""A parameter's name → what it says of layer, stack, expert and role. Shapes are judged elsewhere."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from spectrograd.naming import tables


@dataclass(frozen=True, slots=True)
class NameInfo:
    """What a name says. `layer` is the index in the name; `role` is None for a norm.

    `stack_text` is the text before the container of the layers (with the container where it is `encoder`, `decoder` or an
    MTP stack), `tail` what follows the layer's number, without `.weight`, `.kernel`, `.embedding`.
    """

    name: str
    tail: str
    role: str | None
    layer: int | None = None
    expert: int | None = None
    stack_text: str = ""
    cross: bool = False
    lora: bool = False

    @property
    def module(self) -> str:
        """The tail without its last component: the module that the matrix is part of."""
        return self.tail.rpartition(".")[0]


def canonical_name(key: str) -> str:
    """Return the key with `/` as dots and without the components that wrappers put in."""
    parts = key.replace("/", ".").split(".")
    return ".".join(part for part in parts if part not in tables.WRAPPERS) or key


# the checkpoints of a run repeat their names
@lru_cache(maxsize=2**16)
def read_name(key: str, container: re.Pattern[str] = tables.LAYER) -> NameInfo:
    """Return what a key says of layer, stack, expert and role, by names.md §1 and §2.

    Parameters
    ----------
    key
        Name of a parameter as its file has it.
    container
        Where the index of a layer stands: groups `container` and `index`.
    """
    name = canonical_name(key)
    lora = tables.LORA.search(name)
    text = tables.SUFFIX.sub("", name[: lora.start()] if lora else name)
    layer = container.search(text + ".")
    if layer is None:
        return NameInfo(name, text, _outside_role(text), expert=_expert(text), lora=lora is not None)
    tail = text[layer.end() + 1 :]
    if not tail or (layer["container"] == "sequential" and (role := _match(tail, tables.OUTSIDE_RULES)) and not _block_role(tail)):
        # a pipeline's list counts embedding and head among the layers
        return NameInfo(name, tail or text, role if tail else "other", lora=lora is not None)
    return NameInfo(
        name=name,
        tail=tail,
        role=None if tables.NORM.search(tail) and not _match(tail, tables.FIRST_RULES[:3]) else _block_role(tail) or "other",
        layer=int(layer["index"]),
        expert=_expert(tail),
        stack_text=_stack_text(text[: layer.start()], layer["container"]),
        cross=bool(tables.CROSS.search(tail)),
        lora=lora is not None,
    )


def find_container(names: Iterable[str]) -> re.Pattern[str] | None:
    """Return where unknown names carry a layer: before the first integer component whose values are exactly 0 … n - 1, n ≥ 2."""
    values: dict[str, set[int]] = {}
    for name in names:
        if (found := re.match(r"(.*?)\.(\d+)\.", name)) and not tables.OUTSIDE_RULES[-1][1].search(f"{found[1]}.{found[2]}"):
            values.setdefault(found[1], set()).add(int(found[2]))
    prefixes = [re.escape(prefix) for prefix, seen in values.items() if len(seen) > 1 and max(seen) == len(seen) - 1]
    if not prefixes:
        return None
    return re.compile(rf"^(?:(?P<container>{'|'.join(prefixes)}))\.(?P<index>\d+)(?=\.)")


def label_stack(text: str) -> str | None:
    """Return the label of a stack from the text before its layers; None where the text is empty."""
    for label, pattern in tables.STACKS:
        if pattern.search(text):
            return label
    return text.rpartition(".")[2] or None


def _stack_text(before: str, container: str) -> str:
    if container in ("encoder", "decoder") or container.startswith("mtp"):
        return f"{before}.{container}".strip(".")
    return before


def _expert(tail: str) -> int | None:
    found = tables.EXPERT.search(tail + ".")
    return int(found[1]) if found else None


def _match(text: str, rules: Iterable[tuple[str, re.Pattern[str]]]) -> str | None:
    return next((role for role, pattern in rules if pattern.search(text)), None)


def _block_role(tail: str) -> str | None:
    return _match(tail, (*tables.FIRST_RULES, *tables.ATTENTION_RULES, *tables.MLP_RULES))


def _outside_role(text: str) -> str | None:
    if tables.NORM.search(text):
        return None
    rules = (*tables.FIRST_RULES, *tables.ATTENTION_RULES, *tables.OUTSIDE_RULES, *tables.MLP_RULES)
    return _match(text, rules) or "other"
