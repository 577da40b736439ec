"""What every client must be able to do, as one set of tests: a client supplies the calls of its own library (`Calls`).

A test that passes is a cell of the table in docs/clients.md; `table.py` writes it from what the tests note in the folder
DIFFULEX_CLIENT_RESULTS. None of the clients is patched.
"""

import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import time
import unittest
import urllib.request
import uuid
from pathlib import Path

KEY = "secret"
QUESTION = "12 + 30 = ?"
# An answer of 385 tokens. It arrives in one piece where the client reads late (the server joins what waits), as in its first
# stream, which builds its types.
COUNT = "count from 1 to 99"
# Long enough to be left, by a client that passes `ignore_eos`: it ends at max_tokens only.
STORY = "tell me a story"
FEATURES = ("plain", "stream", "abort", "error", "Unicode", "wrong key", "too long", "denoise")
# Interfaces that embed, and what of it they have.
EMBEDDINGS = ("embeddings", "embed")
EMBEDDING_FEATURES = ("plain", "error", "Unicode", "wrong key", "too long")
DEADLINE_S = 60


def optional(name):
    """A client's package. It is in one of the environments, as clients need different versions of what they share; the table misses its
    row if it was in neither."""
    if importlib.util.find_spec(name) is None:
        raise unittest.SkipTest(f"{name} is not in this environment")
    return importlib.import_module(name)


