"""Names of files and folders → training step and its kind. A name is the last resort: files and sidecars know better."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spectrograd.errors import UnknownNameError
from spectrograd.records import StepKind

_FLAGS = re.IGNORECASE
_SHARD_NOISE = re.compile(r"-\d{5}-of-\d{5}|rank[-_]?\d+|_part\d+|-shard\d+", _FLAGS)
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}

# In this order. Group 1 is the number and group 2, where there is one, its k or M.
_STEPS = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (
        r"(?:^|(?<!multi)[-_./])steps?[=_-]?0*(\d+)([km])?(?![\d.]|b\b)",
        r"global[-_]?steps?[-_=]?0*(\d+)",
        r"(?:^|[-_.])(?:iter|iteration|update)s?[-_=]?0*(\d+)([km])?",
        r"(?:^|-)ba0*(\d+)(?=-|$)",
        r"(?<![a-z\d.])(\d+)([km])?[-_]?steps?(?![a-z\d])",
        r"state_step0*(\d+)",
        r"^checkpoint_\d+_(\d+)$",
        r"^checkpoint-(\d+)$",
        r"^(?:model|ckpt|checkpoint|streaming_params|streaming_train_state)[-_]0*(\d{3,})$",
    )
)
_EPOCHS = tuple(
    re.compile(pattern, _FLAGS)
    for pattern in (r"(?:^|[-_.])(?:epoch|ep)[-_=]?0*(\d+)", r"^(?:checkpoint|rwkv-)0*(\d+)$", r"^checkpoint_(\d+)_\d+$")
)
_COUNTER = re.compile(r"^(?:ckpt|checkpoint)_(\d+)$", _FLAGS)
_TOKENS = re.compile(r"(?:^|[-_.])tokens?[-_=]?(\d+(?:\.\d+)?)([kmbt])?(?![a-z\d])", _FLAGS)
_STAGE = re.compile(r"^(stage\d+(?:-ingredient\d+)?)(?=[-_]|$)", _FLAGS)
_SEED = re.compile(r"(?:^|[-_.])seed[-_=]?(\d+)(?=[-_.]|$)", _FLAGS)
_SEED_FOLDER = re.compile(r"^(?:seed[-_=]?|s)(\d+)$", _FLAGS)

# twelve digits at most: a longer one is a date and time, or a commit
_BARE = re.compile(r"^\d{1,12}$")

_ALIAS = re.compile(
    r"^(?:(?:checkpoint|ckpt|model|rwkv|epoch)[-_.])?(?:final|last|best|latest|main|release)"
    r"(?:-v\d+|\s?\(\d+\)|\.bak|[-_](?:model|ckpt|checkpoint|weights|unsharded|rank\d+))*$|^checkpoint\.best_.*$",
    _FLAGS,
)
_UNFINISHED = re.compile(r"^\.?te?mp(?:[-_.]|$)|[-_.]te?mp(?:[-_.]?\d+)?$|\.(?:incomplete|partial|part)$|orbax-checkpoint-tmp", _FLAGS)
_NOTHING = frozenset(
    "checkpoints checkpoint ckpts ckpt chkpts chkpt snapshots snapshot weights weight models model saved_models saved_model "
    "model_checkpoints saves save output outputs out lightning_logs model_and_optim items".split()
)


@dataclass(frozen=True, slots=True)
class NamedStep:
    """What one name says: `step` is the number of a curve's axis, `kind` what it counts; with kind `epoch` both are the epoch."""

    step: int | None = None
    kind: StepKind | None = None
    epoch: int | None = None
    tokens: int | None = None
    stage: str | None = None
    seed: int | None = None


def parse_step(component: str) -> NamedStep | None:
    """Return what a folder's name or a file's stem says; None where it names no step, epoch, save or leading token count.

    A name of the form `ckpt_N` or `checkpoint_N` is judged by itself here; its siblings decide better (`decide_counters`).
    """
    name = _SHARD_NOISE.sub("", component)
    step, kind = _find_step(name)
    epoch = _first_number(_EPOCHS, name)
    if kind is None and epoch is not None:
        step, kind = epoch, "epoch"
    tokens, stage, seed = _TOKENS.search(name), _STAGE.search(name), _SEED.search(name)
    found = NamedStep(
        step=step,
        kind=kind,
        epoch=epoch,
        tokens=round(float(tokens[1]) * _THOUSANDS[(tokens[2] or "").lower()]) if tokens else None,
        stage=stage[1].lower() if stage else None,
        seed=int(seed[1]) if seed else None,
    )
    # a seed or a stage alone is the name of a run, not of a checkpoint
    return found if kind is not None or (tokens and tokens.start() == 0) else None


def parse_bare(component: str) -> NamedStep | None:
    """Return the step that is the whole name, None for any other. Only a folder that holds a checkpoint makes it one: the caller knows."""
    return NamedStep(int(component), "step") if _BARE.match(component) else None


