"""File formats. A reader knows bytes and not meaning: what tensors a file announces, and the values of one of them.

A reader is a module listed in `READERS`; the first that matches a path reads it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spectrograd.errors import CheckpointError
from spectrograd.readers import safetensors_file, torch_zip

if TYPE_CHECKING:
    import torch

    from spectrograd.records import Entry


class Reader(Protocol):
    """What a reader module provides."""

    NAME: str

    def matches(self, path: Path) -> bool:
        """Tell by name and first bytes whether this reader is the one for `path`."""
        ...

    def entries(self, path: Path) -> list["Entry"]:
        """Return what tensors the file announces, without reading their values."""
        ...

    def read(self, path: Path, key: str) -> "torch.Tensor":
        """Return one tensor on the CPU, memory-mapped where the format allows it."""
        ...

    def metadata(self, path: Path) -> dict[str, Any]:
        """Return what the file says besides its tensors (step, configuration), plain values only."""
        ...


READERS: tuple[Reader, ...] = (safetensors_file, torch_zip)
UNKNOWN_FORMAT = "its format is not known (read: safetensors, torch.save zip files)"


def find_reader(path: Path) -> Reader:
    """Return the reader for a file.

    Raises
    ------
    CheckpointError
        If no reader knows the format; the text says what the file looks like.
    """
    for reader in READERS:
        if reader.matches(path):
            return reader
    raise CheckpointError(f"cannot read {path}: {describe_foreign(path)}")


def describe_foreign(path: Path) -> str:
    """Return what a file that no reader knows looks like, and what to do about it."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        return f"{error.strerror or error}"
    if not head:
        return "the file is empty; copy or save it again"
    if head.startswith(b"version https://git-lfs"):
        size = next((line.split()[1].decode() for line in head.splitlines() if line.startswith(b"size ")), "?")
        return f"it is a Git LFS pointer for {size} bytes; run `git lfs pull`"
    if head.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "it is an HTML page, not weights; download the file again"
    if head.startswith(b"\x80\x02\x8a\x0a"):
        return "it is in torch's format from before 1.6, which is not read yet; load it and save it again with torch.save"
    return UNKNOWN_FORMAT