class Server:
    """The binary on a port of its own choosing."""

    def __init__(self, *arguments):
        binary = os.environ.get("DIFFULEX_BIN", "target/release/diffulex-server")
        command = [binary, "--port", "0", "--log-level", "warn", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = []
        for line in self.process.stdout:
            self.output.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.url = found.group(0)
                break
        else:
            raise RuntimeError("the server did not start:\n" + "".join(self.output))
        # It listens before the model is loaded; /ready answers 503 until then.
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/ready", timeout=5).read()
                break
            except OSError:
                try:
                    self.process.wait(timeout=0.05)
                    raise RuntimeError("the server left while starting")
                except subprocess.TimeoutExpired:
                    pass
        else:
            raise RuntimeError("the server did not become ready")
        self.model = self.get("/v1/models", KEY)["data"][0]["id"]

    def get(self, path, key=None):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
            return json.load(answer)

    def metric(self, name):
        """The sum of a metric over its labels that match `name`, a regular expression."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^diffulex_{name} (\S+)$", text, re.M))

    def wait_for(self, what, condition):
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for: {what}")
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        # Whatever it still prints must not block it.
        self.process.communicate(timeout=40)


def note(client, interface, feature):
    """Notes a cell of the table."""
    folder = os.environ.get("DIFFULEX_CLIENT_RESULTS")
    if folder:
        cell = {"client": client, "interface": interface, "feature": feature}
        Path(folder, f"{uuid.uuid4()}.json").write_text(json.dumps(cell))


class Calls:
    """The calls of one client on one interface. `url` is the server's, without a path."""

    # Its name with its version, and the interface, for the table.
    client = interface = ""

    def __init__(self, url, model, key):
        self.url, self.model, self.key = url, model, key

    def text(self, prompt, max_tokens=32):
        """The answer at temperature 0."""
        raise NotImplementedError

    def pieces(self, prompt, max_tokens=32, **extra):
        """The same, piece by piece; closing it ends the connection. `extra` are fields of the body."""
        raise NotImplementedError

    def status_and_message(self, error):
        """What the client's own exception says."""
        raise NotImplementedError


class EmbeddingCalls:
    """The calls of one client on one interface that embeds. `url` is the server's, without a path."""

    client = interface = ""

    def __init__(self, url, model, key):
        self.url, self.model, self.key = url, model, key

    def vectors(self, texts):
        """The embedding of each of several texts."""
        raise NotImplementedError

    def status_and_message(self, error):
        """What the client's own exception says."""
        raise NotImplementedError


class Servers:
    """A server, one with a key, and `calls`, a class of Calls or EmbeddingCalls, to the first."""

    calls = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.guarded = Server("--api-key", KEY)
        cls.one = cls.calls(cls.server.url, cls.server.model, "none")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.guarded.stop()

    def passed(self, feature):
        note(self.calls.client, self.calls.interface, feature)

    def failure(self, act):
        """The status and the message of the exception that `act` raises."""
        try:
            act()
        except Exception as error:
            return self.one.status_and_message(error)
        raise AssertionError("no error was raised")


class EmbeddingContract(Servers):
    """The tests of embeddings, as in Contract."""

    def test_plain(self):
        texts = [f"text {nth}" for nth in range(70)]
        together = self.one.vectors(texts)
        self.assertEqual(len(together), len(texts))
        self.assertEqual(self.one.vectors(texts[69:]), together[69:])
        for vector in together:
            self.assertAlmostEqual(sum(value * value for value in vector), 1, places=5)
        self.passed("plain")

    def test_error(self):
        status, message = self.failure(lambda: self.calls(self.server.url, "nobody", "none").vectors(["hi"]))
        self.assertEqual(status, 404)
        self.assertIn("nobody", message)
        self.passed("error")

    def test_unicode(self):
        first, second = self.one.vectors(["größe 你好 🙂", "grosse 你好 🙂"])
        self.assertNotEqual(first, second)
        self.passed("Unicode")

    def test_wrong_key(self):
        status, _ = self.failure(lambda: self.calls(self.guarded.url, self.guarded.model, "wrong").vectors(["hi"]))
        self.assertEqual(status, 401)
        self.assertEqual(len(self.calls(self.guarded.url, self.guarded.model, KEY).vectors(["hi"])), 1)
        self.passed("wrong key")

    def test_too_long(self):
        status, message = self.failure(lambda: self.one.vectors(["word " * 5000]))
        self.assertEqual(status, 400)
        self.assertRegex(message, "tokens")
        self.passed("too long")


class CuttingEmbeddingContract(EmbeddingContract):
    """The tests of embeddings by Ollama's client, which leaves it to the server to cut what is too long."""

    def test_too_long(self):
        self.assertEqual(*self.one.vectors(["word " * 5000, "word " * 5001]))
        self.passed("too long")


class Contract(Servers):
    """The tests. A class beside it is a unittest.TestCase with `calls`, a class of Calls."""

    def test_plain(self):
        self.assertIn("42", self.one.text(QUESTION))
        self.passed("plain")

    def test_stream(self):
        text = self.one.text(COUNT, 400)
        most = 0
        for _ in range(20):
            pieces = [piece for piece in self.one.pieces(COUNT, 400) if piece]
            self.assertEqual("".join(pieces), text)
            most = max(most, len(pieces))
            if most > 1:
                break
        self.assertGreater(most, 1)
        self.passed("stream")

    def test_abort(self):
        before = self.server.metric("client_disconnects_total")
        # A client that reads late may come too late to leave; it tries again then.
        for _ in range(20):
            stream = self.one.pieces(STORY, 1900, ignore_eos=True)
            next(iter(stream))
            stream.close()
            self.server.wait_for("free pages", lambda: self.server.metric("num_requests_running") == 0)
            if self.server.metric("client_disconnects_total") > before:
                break
        self.assertGreater(self.server.metric("client_disconnects_total"), before)
        self.passed("abort")

    def test_error(self):
        nobody = self.calls(self.server.url, "nobody", "none")
        for act in (lambda: nobody.text("hi"), lambda: list(nobody.pieces("hi"))):
            status, message = self.failure(act)
            self.assertEqual(status, 404)
            self.assertIn("nobody", message)
            self.assertNotIn("[object Object]", message)
        self.passed("error")

    def test_unicode(self):
        prompt = "repeat: größe 你好 🙂"
        text = self.one.text(prompt, 48)
        self.assertEqual("".join(self.one.pieces(prompt, 48)), text)
        self.assertNotIn("\ufffd", text)
        self.passed("Unicode")

    def test_wrong_key(self):
        status, _ = self.failure(lambda: self.calls(self.guarded.url, self.guarded.model, "wrong").text("hi"))
        self.assertEqual(status, 401)
        self.assertIn("42", self.calls(self.guarded.url, self.guarded.model, KEY).text(QUESTION))
        self.passed("wrong key")

    def test_too_long(self):
        status, message = self.failure(lambda: self.one.text("word " * 5000))
        self.assertEqual(status, 400)
        self.assertRegex(message, "tokens")
        self.passed("too long")

    def test_denoise(self):
        def n_frames():
            return self.server.metric(r'stream_frames_sent_total\{mode="denoise"\}')

        before = n_frames()
        text = "".join(self.one.pieces(COUNT, 400, stream_mode="denoise"))
        self.assertEqual(text, self.one.text(COUNT, 400))
        self.assertGreater(n_frames(), before + 2)
        self.passed("denoise")
