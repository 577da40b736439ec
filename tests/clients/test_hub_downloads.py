"""The cache of models, shared with Hugging Face's own tools; the Hub is a stand-in of it over TLS. Run by `scripts/client_matrix`."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TLS = ROOT / "tests/it/tls"
# `cargo test` makes it.
STAND_IN = os.environ.get("DIFFULEX_HUB_STAND_IN", str(ROOT / "target/debug/hub-stand-in"))
MODEL = "test/tiny-sdar"
FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]
DOWNLOAD = "import sys, huggingface_hub; print(huggingface_hub.snapshot_download(sys.argv[1], allow_patterns=sys.argv[2:]))"


class HubDownloads(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hub-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in [MODEL, "test/gated-sdar"]:
            (self.folder / "hub" / name).mkdir(parents=True)
            for file in FILES:
                shutil.copy(ROOT / "tests/golden/sdar" / file, self.folder / "hub" / name)
        command = [STAND_IN, self.folder / "hub", TLS / "server.pem", TLS / "server.key"]
        self.hub = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.hub.communicate)
        self.url = self.hub.stdout.readline().strip()

    def faults(self, **faults):
        """Sets what goes wrong next; the requests since the last time."""
        print(json.dumps(faults), file=self.hub.stdin, flush=True)
        return json.loads(self.hub.stdout.readline())

    def content_requests(self):
        return [request for request in self.faults() if "signature" in request]

    def run_with(self, home, command, **env):
        env = {"HF_ENDPOINT": self.url, "HF_HOME": str(self.folder / home), "SSL_CERT_FILE": str(TLS / "authority.pem"),
               "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", **env}
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)

    def ours(self, home, *arguments, **env):
        return self.run_with(home, [os.environ.get("DIFFULEX_BIN", "target/release/diffulex-server"), *arguments], **env)

    def theirs(self, home, **env):
        return self.run_with(home, [sys.executable, "-c", DOWNLOAD, MODEL, *FILES], **env)

    def path(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout.strip()

    def test_what_we_fetch_their_tools_read(self):
        self.faults(refuse=[[429, 0]], break_after=[100_000, 50_000])
        ours = self.path(self.ours("a", "pull", MODEL))
        self.assertEqual(len(self.content_requests()), 3)
        self.assertEqual(self.path(self.theirs("a")), ours)
        self.assertEqual(self.content_requests(), [], "their download found ours")
        self.assertEqual(self.path(self.theirs("a", HF_HUB_OFFLINE="1")), ours)

    def test_what_their_tools_fetch_we_serve(self):
        theirs = self.path(self.theirs("b"))
        self.content_requests()
        self.assertEqual(self.path(self.ours("b", "pull", MODEL)), theirs)
        self.assertEqual(self.content_requests(), [], "our download found theirs")
        answer = self.ours("b", "generate", "--model", MODEL, "--max-tokens", "4", "hi", HF_HUB_OFFLINE="1")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        listed = self.path(self.ours("b", "models"))
        self.assertIn(MODEL, listed)
        self.assertIn("SDAR", listed)

    def test_gated_repositories_and_strangers_certificates_are_told(self):
        gated = self.ours("c", "pull", "test/gated-sdar")
        self.assertIn("is gated: accept its terms at", gated.stderr)
        self.assertEqual(self.path(self.ours("c", "pull", "test/gated-sdar", HF_TOKEN="hf_stand_in"))[:1], "/")
        stranger = self.ours("c", "pull", MODEL, SSL_CERT_FILE="")
        self.assertNotEqual(stranger.returncode, 0)
        self.assertIn("certificate", stranger.stderr)


if __name__ == "__main__":
    unittest.main()
