def median(values: list[float]) -> float:
    """The value in the middle."""
    return values[len(values) // 2]
