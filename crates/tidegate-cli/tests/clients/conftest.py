"""Servers for the tests of real clients: the binary under test on free ports, stopped after the tests."""

import hashlib
import json
import os
import re
import subprocess
import threading
import urllib.request
from dataclasses import dataclass, field

import pytest

BINARY = os.environ["TIDEGATE_BINARY"]

# Tokens by role. The last one is restricted to limits whose ids begin with "shop/".
TOKENS = {"read": "tg_read", "decide": "tg_decide", "admin": "tg_admin", "shop": "tg_shop"}


def settings():
    """A settings file with the tokens."""
    lines = ["auth:", "  tokens:"]
    for name, token in TOKENS.items():
        sha256 = hashlib.sha256(token.encode()).hexdigest()
        about = 'role: admin, prefix: "shop/"' if name == "shop" else f"role: {name}"
        lines.append(f"    - {{name: {name}, sha256: {sha256}, {about}}}")
    return "\n".join(lines) + "\n"


@dataclass
class Server:
    """A running `tidegate serve` with its own data directory."""

    directory: str
    arguments: list
    token: str | None = None
    http: str = "127.0.0.1:0"
    resp: str = "127.0.0.1:0"
    stderr_lines: list = field(default_factory=list)

    def start(self):
        command = [BINARY, "serve", "--http", self.http, "--resp", self.resp, *self.arguments]
        self.process = subprocess.Popen(command, cwd=self.directory, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.stderr_lines.append(line)
            ready = re.match(r"tidegate ready http=(\S+) resp=(\S+) ", line)
            if ready:
                break
        else:
            pytest.fail(f"the server ended before it was ready: {''.join(self.stderr_lines)}")
        # A restart uses the same ports.
        self.http, self.resp = ready.groups()
        # Keeps reading, so that the server can go on writing.
        threading.Thread(target=lambda: self.stderr_lines.extend(self.process.stderr), daemon=True).start()
        return self

    def stop(self):
        """Stops the server and checks its exit code."""
        self.process.terminate()
        code = self.process.wait(timeout=60)
        assert code == 0, f"SIGTERM drains and ends with 0, not {code}: {''.join(self.stderr_lines)}"

    @property
    def url(self):
        return f"http://{self.http}"

    @property
    def resp_host(self):
        return self.resp.rsplit(":", 1)[0]

    @property
    def resp_port(self):
        return int(self.resp.rsplit(":", 1)[1])

    def add(self, limit_id, *items, **fields):
        """Adds a limit without the client under test."""
        body = json.dumps({"id": limit_id, "items": items, **fields}).encode()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/v1/limits", body, headers)) as answer:
            assert answer.status == 201
        return limit_id


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server without tokens or limits, shared by all tests."""
    running = Server(tmp_path_factory.mktemp("server"), []).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """A server that requires a token."""
    directory = tmp_path_factory.mktemp("guarded")
    path = directory / "tidegate.yaml"
    path.write_text(settings())
    running = Server(directory, ["--config", str(path)], token=TOKENS["admin"]).start()
    yield running
    running.stop()


@pytest.fixture
def name(request):
    """A limit id that is unique to the test."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
