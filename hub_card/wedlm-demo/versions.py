"""The version of this code and the versions of transformers that it was tested with, in a file without torch."""

VERSION = "0.3.0.dev0"
OLDEST_TRANSFORMERS, NEWEST_TRANSFORMERS = "5.17", "5.24"


def is_untested(transformers_version: str) -> bool:
    """Whether a version of transformers is newer than the newest minor version that was tested."""

    def minor(version: str) -> list[int]:
        return [int(number) for number in version.split(".")[:2]]

    return minor(transformers_version) > minor(NEWEST_TRANSFORMERS)
