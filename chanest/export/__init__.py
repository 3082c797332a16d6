"""Estimators as files for programs without this package: `.pt2` of `torch.export`, and ONNX where all is in its operators.

Modules are imported when a name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chanest.export.core import as_received
    from chanest.export.writing import FORMS, check_exported, exported, form_of, forms_of, in_words, program_of

_NAMES = {
    "as_received": "core",
    **dict.fromkeys(
        ("FORMS", "check_exported", "exported", "form_of", "forms_of", "in_words", "program_of"), "writing"
    ),
}
__all__ = ["FORMS", "as_received", "check_exported", "exported", "form_of", "forms_of", "in_words", "program_of"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
