"""A fresh process with no network at all loads a local folder, captures and audits it (C32)."""

from __future__ import annotations

import os
import subprocess
import sys

BLOCKED = """
import socket, sys

def refused(*args, **options):
    raise SystemExit("a socket was opened: " + repr(args))

socket.socket.connect = socket.socket.connect_ex = refused
socket.create_connection = socket.getaddrinfo = refused

import interp
from interp.capturing.audit import audit

model = interp.load(sys.argv[1])
made = interp.capture(model, "Once upon a time")
found = audit(model, ["Once upon a time there was a dog"])
assert found.passed, found.failed
print(made.n_tokens, made.provenance["revision"], len(found.routes))
"""


def test_a_local_folder_needs_no_network_C32(shared, tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    place = str(shared / "models" / "stories260k")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, place], env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    tokens, revision, routes = done.stdout.split()[-3:]
    assert int(tokens) >= 5
    assert revision.startswith("folder-sha256-")
    assert routes == "3"
    assert list(tmp_path.iterdir()) == [] or not any(tmp_path.rglob("*.safetensors"))
