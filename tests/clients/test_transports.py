"""OpenAI's client and curl over TLS, over a Unix socket and below a path, and what the client makes of a key's limit. Run by
`scripts/client_matrix`."""

import hashlib
import json
import os
import re
import signal
import ssl
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import httpx
import openai
from server import DEADLINE_S, KEY

TLS = Path(__file__).resolve().parents[1] / "it/tls"
QUESTION = [{"role": "user", "content": "12 + 30 = ?"}]


class Server:
    """The binary; `place` is the first of the places that it listens on."""

    def __init__(self, *arguments):
        binary = os.environ.get("DIFFULEX_BIN", "target/release/diffulex-server")
        command = [binary, "--log-level", "warn", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        first = self.process.stdout.readline()
        found = re.search(r"listens on (\S+)", first)
        if not found:
            raise RuntimeError("the server did not start:\n" + first + self.process.communicate(timeout=DEADLINE_S)[0])
        self.place = found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=DEADLINE_S)


class Transports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def check(self, http, base_url):
        """The client has the same answer whole and streamed; it waits itself while the model loads."""
        with openai.OpenAI(base_url=base_url, api_key=KEY, http_client=http, max_retries=10) as client:
            names = [model.id for model in client.models.list()]
            whole = client.chat.completions.create(model=names[0], messages=QUESTION, max_tokens=32, temperature=0)
            stream = client.chat.completions.create(model=names[0], messages=QUESTION, max_tokens=32, temperature=0, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
            self.assertIn("42", whole.choices[0].message.content)
            self.assertEqual("".join(pieces), whole.choices[0].message.content)
            return names[0]

    def curl(self, *arguments):
        """Status and body of a chat."""
        body = json.dumps({"messages": QUESTION, "max_tokens": 32, "temperature": 0})
        command = ["curl", "-sS", "-w", "\n%{http_code}", "-H", f"authorization: Bearer {KEY}", "-H", "content-type: application/json"]
        ran = subprocess.run([*command, "-d", body, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        text, status = ran.stdout.rsplit("\n", 1)
        self.assertEqual(status, "200", text)
        self.assertIn("42", json.loads(text)["choices"][0]["message"]["content"])

    def test_tls(self):
        pair = ["--tls-cert", TLS / "server.pem", "--tls-key", TLS / "server.key"]
        with Server("--port", "0", "--api-key", KEY, *pair) as server:
            self.assertTrue(server.place.startswith("https://"), server.place)
            trust = ssl.create_default_context(cafile=TLS / "authority.pem")
            self.check(httpx.Client(verify=trust), server.place + "/v1")
            self.curl("--cacert", TLS / "authority.pem", server.place + "/v1/chat/completions")
            with self.assertRaises(openai.APIConnectionError), httpx.Client() as stranger:
                openai.OpenAI(base_url=server.place + "/v1", api_key=KEY, http_client=stranger, max_retries=0).models.list()

    def test_a_unix_socket(self):
        path = self.folder / "diffulex.sock"
        with Server("--uds", path, "--api-key", KEY) as server:
            self.assertEqual(server.place, f"unix:{path}")
            self.check(httpx.Client(transport=httpx.HTTPTransport(uds=str(path))), "http://localhost/v1")
            self.curl("--unix-socket", path, "http://localhost/v1/chat/completions")
        self.assertFalse(path.exists())

    def test_a_path(self):
        with Server("--port", "0", "--root-path", "/llm", "--api-key", KEY) as server:
            self.check(httpx.Client(), server.place + "/llm/v1")
            self.curl(server.place + "/llm/v1/chat/completions")

    def test_a_limit_is_the_clients_error_of_limits(self):
        file = self.folder / "keys.yaml"
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        file.write_text(f'alice: {{sha256: "{digest}", requests_per_minute: 2}}\n')
        with Server("--port", "0", "--api-key-file", file) as server:
            with openai.OpenAI(base_url=server.place + "/v1", api_key=KEY, max_retries=0) as client:
                deadline = time.monotonic() + DEADLINE_S
                # A request that is refused while the model loads would count.
                while httpx.get(server.place + "/ready").status_code != 200:
                    self.assertLess(time.monotonic(), deadline, "the model does not load")
                    time.sleep(0.05)
                model = client.models.list().data[0].id
                for _ in range(2):
                    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=2)
                with self.assertRaises(openai.RateLimitError) as raised:
                    client.chat.completions.create(model=model, messages=QUESTION, max_tokens=2)
                self.assertEqual(raised.exception.code, "rate_limit_exceeded")
                self.assertIn('the API key "alice" has requests_per_minute 2', str(raised.exception))
                self.assertGreaterEqual(int(raised.exception.response.headers["retry-after"]), 1)
