"""Keeps one order about rows in a folder: as it was drafted, and as it was signed, with the approvals.

No file says how far an order has come: that is read from the files, and from the journal, which keeps every order that
was carried out.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paygw_batch.compose.actions.payout_folder import NamedFolder, is_folder_name, new_named_folder
from paygw_batch.files import write_whole
from paygw_batch.journal import make_directory
from paygw_batch.run.orders.release_order import ReleaseOrder
from paygw_batch.run.orders.settlement_order import SettlementOrder
from paygw_batch.run.signed_document import read_document, write_document

AnyOrder = SettlementOrder | ReleaseOrder
_KINDS: tuple[type[AnyOrder], ...] = (SettlementOrder, ReleaseOrder)
_DONE = "done"


@dataclass(frozen=True, slots=True)
class DraftedOrder:
    """Who drafted an order, and when. `sent_back` says by whom and why it was sent back; empty for one that was not."""

    by: str
    at: str
    sent_back: str = ""


class OrderFolder(NamedFolder):
    """The folder of one order."""

    @property
    def drafted(self) -> DraftedOrder:
        """Who drafted the order, and when."""
        return DraftedOrder(**json.loads((self.path / "drafted.json").read_bytes()))

    @property
    def draft(self) -> AnyOrder:
        """The order as its maker has yet to sign it."""
        return _order(self.path / "draft.json")

    @property
    def order_file(self) -> Path:
        """The path of the order that its maker signed."""
        return self.path / "order.json"

    @property
    def order(self) -> AnyOrder | None:
        """The order that its maker signed, with its approvals; None where there is none."""
        return _order(self.order_file) if self.order_file.exists() else None

    @property
    def document(self) -> AnyOrder:
        """The order that its maker signed; the draft where there is none."""
        return self.order or self.draft

    def write_order(self, order: AnyOrder) -> None:
        """Write the order that its maker signed, or that one more person approves of."""
        write_document(order, self.order_file)

    def send_back(self, words: str) -> None:
        """Take the signatures away; `words` say by whom and why."""
        write_whole(self.path / "drafted.json", _as_json(replace(self.drafted, sent_back=words)))
        self.order_file.unlink(missing_ok=True)

    def put_away(self) -> None:
        """Move the folder to those of orders that were carried out. It is found there by its name."""
        done = self.path.parent / _DONE
        if self.path.parent.name != _DONE:
            make_directory(done)
            with suppress(FileNotFoundError):
                os.replace(self.path, done / self.number)  # noqa: PTH105 (as written)
            self.path = done / self.number


def new_order_folder(directory: Path, draft: AnyOrder, *, by: str, at: str) -> OrderFolder:
    """Make a folder for an order that was drafted."""
    path = new_named_folder(directory)
    write_document(draft, path / "draft.json")
    write_whole(path / "drafted.json", _as_json(DraftedOrder(by, at)))
    return OrderFolder(path)


def order_folder_of(directory: Path, number: str) -> OrderFolder | None:
    """Return the folder with this name, of an open order or of one that was carried out; None where there is none."""
    found = (OrderFolder(place / number) for place in (directory, directory / _DONE))
    return next((one for one in found if is_folder_name(number) and _is_whole(one.path)), None)


def open_order_folders(directory: Path) -> Iterator[OrderFolder]:
    """Yield the orders that are not put away, the newest first."""
    found: list[tuple[str, OrderFolder]] = []
    for path in directory.iterdir() if directory.exists() else ():
        with suppress(FileNotFoundError):  # it is no order, or one that is put away just now
            found.append((OrderFolder(path).drafted.at, OrderFolder(path)))
    yield from (one for _, one in sorted(found, key=lambda one: one[0], reverse=True))


def _is_whole(path: Path) -> bool:
    return (path / "drafted.json").exists()


def _order(path: Path) -> AnyOrder:
    return read_document(path, *_KINDS)


def _as_json(drafted: DraftedOrder) -> bytes:
    return json.dumps(asdict(drafted), ensure_ascii=False).encode()
