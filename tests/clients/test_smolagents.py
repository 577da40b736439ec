"""smolagents' model against the real server; its agents' own prompt is longer than the demo model takes. Run by `scripts/client_matrix`."""

import unittest

from contract import Calls, Contract
from smolagents import ChatMessage, OpenAIModel


class Chat(Calls):
    package = "smolagents"
    interface = "chat"

    def ask(self, method, prompt, max_tokens, extra={}):
        backend = OpenAIModel(
            model_id=self.model,
            api_base=self.url + "/v1",
            api_key=self.key,
            client_kwargs={"max_retries": 0},
            retry=False,
            temperature=0,
            max_tokens=max_tokens,
            extra_body=extra,
        )
        message = ChatMessage(role="user", content=[{"type": "text", "text": prompt}])
        return getattr(backend, method)([message])

    def text(self, prompt, max_tokens=32):
        return self.ask("generate", prompt, max_tokens).content

    def pieces(self, prompt, max_tokens=32, **extra):
        for delta in self.ask("generate_stream", prompt, max_tokens, extra):
            yield delta.content or ""


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


if __name__ == "__main__":
    unittest.main()
