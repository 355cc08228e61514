"""Gateways for the tests of real clients: the binary under test, before backends that a test starts."""

import json
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from conftest import BINARY

# Longer than anything takes here, in seconds.
FAR_TOO_LONG = 60


def settings(endpoints, routes="- {backend: b}", server="", tls=None):
    """A file of the gateway: one backend, called b. `server` are lines below `server:`."""
    lines = ["server:", "  listen: 127.0.0.1:0", *(f"  {line}" for line in server.splitlines())]
    lines += ["management: {listen: '127.0.0.1:0'}"]
    if tls:
        lines += [f"tls: {{certificate: {tls.certificate}, key: {tls.key}}}"]
    ends = ", ".join(f"{{host: 127.0.0.1, port: {port}}}" for port in endpoints)
    lines += ["backends:", f"  - {{name: b, endpoints: [{ends}]}}"]
    lines += ["routes:", *(f"  {line}" for line in routes.splitlines())]
    return "\n".join(lines) + "\n"


class Gateway:
    """A running `tidegate gateway`."""

    def __init__(self, place, text):
        path = Path(place) / "gateway.yaml"
        path.write_text(text)
        self.log = Path(place) / "access.log"
        command = [BINARY, "gateway", "--config", str(path), "--workers", "2", "--access-log", "json"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=place, stdout=log, stderr=subprocess.PIPE, text=True)
        self.said = []
        # One that is never ready must not be waited for.
        patience = threading.Timer(FAR_TOO_LONG, self.process.kill)
        patience.daemon = True
        patience.start()
        for line in self.process.stderr:
            self.said.append(line)
            ready = re.match(r"tidegate gateway ready http=(\S+) management=(\S+)$", line)
            if ready:
                break
        else:
            raise AssertionError(f"the gateway ended before it was ready: {''.join(self.said)}")
        patience.cancel()
        self.address, self.management = ready.groups()
        self.port = int(self.address.rsplit(":", 1)[1])
        # What it says later must have somewhere to go.
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.kill()
        else:
            self.is_empty()
            self.process.terminate()
        code = self.process.wait(timeout=FAR_TOO_LONG)
        assert kind or code == 0, f"SIGTERM drains and ends with 0, not {code}: {''.join(self.said)}"

    def look(self, page):
        """A page of the management port that is JSON."""
        with urllib.request.urlopen(f"http://{self.management}/{page}", timeout=FAR_TOO_LONG) as answer:
            return json.load(answer)

    def connections(self):
        """How many connections of clients there are, and how many the limits count, if there is such a limit."""
        counted = self.look("limits")["server"]["maxConnections"]["used"]
        return self.look("health")["connections"], counted

    def is_empty(self):
        """Nobody is counted anywhere any more."""
        eventually("everybody is gone", lambda: not any(self.connections()))

    def logged(self, count, path=""):
        """The lines of the access log about paths that begin like this, as soon as there are so many."""
        found = []

        def are_there():
            # The last of them may be half a line.
            lines = self.log.read_text().splitlines(keepends=True)
            found[:] = [json.loads(line) for line in lines if line.endswith("\n")]
            found[:] = [line for line in found if line["path"].startswith(path)]
            return len(found) >= count

        eventually(f"{count} lines of the access log", are_there)
        return found


def eventually(what, is_so):
    end = time.monotonic() + FAR_TOO_LONG
    while not is_so():
        assert time.monotonic() < end, f"it never came to this: {what}"
        time.sleep(0.01)


class Certificate:
    """A certificate for localhost, its own authority."""

    def __init__(self, place):
        self.certificate, self.key = Path(place) / "certificate.pem", Path(place) / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
        command += ["-keyout", str(self.key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
