"""Reads a chip profile from a file, or says everything that is wrong with it, with file, line, field and value."""

from __future__ import annotations

from pathlib import Path

from torch_fl._errors import ProfileError
from torch_fl.profile import contradictions
from torch_fl.profile.chip_profile import ChipProfile
from torch_fl.profile.located import Document, Problem, Unreadable, parse_json, read
from torch_fl.profile.validation import convert

__all__ = ["InvalidProfile", "check_document", "load", "loads"]


class InvalidProfile(ProfileError):
    """A profile has problems.

    Attributes:
        file: the profile.
        problems: all that was found, in the order of the file.
    """

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        count = f"{len(problems)} problems in chip profile {file}:\n  " if len(problems) > 1 else "chip profile "
        super().__init__(count + "\n  ".join(problem.text(file) for problem in problems))


def load(file: str | Path) -> ChipProfile:
    """Read a profile.

    Raises:
        InvalidProfile: the file cannot be read, is no JSON, or says something that cannot be.
    """
    try:
        document = read(file)
    except Unreadable as error:
        raise InvalidProfile(str(file), [error.problem]) from None
    return check_document(document)


def loads(text: str, file: str = "<profile>") -> ChipProfile:
    """Read a profile from JSON text; `file` is for messages.

    Raises:
        InvalidProfile: as `load`.
    """
    try:
        document = parse_json(text, file)
    except Unreadable as error:
        raise InvalidProfile(file, [error.problem]) from None
    return check_document(document)


def check_document(document: Document) -> ChipProfile:
    """Turn a decoded document into a profile.

    Raises:
        InvalidProfile: it has problems.
    """
    profile, problems = convert(document, ChipProfile)
    if profile is not None:
        problems = contradictions.find(profile, document)
    if profile is None or problems:
        raise InvalidProfile(document.file, problems)
    return profile
