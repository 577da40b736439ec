"""LLMeter, a load tool, against the real server: several clients at once, streams, its own count of tokens and failures."""

import asyncio
import unittest
from importlib.metadata import version

from contract import QUESTION, note
from llmeter.endpoints import OpenAICompletionStreamEndpoint, OpenAIResponseStreamEndpoint
from llmeter.runner import Runner
from server import shared

CLIENTS, REQUESTS = 4, 5


class Load(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = shared()

    def load(self, endpoint_type, interface, **limit):
        endpoint = endpoint_type(model_id=self.server.model, base_url=self.server.url + "/v1", api_key="none")
        payload = endpoint_type.create_payload(QUESTION, **limit)
        runner = Runner(endpoint, timeout=120)
        result = asyncio.run(runner.run(payload=payload, clients=CLIENTS, n_requests=REQUESTS))
        answers = result.responses
        self.assertEqual(len(answers), CLIENTS * REQUESTS)
        for answer in answers:
            self.assertIsNone(answer.error)
            self.assertIn("42", answer.response_text)
            self.assertGreater(answer.num_tokens_output, 0)
            self.assertLessEqual(answer.time_to_first_token, answer.time_to_last_token)
        self.assertEqual(result.stats["failed_requests"], 0)
        note("llmeter", version("llmeter"), interface, "load", "async")

    def test_chat(self):
        self.load(OpenAICompletionStreamEndpoint, "chat", max_tokens=32)

    def test_responses(self):
        self.load(OpenAIResponseStreamEndpoint, "responses", max_output_tokens=32)


if __name__ == "__main__":
    unittest.main()
