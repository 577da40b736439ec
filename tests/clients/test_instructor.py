"""Instructor without a response model, as tools and structured output are not served. Run by `scripts/client_matrix`."""

import unittest

import instructor
import openai
from contract import AsyncCalls, Calls, Contract


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


if __name__ == "__main__":
    unittest.main()
