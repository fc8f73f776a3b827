"""Sorts the files in a drop folder by name: sheets, their cover notes and plans, and strays.

A cover note or plan is named exactly after its sheet. A similar name (`payroll.toml`, `payroll.csv.tolm` or
`payroll.csv.yaml` next to `payroll.csv`, another case, a second extension, another Unicode form) was probably intended
for the sheet, which must then not be paid without it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paygw_batch.core.text import normalise_spelling
from paygw_batch.errors import ApprovalError, PaygwError, SheetError
from paygw_batch.language import say
from paygw_batch.sheet.read.format import SHEET_EXTENSIONS, file_kind

PLAN_SUFFIX = ".plan.json"
NOTE_SUFFIX = ".toml"
_REPORT_SUFFIXES = (".reconciliation.csv", ".refused.txt")
"""The endings of our own reports, which are not sheets."""
_HIDDEN_PREFIXES = (".", "~")
"""The first characters of hidden files and of office programs' lock files."""
_BACKUP_SUFFIX = "~"
"""The last character of an editor's backup."""
_SYSTEM_NAMES = frozenset(
    {"thumbs.db", "desktop.ini", "lost+found", "@eadir", "#recycle", "$recycle.bin", "system volume information"}
)
"""The lower-case names of entries that operating systems and file servers create in folders."""
_UNFINISHED = re.compile(
    r"(.+)\.(?:part|partial|filepart|tmp|temp|crdownload|download|opdownload|upload|uploading|inprogress)",
    re.DOTALL | re.IGNORECASE,
)
"""Matches the name of an unfinished download or transfer. The group is the final name."""
_RSYNC = re.compile(r"\.(.+)\.[A-Za-z0-9]{6}", re.DOTALL)
"""Matches the temporary name of a file that rsync is writing. The group is the final name."""
_COPY_MARK = re.compile(r"(?: ?\(\d+\)| ?\[\d+\]| -? ?(?:copy|copie|kopie)(?: \d+)?|[ _])+$")
"""Matches the suffix that browsers and desktops add to a name that is already taken."""


def _misspelling_pattern(word: str) -> re.Pattern[str]:
    """Return a pattern that matches a word with at most one typing error."""
    patterns = [word]
    for position in range(len(word) + 1):
        start, end = word[:position], word[position:]
        patterns += [f"{start}.{end}", f"{start}.{end[1:]}", start + end[1:]]
        patterns.append(f"{start}{end[1:2]}{end[:1]}{end[2:]}")
    return re.compile("|".join(patterns))


_SHEET_SUFFIX = "|".join(ending.removeprefix(".") for ending in SHEET_EXTENSIONS)
_NOTE = re.compile(f"(?:{_misspelling_pattern('toml').pattern}|(?:{_SHEET_SUFFIX})toml)")
"""Matches the extension of a cover note, including misspellings."""
_SHEET_OR_NOTE = re.compile(f"{_SHEET_SUFFIX}|{_NOTE.pattern}")
_OTHER_NOTE_SUFFIXES = frozenset({"yaml", "yml", "ini", "cfg", "conf", "note", "notes", "json", "md", "txt", "text"})
"""The extensions of other programs' notes, considered only after a sheet's full name."""
_EXTRA_SUFFIXES = _OTHER_NOTE_SUFFIXES | {"", "plan", "bak", "old", "orig", "gz", "zip", "xls", "xlsm", "ods"}


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry in a drop folder. It `is_settled` if it has not changed for a while."""

    is_file: bool
    is_folder: bool
    is_settled: bool


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file refused without being read. `strays` are notes and plans refused with it."""

    error: PaygwError
    strays: Sequence[str] = ()


@dataclass(slots=True)
class SortedFiles:
    """The file names in a drop folder, grouped by how they are handled.

    `ready` sheets can be claimed. `untouched` maps names to the reason why a person should check the file. `waiting`
    files may still become ready. `unfinished` files are named like incomplete transfers.
    """

    ready: list[str] = field(default_factory=list)
    refused: dict[str, RefusedFile] = field(default_factory=dict)
    untouched: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def sort_files(entries: Mapping[str, FolderEntry]) -> SortedFiles:
    """Sort the files in a drop folder, ignoring hidden and system files."""
    result = SortedFiles()
    unfinished = {name: final_name for name in entries if (final_name := _final_name(name)) is not None}
    result.unfinished = sorted(unfinished)
    names = [name for name in entries if not _is_ignored(name) and name not in unfinished]
    companions = {name for name in names if is_companion(name)}
    others = [name for name in names if name not in companions and not entries[name].is_folder]
    arriving = [final_name for name, final_name in unfinished.items() if not entries[name].is_settled]
    sheets = [*arriving, *(name for name in others if is_sheet(name))]
    other_notes = _find_other_notes(others, sheets)
    companions |= other_notes
    others, sheets = ([name for name in group if name not in other_notes] for group in (others, sheets))
    expected_names = {companion for name in others for companion in companions_for(name)}
    strays = companions - expected_names
    for name in (name for name in names if name in strays or name not in companions):
        entry, is_stray = entries[name], name in strays
        if not is_stray and entry.is_file and not name.lower().endswith(_REPORT_SUFFIXES):
            _sort_file(name, entries, [stray for stray in strays if is_meant_for(stray, name)], unfinished, result)
        elif not entry.is_settled or (is_stray and any(is_meant_for(name, sheet) for sheet in sheets)):
            result.waiting.append(name)  # a stray meant for a sheet is refused with it
        else:
            result.untouched[name] = _untouched_reason(name, entry, is_stray=is_stray)
    return result


