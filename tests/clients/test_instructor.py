"""Instructor without a response model, and with one in its mode JSON_SCHEMA. Run by `scripts/client_matrix`."""

import unittest

import instructor
import openai
from contract import AsyncCalls, Calls, Contract
from structured import QUESTION, Structured, Sum


class Chat(Calls):
    package = "instructor"
    interface = "chat"
    library = openai.OpenAI

    def ask(self, prompt, max_tokens, extra={}, **more):
        client = instructor.from_openai(self.library(base_url=self.url + "/v1", api_key=self.key, max_retries=0))
        return client.chat.completions.create(
            response_model=None,
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=0,
            extra_body=extra,
            **more,
        )

    def text(self, prompt, max_tokens=32):
        return self.ask(prompt, max_tokens).choices[0].message.content

    def pieces(self, prompt, max_tokens=32, **extra):
        with self.ask(prompt, max_tokens, extra, stream=True) as stream:
            for chunk in stream:
                yield chunk.choices[0].delta.content or ""


class AsyncChat(AsyncCalls, Chat):
    library = openai.AsyncOpenAI

    async def answer(self, prompt, max_tokens):
        return (await self.ask(prompt, max_tokens)).choices[0].message.content

    async def stream(self, prompt, max_tokens, **extra):
        async with await self.ask(prompt, max_tokens, extra, stream=True) as stream:
            async for chunk in stream:
                yield chunk.choices[0].delta.content or ""


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(Contract, unittest.TestCase):
    calls = AsyncChat


class StructuredOutput(Structured, unittest.TestCase):
    def test_a_response_model_is_a_schema(self):
        with openai.OpenAI(base_url=self.api, api_key="none", max_retries=0) as library:
            client = instructor.from_openai(library, mode=instructor.Mode.JSON_SCHEMA)
            messages = [{"role": "user", "content": QUESTION}]
            body = {"model": self.server.model, "messages": messages, "max_tokens": 64, "max_retries": 0}
            self.check(client.chat.completions.create(response_model=Sum, **body))
            *_, last = client.chat.completions.create_partial(response_model=Sum, **body)
            self.check(Sum.model_validate(last.model_dump()))


if __name__ == "__main__":
    unittest.main()
