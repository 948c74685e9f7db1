"""Fixtures that several rooms share; functions that build inputs are in `synthetic`."""

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """The one source of randomness of a test, the same in each."""
    return np.random.default_rng(20260422)
