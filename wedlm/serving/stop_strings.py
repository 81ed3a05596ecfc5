"""Stop strings, which end a text and are no part of it."""


def as_list(stop_strings: list[str] | str | None) -> list[str]:
    if stop_strings is None:
        return []
    return stop_strings if isinstance(stop_strings, list) else [stop_strings]


def before_stop(text: str, stop_strings: list[str] | str | None) -> str:
    """The text up to the first stop string."""
    for stop in as_list(stop_strings):
        text = text.partition(stop)[0]
    return text


def before_possible_stop(text: str, stop_strings: list[str] | str | None) -> str:
    """The text up to the first stop string, or up to an end that the next tokens may make one."""
    text = before_stop(text, stop_strings)
    beginnings = (stop[:length] for stop in as_list(stop_strings) for length in range(1, len(stop)))
    return text[: len(text) - max((len(part) for part in beginnings if text.endswith(part)), default=0)]
