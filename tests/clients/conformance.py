"""Schemathesis over the server's own OpenAPI document: no answer has a status, a type or a form that the document does not name.

Needs `pip install -r environments/openapi.txt` and the binary in DIFFULEX_BIN.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from server import Server

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
# Random bodies for each route, beside those that cover its schema. Chosen by us: a minute in all.
EXAMPLES = 25


def main():
    server = Server()
    try:
        command = [Path(sys.executable).with_name("schemathesis")]
        command += ["--config-file", Path(__file__).with_name("schemathesis.toml")]
        command += ["run", server.url + "/openapi.json", "--checks", ",".join(CHECKS), "--continue-on-failure"]
        # The same bodies in every run; a finding is a defect and not bad luck.
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1"]
        command += ["--request-timeout", "60", "--warnings", "off"]
        # It keeps what it finds in the folder that it runs in.
        with tempfile.TemporaryDirectory() as folder:
            status = subprocess.run(command, cwd=folder).returncode
        if server.metric("worker_restarts_total") != 0:
            sys.exit("a request ended the worker")
        sys.exit(status)
    finally:
        server.stop()


main()