def parse_counter(component: str) -> int | None:
    """Return N of a name `ckpt_N` or `checkpoint_N`, which is a step or counts saves (`decide_counters`)."""
    found = _COUNTER.match(component)
    return int(found[1]) if found else None


def decide_counters(names: Sequence[str]) -> Literal["step", "ordinal"]:
    """Return what N counts in the siblings `ckpt_N` or `checkpoint_N` of one run: optimizer steps, or saves."""
    return explain_counters(names)[0]


def explain_counters(names: Sequence[str]) -> tuple[Literal["step", "ordinal"], str]:
    """Return what N counts in the siblings `ckpt_N` or `checkpoint_N` of one run, and the rule that says so.

    Accelerate counts saves and deletes old ones, LLM360 counts them in three digits, forks of nanoGPT write steps.
    Names of another form are passed over.
    """
    digits = [found[1] for name in names if (found := _COUNTER.match(name))]
    numbers = sorted({int(text) for text in digits})
    if len(numbers) >= 3 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return "ordinal", "three or more consecutive numbers count saves"
    if any(len(text) in (2, 3) and text.startswith("0") for text in digits):
        return "ordinal", "numbers padded to two or three digits count saves"
    if len(numbers) >= 3:
        return "step", "three or more numbers with gaps are steps"
    if all(number < 100 for number in numbers):
        return "ordinal", "one or two numbers of at most two digits count saves"
    return "step", "numbers of three digits or more are steps"


def parse_seed_folder(name: str) -> int | None:
    """Return the seed of a folder that holds one seed of a run: `seed-0`, `seed_0`, `s0`."""
    found = _SEED_FOLDER.match(name)
    return int(found[1]) if found else None


def says_nothing(name: str) -> bool:
    """Return whether a folder's name is passed over in a run's label, because every run has one of that name."""
    return name.lower() in _NOTHING


def is_alias(name: str) -> bool:
    """Return whether a folder's name, a file's stem or a ref only points at a checkpoint: `last`, `best`, `latest`, `main`."""
    return bool(_ALIAS.match(name))


def is_unfinished(name: str) -> bool:
    """Return whether the name is one under which trainers write before a checkpoint is whole."""
    return bool(_UNFINISHED.search(name))


def natural_key(text: str) -> tuple[Any, ...]:
    """Return a sort key in which numbers count as numbers: `step9` before `step10`."""
    parts = re.split(r"([0-9]+)", text)
    return tuple(int(part) if i % 2 else part.casefold() for i, part in enumerate(parts)), text


def _find_step(name: str) -> tuple[int | None, StepKind | None]:
    counter = parse_counter(name)
    if counter is not None:
        return counter, decide_counters([name])
    number = _first_number(_STEPS, name)
    return number, None if number is None else "step"


def _first_number(patterns: Sequence[re.Pattern[str]], name: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(name):
            suffix = (found[2] or "") if pattern.groups > 1 else ""
            return int(found[1]) * _THOUSANDS[suffix.lower()]
    return None


def select_steps(spec: str, steps: Sequence[int]) -> set[int]:
    """Return those of the steps that a specification takes.

    Parameters
    ----------
    spec : str
        `0:10000:25` (first, last and spacing, the last included; parts may be left out), `0,50,100`, or `log:40` (as many
        of the steps, evenly spaced in log(1 + step), the first and the last among them).
    steps : sequence of int
        The steps that exist.

    Raises
    ------
    UnknownNameError
        If the specification cannot be read.
    """
    known = sorted(set(steps))
    try:
        if spec.startswith("log:"):
            return _spread(known, int(spec.removeprefix("log:")))
        if ":" in spec:
            first, last, spacing, *rest = (*spec.split(":"), "", "")[: max(3, spec.count(":") + 1)]
            if any(rest):
                raise ValueError(spec)
            start, stop, stride = int(first or 0), int(last) if last else math.inf, int(spacing or 1)
            return {step for step in known if start <= step <= stop and (step - start) % stride == 0}
        return set(known) & {int(part) for part in spec.split(",")}
    except (ValueError, ZeroDivisionError) as error:
        raise UnknownNameError(f"cannot read --steps {spec!r}: write 0:10000:25, 0,50,100 or log:40") from error


def _spread(known: list[int], count: int) -> set[int]:
    """Return about `count` of the steps, the nearest to points that are even in log(1 + step)."""
    if count < 1:
        raise ValueError(count)
    if len(known) <= count:
        return set(known)
    low, high = math.log1p(known[0]), math.log1p(known[-1])
    points = [math.expm1(low + (high - low) * i / max(1, count - 1)) for i in range(count)]
    return {min(known, key=lambda step: abs(step - point)) for point in points}
