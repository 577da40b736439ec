"""LlamaIndex's OpenAI-like model against the real server. Run by `scripts/client_matrix`."""

import unittest

from contract import AsyncCalls, Calls, Contract
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


class Chat(Calls):
    package = "llama-index-llms-openai-like"
    client = "llama-index (openai-like)"
    interface = "chat"

    def llm(self, max_tokens, extra={}):
        return OpenAILike(
            model=self.model,
            api_base=self.url + "/v1",
            api_key=self.key,
            is_chat_model=True,
            temperature=0,
            max_tokens=max_tokens,
            max_retries=0,
            additional_kwargs={"extra_body": extra} if extra else {},
        )

    def text(self, prompt, max_tokens=32):
        return self.llm(max_tokens).chat([ChatMessage(prompt)]).message.content

    def pieces(self, prompt, max_tokens=32, **extra):
        for part in self.llm(max_tokens, extra).stream_chat([ChatMessage(prompt)]):
            yield part.delta or ""


class AsyncChat(AsyncCalls, Chat):
    async def answer(self, prompt, max_tokens):
        return (await self.llm(max_tokens).achat([ChatMessage(prompt)])).message.content

    async def stream(self, prompt, max_tokens, **extra):
        parts = await self.llm(max_tokens, extra).astream_chat([ChatMessage(prompt)])
        try:
            async for part in parts:
                yield part.delta or ""
        finally:
            await parts.aclose()


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(Contract, unittest.TestCase):
    calls = AsyncChat


if __name__ == "__main__":
    unittest.main()
