"""Sorts the files of a drop folder by name: sheets, their cover notes and plans, and files that belong to no sheet.

A cover note or plan belongs to the sheet that has exactly its name. A near miss (`payroll.toml`, `payroll.csv.tolm` or
`payroll.csv.yaml` beside `payroll.csv`, another case, a second ending, another Unicode form) was still meant for a
sheet. That sheet must not be paid as if the note did not exist.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paygw_batch.core.text import spelled_alike
from paygw_batch.errors import ApprovalError, PaygwError, SheetError
from paygw_batch.language import say
from paygw_batch.sheet.read.format import SHEET_ENDINGS, kind_of

PLAN_ENDING = ".plan.json"
NOTE_ENDING = ".toml"
_REPORTS = (".reconciliation.csv", ".refused.txt")
"""The name endings of our own reports, which nobody corrects and drops again."""
_HIDDEN = (".", "~")
"""The first characters of hidden files, and of the lock files of office programs."""
_BACKUP = "~"
"""The last character of an editor's backup."""
_OF_SYSTEMS = frozenset(
    {"thumbs.db", "desktop.ini", "lost+found", "@eadir", "#recycle", "$recycle.bin", "system volume information"}
)
"""Lower-case names that operating systems and file servers put into every folder."""
_UNFINISHED = re.compile(
    r"(.+)\.(?:part|partial|filepart|tmp|temp|crdownload|download|opdownload|upload|uploading|inprogress)",
    re.DOTALL | re.IGNORECASE,
)
"""The name of an unfinished download or transfer. Its group is the final name."""
_RSYNC = re.compile(r"\.(.+)\.[A-Za-z0-9]{6}", re.DOTALL)
"""The hidden name to which rsync writes."""
_COPY = re.compile(r"(?: ?\(\d+\)| ?\[\d+\]| -? ?(?:copy|copie|kopie)(?: \d+)?|[ _])+$")
"""The mark that a browser or a desktop adds to a name that is already used."""


def _with_a_slip(word: str) -> re.Pattern[str]:
    """Return a pattern for a word and every misspelling of it by a single slip."""
    slips = [word]
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        slips += [f"{before}.{after}", f"{before}.{after[1:]}", before + after[1:]]
        slips.append(f"{before}{after[1:2]}{after[:1]}{after[2:]}")
    return re.compile("|".join(slips))


_SHEET_ENDING = "|".join(ending.removeprefix(".") for ending in SHEET_ENDINGS)
_NOTE = re.compile(f"(?:{_with_a_slip('toml').pattern}|(?:{_SHEET_ENDING})toml)")
"""The ending of a cover note, also with a slip."""
_NOTES_ELSEWHERE = frozenset({"yaml", "yml", "ini", "cfg", "conf", "note", "notes", "json", "md", "txt", "text"})
"""The endings of notes for other programs. They count only after the whole name of a sheet."""
_FURTHER_ENDINGS = frozenset({"", "plan", "bak", "old", "orig", "gz", "zip", "xls", "xlsm", "ods"}) | _NOTES_ELSEWHERE


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """The kind of an entry of the folder. `is_settled` says that nobody has written to it for a while."""

    is_file: bool
    is_folder: bool
    is_settled: bool


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """The reason why a file is refused without being read, and the notes and plans that are refused with it."""

    error: PaygwError
    strays: Sequence[str] = ()


@dataclass(slots=True)
class FolderState:
    """The files of a drop folder: sheets to take, files to refuse, and files to leave.

    `left` gives, by name, the reason why a person should look at a file. Files in `waiting` may still become ready by
    themselves. Files in `unfinished` have the name of a transfer.
    """

    ready: list[str] = field(default_factory=list)
    unfit: dict[str, RefusedFile] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)


def sorted_files(entries: Mapping[str, FolderEntry]) -> FolderState:
    """Return the files of a drop folder sorted by name, without hidden files and those of operating systems."""
    state = FolderState()
    unfinished = {name: future for name in entries if (future := _future_name(name)) is not None}
    state.unfinished = sorted(unfinished)
    names = [name for name in entries if not _is_ignored(name) and name not in unfinished]
    companions = {name for name in names if is_companion(name)}
    payloads = [name for name in names if name not in companions and not entries[name].is_folder]
    arriving = [future for name, future in unfinished.items() if not entries[name].is_settled]
    sheets = [*arriving, *(name for name in payloads if is_sheet(name))]
    written_elsewhere = _notes_beside(payloads, sheets)
    companions |= written_elsewhere
    payloads, sheets = ([name for name in group if name not in written_elsewhere] for group in (payloads, sheets))
    owned = {own for name in payloads for own in companions_of(name)}
    strays = companions - owned
    for name in (name for name in names if name in strays or name not in companions):
        entry, is_stray = entries[name], name in strays
        if not is_stray and entry.is_file and not name.lower().endswith(_REPORTS):
            _sort_file(name, entries, [stray for stray in strays if is_meant_for(stray, name)], unfinished, state)
        elif not entry.is_settled or (is_stray and any(is_meant_for(name, sheet) for sheet in sheets)):
            state.waiting.append(name)  # a note or plan that is meant for a sheet is refused with it
        else:
            state.left[name] = _not_taken(name, entry, is_stray=is_stray)
    return state


def is_sheet(name: str) -> bool:
    lowered = name.lower()
    return lowered.endswith(SHEET_ENDINGS) and not lowered.endswith(_REPORTS) and not is_companion(name)


