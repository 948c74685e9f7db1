"""Every exception that spectrograd raises on purpose. A traceback of anything else is a bug of ours."""


class SpectrogradError(Exception):
    """The root: catch this to catch all of ours. The text says what could not be done, why, and what to do."""


class CheckpointError(SpectrogradError):
    """A checkpoint, or one tensor of it, cannot be found or read."""


class SpectrumError(SpectrogradError):
    """A spectrum cannot be computed."""


class TableError(SpectrogradError):
    """A results folder or one of its tables cannot be read or written."""


class UnknownNameError(SpectrogradError):
    """A name that the user gave (metric, group, figure, run) does not exist, or is taken."""


class StorageError(SpectrogradError):
    """The machine stopped the work: disk full, results not writable. What was finished is kept."""
