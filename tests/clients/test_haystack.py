"""Haystack's chat generator against the real server. Its streams go to a callback. Run by `scripts/client_matrix`."""

import unittest

from contract import AsyncCalls, Calls, StreamContract, wait
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret


class Chat(Calls):
    package = "haystack-ai"
    interface = "chat"

    def generator(self, max_tokens, callback=None):
        return OpenAIChatGenerator(
            model=self.model,
            api_base_url=self.url + "/v1",
            api_key=Secret.from_token(self.key),
            max_retries=0,
            streaming_callback=callback,
            generation_kwargs={"temperature": 0, "max_tokens": max_tokens},
        )

    def text(self, prompt, max_tokens=32):
        return self.generator(max_tokens).run([ChatMessage.from_user(prompt)])["replies"][0].text

    def pieces(self, prompt, max_tokens=32):
        pieces = []
        self.generator(max_tokens, lambda chunk: pieces.append(chunk.content)).run([ChatMessage.from_user(prompt)])
        return pieces


class AsyncChat(AsyncCalls, Chat):
    async def answer(self, prompt, max_tokens):
        reply = await self.generator(max_tokens).run_async([ChatMessage.from_user(prompt)])
        return reply["replies"][0].text

    def pieces(self, prompt, max_tokens=32):
        pieces = []

        async def keep(chunk):
            pieces.append(chunk.content)

        wait(self.generator(max_tokens, keep).run_async([ChatMessage.from_user(prompt)]))
        return pieces


class ChatContract(StreamContract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(StreamContract, unittest.TestCase):
    calls = AsyncChat


if __name__ == "__main__":
    unittest.main()
