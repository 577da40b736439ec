"""Pydantic AI's agents, on each interface that they have, against the real server. Run by `scripts/client_matrix`."""

import unittest

from contract import AsyncCalls, Calls, Contract
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from structured import QUESTION, Structured, Sum


class Chat(Calls):
    package = "pydantic-ai-slim"
    client = "pydantic-ai"
    interface = "chat"

    def agent(self, max_tokens, extra={}):
        settings = {"temperature": 0, "max_tokens": max_tokens, "extra_body": extra or None}
        return Agent(self.backend(), model_settings=settings)

    def backend(self):
        return OpenAIChatModel(self.model, provider=OpenAIProvider(base_url=self.url + "/v1", api_key=self.key))

    def text(self, prompt, max_tokens=32):
        return self.agent(max_tokens).run_sync(prompt).output

    def pieces(self, prompt, max_tokens=32, **extra):
        with self.agent(max_tokens, extra).run_stream_sync(prompt) as run:
            yield from run.stream_text(delta=True, debounce_by=None)


class AsyncChat(AsyncCalls, Chat):
    async def answer(self, prompt, max_tokens):
        return (await self.agent(max_tokens).run(prompt)).output

    async def stream(self, prompt, max_tokens, **extra):
        async with self.agent(max_tokens, extra).run_stream(prompt) as run:
            async for piece in run.stream_text(delta=True, debounce_by=None):
                yield piece


class AsyncResponses(AsyncChat):
    interface = "responses"

    def backend(self):
        return OpenAIResponsesModel(self.model, provider=OpenAIProvider(base_url=self.url + "/v1", api_key=self.key))


class AsyncMessages(AsyncChat):
    interface = "messages"

    def backend(self):
        return AnthropicModel(self.model, provider=AnthropicProvider(base_url=self.url, api_key=self.key))


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(Contract, unittest.TestCase):
    calls = AsyncChat


class AsyncResponsesContract(Contract, unittest.TestCase):
    calls = AsyncResponses


class AsyncMessagesContract(Contract, unittest.TestCase):
    calls = AsyncMessages


class StructuredOutput(Structured, unittest.TestCase):
    def test_native_output_is_a_schema(self):
        for model in (OpenAIChatModel, OpenAIResponsesModel):
            backend = model(self.server.model, provider=OpenAIProvider(base_url=self.api, api_key="none"))
            agent = Agent(backend, output_type=NativeOutput(Sum), retries=0, model_settings={"max_tokens": 64})
            self.check(agent.run_sync(QUESTION).output)


if __name__ == "__main__":
    unittest.main()
