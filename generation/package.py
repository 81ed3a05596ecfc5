"""The version of this code, and what it takes from the package where that is installed; a file without torch."""

from importlib import import_module
from types import ModuleType

VERSION = "0.4.0.dev0"
OLDEST_TRANSFORMERS, NEWEST_TRANSFORMERS = "5.17", "5.24"


def is_untested(transformers_version: str) -> bool:
    """Whether a version of transformers is newer than the newest minor version that was tested."""

    def minor(version: str) -> list[int]:
        return [int(number) for number in version.split(".")[:2]]

    return minor(transformers_version) > minor(NEWEST_TRANSFORMERS)


def from_package(module: str, user: str) -> ModuleType:
    """Imports a module of the package that does not travel with a checkpoint, as one that an import names would.

    Args:
        module (`str`): The module.
        user (`str`): What needs it, for the error of a place where the package of this version is missing.
    """
    try:
        installed = getattr(import_module("wedlm"), "__version__", None)  # a folder of that name has no version
    except ModuleNotFoundError:
        installed = None
    if installed is None:
        raise ImportError(f"{user} needs the package wedlm, which is not installed; run pip install wedlm.")
    if installed != VERSION:
        raise ImportError(
            f"{user} needs wedlm {VERSION} beside this checkpoint's code, and {installed} is installed; import wedlm "
            "before you load the model, whose code is then the package's."
        )
    return import_module(module)
