"""An FTP server, by pyftpdlib: `python -m tests.fakes.ftpd FOLDER FAULTS`. It says its port, and ends with its standard input."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says itself that it uses what Python has given up
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import DTPHandler, FTPHandler
    from pyftpdlib.servers import FTPServer

from tests.fakes.faults import Faults, uncut

USER, WORD = "reader", "s3cr3t-w0rd"
FAULTS = Path(sys.argv[2])


class Transfer(DTPHandler):  # type: ignore[misc]
    """A data connection."""

    def send(self, data: bytes) -> int:
        faults = Faults.read(FAULTS)
        if faults.cut is not None:
            data = data[: faults.cut - self.tot_bytes_sent]
            if not data:
                uncut(FAULTS)
                self.close()
                return 0
        sent = int(super().send(data))
        if faults.bps:
            time.sleep(sent / faults.bps)  # nobody else is served meanwhile
        return sent


class Handler(FTPHandler):  # type: ignore[misc]
    """A control connection."""

    dtp_handler = Transfer
    use_sendfile = False
    banner = "ready"

    def on_connect(self) -> None:
        if Faults.read(FAULTS).down:
            self.close()

    def pre_process_command(self, line: str, cmd: str, arg: str) -> None:
        faults = Faults.read(FAULTS)
        if faults.down:
            self.close()
        elif faults.refused and cmd == "RETR" and arg.endswith(faults.refused):
            self.respond("550 Not for you.")
        elif not faults.hang:
            super().pre_process_command(line, cmd, arg)


def main() -> None:
    users = DummyAuthorizer()
    users.add_user(USER, WORD, sys.argv[1], perm="elr")
    Handler.authorizer = users
    server = FTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.address[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=lambda: (sys.stdin.read(), server.ioloop.call_later(0, sys.exit)), daemon=True).start()
    server.serve_forever(handle_exit=False)


if __name__ == "__main__":
    main()
