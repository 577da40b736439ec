"""The official OpenAI client against the real server with the model that comes with it.

Run by `.ci/run`; needs `pip install -r requirements.txt` and the binary in DIFFULEX_BIN.
"""

import json
import os
import re
import signal
import subprocess
import unittest
import urllib.request

from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI


class Server:
    """The binary on a port of its own choosing."""

    def __init__(self):
        binary = os.environ.get("DIFFULEX_BIN", "target/release/diffulex-server")
        self.process = subprocess.Popen(
            [binary, "--port", "0", "--log-level", "warn"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
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
                return
            except OSError:
                try:
                    self.process.wait(timeout=0.05)
                    raise RuntimeError("the server left while starting")
                except subprocess.TimeoutExpired:
                    pass
        raise RuntimeError("the server did not become ready")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        # Whatever it still prints must not block it.
        self.process.communicate(timeout=40)


class OpenAIClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def ask(self, content, **more):
        return self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": content}], temperature=0, **more
        )

    def test_a_chat_answers(self):
        reply = self.ask("12 + 30 = ?", max_tokens=32)
        self.assertIn("42", reply.choices[0].message.content)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)

    def test_streamed_chunks_join_to_the_reply_in_both_modes(self):
        reply = self.ask("count from 1 to 9", max_tokens=48).choices[0]
        for mode in ("block_append", "denoise"):
            chunks = list(
                self.ask(
                    "count from 1 to 9",
                    max_tokens=48,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"stream_mode": mode},
                )
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            self.assertEqual(text, reply.message.content, mode)
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], reply.finish_reason)
            self.assertGreater(chunks[-1].usage.completion_tokens, 0)
            if mode == "denoise":
                snapshots = [chunk for chunk in chunks if getattr(chunk, "event", None) == "buffer_snapshot"]
                self.assertTrue(snapshots, "no snapshot came through the client")

    def test_a_seed_draws_the_same_text_again(self):
        def draw(seed):
            return (
                self.client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": "tell me a story"}],
                    temperature=1.0,
                    seed=seed,
                    max_tokens=64,
                )
                .choices[0]
                .message.content
            )

        self.assertEqual(draw(1), draw(1))
        self.assertGreater(len({draw(seed) for seed in range(6)}), 1)

    def test_stop_and_max_tokens_hold(self):
        stopped = self.ask("count from 1 to 9", max_tokens=48, stop=["5"]).choices[0]
        self.assertNotIn("5", stopped.message.content)
        self.assertEqual(stopped.finish_reason, "stop")
        short = self.ask("count from 1 to 9", max_tokens=3)
        self.assertEqual((short.choices[0].finish_reason, short.usage.completion_tokens), ("length", 3))

    def test_errors_are_the_clients_own_types(self):
        with self.assertRaises(NotFoundError):
            self.client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
        with self.assertRaises(BadRequestError) as refused:
            self.ask("hi", max_tokens=0)
        self.assertIn("max_tokens", str(refused.exception))
        with self.assertRaises(BadRequestError) as refused:
            self.ask("hi", logit_bias={"5": 1})
        self.assertIn("logit_bias", str(refused.exception))
        with self.assertRaises(APIStatusError):
            self.ask("word " * 5000)

    def test_many_at_once_get_what_each_gets_alone(self):
        import asyncio

        prompts = [f"{a} + {b} = ?" for a in range(4) for b in range(8)]
        alone = [self.ask(prompt, max_tokens=24).choices[0].message.content for prompt in prompts]

        async def together():
            async with AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                replies = await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            model=self.model,
                            messages=[{"role": "user", "content": prompt}],
                            temperature=0,
                            max_tokens=24,
                        )
                        for prompt in prompts
                    )
                )
                return [reply.choices[0].message.content for reply in replies]

        self.assertEqual(asyncio.run(together()), alone)

    def test_a_stream_that_is_left_frees_its_pages(self):
        stream = self.ask("tell me a story", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(200):
            metrics = urllib.request.urlopen(self.server.url + "/metrics").read().decode()
            running = re.search(r"^diffulex_num_requests_running (\S+)", metrics, re.M)
            if running and float(running.group(1)) == 0:
                return
            self.ask("hi", max_tokens=4)
        self.fail("the abandoned request still runs")

    def test_the_model_card_tells_how_it_decodes(self):
        with urllib.request.urlopen(self.server.url + "/v1/models") as response:
            card = json.load(response)["data"][0]
        self.assertEqual(card["diffulex"]["strategy"], "multi_bd")
        self.assertGreater(card["diffulex"]["parameters"], 1_000_000)


if __name__ == "__main__":
    unittest.main()
