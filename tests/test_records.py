import pytest

from spectrograd.records import format_count


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (114_688, "115K"),
        (999_600, "1M"),
        (30_408_704, "30.4M"),
        (285_200_000, "285.2M"),
        (7e9, "7B"),
        (1.24e12, "1.2T"),
    ],
)
def test_counts_as_labels_have_them(count: float, text: str) -> None:
    assert format_count(count) == text