def is_companion(name: str) -> bool:
    """Return whether a name is that of a cover note or a plan, even if it is misspelt."""
    return _is_note(name) or _is_plan(name)


def companions_of(name: str) -> Sequence[str]:
    """Return the name of a file's cover note and, for a sheet, the name of its plan."""
    note = f"{name}{NOTE_ENDING}"
    return [note, f"{name.rpartition('.')[0]}{PLAN_ENDING}"] if is_sheet(name) else [note]


def is_meant_for(companion: str, sheet: str) -> bool:
    """Return whether a note or plan is named like a sheet, apart from endings, case, blanks and Unicode form."""
    return _root(companion) == _root(sheet)


def _sort_file(
    name: str,
    entries: Mapping[str, FolderEntry],
    strays: Sequence[str],
    unfinished: Mapping[str, str],
    state: FolderState,
) -> None:
    own = [name, *companions_of(name)]
    alike = {spelled_alike(companion) for companion in own}
    arriving = sorted(transfer for transfer, future in unfinished.items() if spelled_alike(future) in alike)
    belonging = [companion for companion in own if companion in entries]
    if not all(entries[file].is_settled for file in [*belonging, *arriving, *strays]):
        state.waiting.append(name)
    elif arriving:
        state.left[name] = say(
            "The transfer of {name} has not finished: {unfinished} is still there. A later run reads it.",
            name=name,
            unfinished=arriving[0],
        )
    elif not is_sheet(name):
        state.unfit[name] = RefusedFile(_not_a_sheet(name))
    elif strays:
        state.unfit[name] = RefusedFile(_stray_error(strays[0], name), sorted(strays))
    else:
        state.ready.append(name)


def _stray_error(stray: str, sheet: str) -> PaygwError:
    """Return the error for a sheet that is refused because a note or plan almost has its name."""
    names = {"stray": stray, "sheet": sheet}
    if not _is_plan(stray):
        names["note"] = f"{sheet}{NOTE_ENDING}"
        return SheetError(
            say("{stray} looks like the cover note of {sheet}, but this note must be called {note}.", **names),
            hint=say("Nothing was sent. Rename the note or remove it, and drop both again."),
        )
    names["note"] = f"{sheet.rpartition('.')[0]}{PLAN_ENDING}"
    return ApprovalError(
        say("{stray} looks like the plan of {sheet}, but this plan must be called {note}.", **names),
        hint=say("Nothing was sent. Rename the plan or remove it, and drop both again."),
    )


def _not_a_sheet(name: str) -> PaygwError:
    try:
        kind_of(name)
    except SheetError as error:
        return error
    return SheetError()


def _not_taken(name: str, entry: FolderEntry, *, is_stray: bool) -> str:
    """Return the reason why a file is left at its place: it is a stray note or plan, or it is no sheet."""
    if is_stray:
        kind = say("a plan") if _is_plan(name) else say("a cover note")
        return say("{name} is {kind}, but no sheet here belongs to it.", name=name, kind=kind)
    if entry.is_file:
        return say("{name} is one of this program's reports, not a sheet, so it was left alone.", name=name)
    if entry.is_folder:
        return say("{name} is a folder. The files in it were left alone.", name=name)
    return say("{name} is a link or a device, not a file, so it was left alone.", name=name)


def _is_ignored(name: str) -> bool:
    return name.startswith(_HIDDEN) or name.endswith(_BACKUP) or name.lower() in _OF_SYSTEMS


def _future_name(name: str) -> str | None:
    """Return the name that a file will have when its transfer ends, or None for any other file."""
    match = (_RSYNC if name.startswith(_HIDDEN) else _UNFINISHED).fullmatch(name)
    return None if match is None else match[1]


def _is_note(name: str) -> bool:
    """Return whether a file name is that of a cover note. `payroll.tom.csv`, a sheet of Tom's, is not one."""
    if name.lower().endswith(SHEET_ENDINGS):
        return "toml" in _endings(name)
    return any(_NOTE.fullmatch(ending) for ending in _endings(name))


def _is_plan(name: str) -> bool:
    return {"plan", "json"} <= {*_endings(name)}


def _notes_beside(names: Sequence[str], sheets: Sequence[str]) -> set[str]:
    """Return the names that consist of a sheet's whole name and another program's ending for notes."""
    sheet_names = {spelled_alike(sheet) for sheet in sheets}
    parts = ((name, *spelled_alike(name).rpartition(".")) for name in names)
    return {name for name, sheet, _, ending in parts if sheet in sheet_names and ending in _NOTES_ELSEWHERE}


def _endings(name: str) -> Sequence[str]:
    return _parts(name)[1:]


def _parts(name: str) -> list[str]:
    return [_COPY.sub("", part).strip() for part in re.sub(r"\s+", " ", spelled_alike(name)).split(".")]


def _root(name: str) -> str:
    """Return a file name in one spelling, without endings and marks of copies."""
    parts = _parts(name)
    while len(parts) > 1 and (
        parts[-1] in _FURTHER_ENDINGS or re.fullmatch(f"{_SHEET_ENDING}|{_NOTE.pattern}", parts[-1])
    ):
        parts.pop()
    return re.sub(f"-(?:{_SHEET_ENDING})$", "", re.sub(r"[ _-]+", "-", ".".join(parts)))
