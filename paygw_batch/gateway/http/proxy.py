"""Writes CONNECT for a proxy and reads its answer, as bytes. Uses no socket.

Source: RFC 9110 section 9.3.6. Nothing of a payout is in it, so it never sets the witness.
"""

import httptools

_MAX_ANSWER_BYTES = 8 * 1024
_END_OF_HEAD = b"\r\n\r\n"


def connect_request(destination: str) -> bytes:
    """Return the request for a tunnel to `destination` (host:port)."""
    return f"CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\nUser-Agent: paygw-batch\r\n\r\n".encode("ascii")


class TunnelReader:
    """Reads the proxy's answer, fed in pieces of any size."""

    def __init__(self) -> None:
        self.is_open = False
        self.problem = ""
        """Why there is no tunnel."""
        self._answer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the proxy."""
        self._answer += data
        head, end, surplus = bytes(self._answer).partition(_END_OF_HEAD)
        if not end:
            if len(self._answer) > _MAX_ANSWER_BYTES:
                self.problem = "the proxy's answer does not end"
            return
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(head + end)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.problem = f"the proxy does not speak HTTP: {error}"
            return
        status = parser.get_status_code()
        if not 200 <= status < 300:  # noqa: PLR2004 (any success opens the tunnel)
            self.problem = f"the proxy answered {status}"
        elif surplus:
            self.problem = "the proxy answered with more than a head"
        else:
            self.is_open = True
