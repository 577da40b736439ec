"""Inspect: its model interface, and an evaluation with a score, against the real server. Run by `scripts/client_matrix`."""

import tempfile
import unittest
from importlib.metadata import version

from contract import AnswerContract, AsyncCalls, note, wait
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from server import shared


def model_of(url, model, key, **config):
    return get_model(
        f"openai-api/diffulex/{model}",
        base_url=url + "/v1",
        api_key=key,
        memoize=False,
        config=GenerateConfig(temperature=0, max_retries=0, **config),
    )


class Chat(AsyncCalls):
    package = "inspect-ai"
    interface = "chat"

    async def output(self, prompt, max_tokens):
        async with model_of(self.url, self.model, self.key, max_tokens=max_tokens) as model:
            return await model.generate(prompt)

    async def answer(self, prompt, max_tokens):
        return (await self.output(prompt, max_tokens)).completion


class ChatContract(AnswerContract, unittest.TestCase):
    calls = Chat

    def test_too_long(self):
        # Inspect knows this error and ends the sample with a reason.
        output = wait(self.one.output("word " * 5000, 32))
        self.assertEqual(output.stop_reason, "model_length")
        self.assertRegex(output.completion, "tokens")
        self.passed("too long")


class Evaluation(unittest.TestCase):
    def test_sums_are_scored(self):
        server = shared()
        samples = [Sample(input=f"{a} + {b} = ?", target=str(a + b)) for a in (12, 25, 31) for b in (9, 17, 30)]
        with tempfile.TemporaryDirectory() as folder:
            model = model_of(server.url, server.model, "none", max_tokens=32)
            [log] = evaluate(Task(samples, scorer=includes()), model=model, log_dir=folder, display="none")
        self.assertEqual(log.status, "success", log.error)
        self.assertGreaterEqual(log.results.scores[0].metrics["accuracy"].value, 0.8)
        note("inspect-ai", version("inspect-ai"), "chat", "answers", "async")


if __name__ == "__main__":
    unittest.main()
