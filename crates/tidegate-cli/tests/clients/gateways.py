"""Runs the gateway binary in front of backends that a test starts."""

import json
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

from conftest import BINARY

# Longer than any successful step takes, in seconds.
TEST_TIMEOUT = 60


def settings(endpoints, routes="- {backend: b}", server="", tls=None):
    """Gateway settings with one backend named b. `server` holds lines for the `server` section."""
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
        self.stderr_lines = []
        # Kills a gateway that never becomes ready.
        kill_timer = threading.Timer(TEST_TIMEOUT, self.process.kill)
        kill_timer.daemon = True
        kill_timer.start()
        for line in self.process.stderr:
            self.stderr_lines.append(line)
            ready = re.match(r"tidegate gateway ready http=(\S+) management=(\S+)$", line)
            if ready:
                break
        else:
            raise AssertionError(f"the gateway ended before it was ready: {''.join(self.stderr_lines)}")
        kill_timer.cancel()
        self.address, self.management = ready.groups()
        self.port = int(self.address.rsplit(":", 1)[1])
        # Keep reading, so that the pipe never blocks the gateway.
        threading.Thread(target=lambda: self.stderr_lines.extend(self.process.stderr), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.kill()
        else:
            self.wait_until_empty()
            self.process.terminate()
        code = self.process.wait(timeout=TEST_TIMEOUT)
        assert kind or code == 0, f"SIGTERM drains and exits with 0, not {code}: {''.join(self.stderr_lines)}"

    def get_json(self, page):
        """Returns a JSON page of the management port."""
        with urllib.request.urlopen(f"http://{self.management}/{page}", timeout=TEST_TIMEOUT) as response:
            return json.load(response)

    def connections(self):
        """Returns the number of open client connections and the number counted by the limits."""
        counted = self.get_json("limits")["server"]["maxConnections"]["used"]
        return self.get_json("health")["connections"], counted

    def wait_until_empty(self):
        """Waits until no connection is open or counted."""
        wait_until("all connections are closed", lambda: not any(self.connections()))

    def wait_for_log_lines(self, count, path=""):
        """Waits for `count` access log lines with this path prefix and returns them."""
        found = []

        def has_enough_lines():
            # The last line may be incomplete.
            lines = self.log.read_text().splitlines(keepends=True)
            found[:] = [json.loads(line) for line in lines if line.endswith("\n")]
            found[:] = [line for line in found if line["path"].startswith(path)]
            return len(found) >= count

        wait_until(f"{count} lines of the access log", has_enough_lines)
        return found


def wait_until(what, condition):
    end = time.monotonic() + TEST_TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.01)


class Certificate:
    """A self-signed certificate for localhost."""

    def __init__(self, place):
        self.certificate, self.key = Path(place) / "certificate.pem", Path(place) / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
        command += ["-keyout", str(self.key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
