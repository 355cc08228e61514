"""Whatever can be asked by the OpenAPI document is answered as it says: a generator makes the requests and judges the answers.

How it asks is in schemathesis.toml, what it cannot know in schema_hooks.py. The same requests are made every time; to see what a
failing one was about, start a server and follow what is printed.
"""

import os
import pathlib
import subprocess
import sys

from conftest import TOKENS

HERE = pathlib.Path(__file__).parent


def test_every_answer_is_in_the_document(guarded, tmp_path):
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
    # A run that has quietly become empty must not look green.
    told = [line for line in ran.stdout.split("\n") if " generated, " in line]
    assert told and int(told[0].split()[0]) > 500, ran.stdout
    assert "Tested: 0" not in ran.stdout, ran.stdout
