"""langchain-anthropic against the real server."""

import unittest
from importlib.metadata import version

from contract import QUESTION, Calls, Contract, optional

langchain_anthropic = optional("langchain_anthropic")


class Messages(Calls):
    client = f"langchain-anthropic {version('langchain-anthropic')}"
    interface = "messages"

    def chat(self, max_tokens, extra):
        return langchain_anthropic.ChatAnthropic(
            base_url=self.url,
            api_key=self.key,
            model=self.model,
            max_tokens=max_tokens,
            max_retries=0,
            model_kwargs={"extra_body": extra} if extra else {},
        )

    def text(self, prompt, max_tokens=32):
        return self.chat(max_tokens, {}).invoke(prompt).text

    def pieces(self, prompt, max_tokens=32, **extra):
        for chunk in self.chat(max_tokens, extra).stream(prompt):
            yield chunk.text

    def status_and_message(self, error):
        return error.status_code, str(error)


class MessagesContract(Contract, unittest.TestCase):
    calls = Messages

    def test_usage_is_that_of_the_answer_streamed_or_not(self):
        chat = self.one.chat(32, {})
        whole = chat.invoke(QUESTION).usage_metadata
        streamed = None
        for chunk in chat.stream(QUESTION):
            streamed = chunk if streamed is None else streamed + chunk
        self.assertEqual(streamed.usage_metadata["output_tokens"], whole["output_tokens"])
        self.assertEqual(streamed.usage_metadata["input_tokens"], whole["input_tokens"])


if __name__ == "__main__":
    unittest.main()