def is_sheet(name: str) -> bool:
    lowered = name.lower()
    return lowered.endswith(SHEET_EXTENSIONS) and not lowered.endswith(_REPORT_SUFFIXES) and not is_companion(name)


def is_companion(name: str) -> bool:
    """Return whether a file is named like a cover note or a plan, even if misspelled."""
    return _is_note(name) or _is_plan(name)


def companions_for(name: str) -> Sequence[str]:
    """Return the names of a file's cover note and, for a sheet, of its plan."""
    note = f"{name}{NOTE_SUFFIX}"
    return [note, f"{name.rpartition('.')[0]}{PLAN_SUFFIX}"] if is_sheet(name) else [note]


def is_meant_for(companion: str, sheet: str) -> bool:
    """Return whether a note or plan has a sheet's name, ignoring extensions, case, spaces and Unicode form."""
    return _name_root(companion) == _name_root(sheet)


def _sort_file(
    name: str,
    entries: Mapping[str, FolderEntry],
    strays: Sequence[str],
    unfinished: Mapping[str, str],
    result: SortedFiles,
) -> None:
    own_names = [name, *companions_for(name)]
    spellings = {normalise_spelling(companion) for companion in own_names}
    transfers = sorted(transfer for transfer, final in unfinished.items() if normalise_spelling(final) in spellings)
    own_files = [companion for companion in own_names if companion in entries]
    if not all(entries[file].is_settled for file in [*own_files, *transfers, *strays]):
        result.waiting.append(name)
    elif transfers:
        result.untouched[name] = say(
            "{name} has not been transferred completely: {unfinished} is still there. A later run will read it.",
            name=name,
            unfinished=transfers[0],
        )
    elif not is_sheet(name):
        result.refused[name] = RefusedFile(_not_a_sheet_error(name))
    elif strays:
        result.refused[name] = RefusedFile(_stray_error(strays[0], name), sorted(strays))
    else:
        result.ready.append(name)


def _stray_error(stray: str, sheet: str) -> PaygwError:
    """Return the error for a sheet refused because of a misnamed note or plan."""
    names = {"stray": stray, "sheet": sheet}
    if not _is_plan(stray):
        names["note"] = f"{sheet}{NOTE_SUFFIX}"
        return SheetError(
            say("{stray} looks like the cover note for {sheet}, but that note must be called {note}.", **names),
            hint=say("Nothing was sent. Rename or remove the note, then drop both files again."),
        )
    names["note"] = f"{sheet.rpartition('.')[0]}{PLAN_SUFFIX}"
    return ApprovalError(
        say("{stray} looks like the plan for {sheet}, but that plan must be called {note}.", **names),
        hint=say("Nothing was sent. Rename or remove the plan, then drop both files again."),
    )


def _not_a_sheet_error(name: str) -> PaygwError:
    try:
        file_kind(name)
    except SheetError as error:
        return error
    return SheetError()


def _untouched_reason(name: str, entry: FolderEntry, *, is_stray: bool) -> str:
    if is_stray:
        kind = say("a plan") if _is_plan(name) else say("a cover note")
        return say("{name} is {kind}, but there is no sheet for it in this folder.", name=name, kind=kind)
    if entry.is_file:
        return say("{name} is a report from this program, not a sheet, so it was not touched.", name=name)
    if entry.is_folder:
        return say("{name} is a folder. The files in it were not touched.", name=name)
    return say("{name} is a link or a device, not a file, so it was not touched.", name=name)


def _is_ignored(name: str) -> bool:
    return name.startswith(_HIDDEN_PREFIXES) or name.endswith(_BACKUP_SUFFIX) or name.lower() in _SYSTEM_NAMES


def _final_name(name: str) -> str | None:
    """Return the name that a file will have after its transfer, or None if it is not being transferred."""
    match = (_RSYNC if name.startswith(_HIDDEN_PREFIXES) else _UNFINISHED).fullmatch(name)
    return None if match is None else match[1]


def _is_note(name: str) -> bool:
    """Return whether a file is named like a cover note. `payroll.tom.csv` is not, as it may be Tom's sheet."""
    if name.lower().endswith(SHEET_EXTENSIONS):
        return "toml" in _extensions(name)
    return any(_NOTE.fullmatch(extension) for extension in _extensions(name))


def _is_plan(name: str) -> bool:
    return {"plan", "json"} <= {*_extensions(name)}


def _find_other_notes(names: Sequence[str], sheets: Sequence[str]) -> set[str]:
    """Return the names that consist of a sheet's full name and another program's note extension, such as .yaml."""
    sheet_names = {normalise_spelling(sheet) for sheet in sheets}
    parts = ((name, *normalise_spelling(name).rpartition(".")) for name in names)
    return {name for name, sheet, _, extension in parts if sheet in sheet_names and extension in _OTHER_NOTE_SUFFIXES}


def _extensions(name: str) -> Sequence[str]:
    return _name_parts(name)[1:]


def _name_parts(name: str) -> list[str]:
    return [_COPY_MARK.sub("", part).strip() for part in re.sub(r"\s+", " ", normalise_spelling(name)).split(".")]


def _name_root(name: str) -> str:
    """Return a normalized file name without extensions and copy marks."""
    parts = _name_parts(name)
    while len(parts) > 1 and (parts[-1] in _EXTRA_SUFFIXES or _SHEET_OR_NOTE.fullmatch(parts[-1])):
        parts.pop()
    return re.sub(f"-(?:{_SHEET_SUFFIX})$", "", re.sub(r"[ _-]+", "-", ".".join(parts)))
