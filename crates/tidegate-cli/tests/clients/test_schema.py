"""Requests generated from the OpenAPI document; replies are checked against it.

How it asks is in schemathesis.toml, what it cannot know in schema_hooks.py. The same requests are made every time; to see what a
failing one was about, start a server and follow what is printed.
"""

import os
import pathlib
import subprocess
import sys

from conftest import TOKENS

HERE = pathlib.Path(__file__).parent


def test_every_reply_matches_the_openapi_document(guarded, tmp_path):
    command = [pathlib.Path(sys.prefix) / "bin" / "st", "--config-file", HERE / "schemathesis.toml"]
    command += ["run", f"{guarded.url}/openapi.json", "--no-color"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "SCHEMATHESIS_HOOKS": "schema_hooks",
        "TIDEGATE_HTTP": guarded.url,
        "TIDEGATE_TOKEN": TOKENS["admin"],
    }
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # An empty run must fail.
    told = [line for line in ran.stdout.split("\n") if " generated, " in line]
    assert told and int(told[0].split()[0]) > 500, ran.stdout
    assert "Tested: 0" not in ran.stdout, ran.stdout
