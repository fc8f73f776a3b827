"""A client for tests of a running sandbox."""

import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

from paygw_batch.sandbox.record import RecordLine, read_record
from tests.sandbox.sandbox_merchant import PATH, Merchant, encode_body, split_address
from tests.support.patience import PATIENCE_S, wait_until


@dataclass(frozen=True)
class RunningSandbox:
    base_url: str
    record_path: Path

    def recorded(self, order_id: str) -> list[RecordLine]:
        return [line for line in read_record(self.record_path) if line.client_orderid == order_id]


def connection(base_url: str) -> HTTPConnection:
    return HTTPConnection(*split_address(base_url), timeout=PATIENCE_S)


def post(merchant: Merchant, base_url: str, fields: dict[str, str], **headers: str) -> tuple[HTTPResponse, bytes]:
    body = encode_body(fields)
    authorization = merchant.authorization(base_url + PATH, fields, body, now_s=time.time())
    all_headers = {"Content-Type": "application/json", "Accept": "application/json", "Authorization": authorization}
    sender = connection(base_url)
    try:
        sender.request("POST", PATH, body, all_headers | headers)
        reply = sender.getresponse()
        return reply, reply.read()
    finally:
        sender.close()


def wait_for_record(path: Path, order_id: str) -> None:
    wait_until(
        lambda: any(line.client_orderid == order_id for line in read_record(path)),
        f"{order_id} never came to the record",
    )
