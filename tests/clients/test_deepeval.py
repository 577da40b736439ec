"""DeepEval's model for servers with OpenAI's interface, which its metrics use as the judge, against the real server. Run by
`scripts/client_matrix`."""

import os
import unittest

os.environ["DEEPEVAL_TELEMETRY_OPT_OUT"] = "YES"
os.environ["DEEPEVAL_RETRY_MAX_ATTEMPTS"] = "1"

from contract import AnswerContract, AsyncCalls, Calls
from deepeval.models import LocalModel


class Chat(Calls):
    package = "deepeval"
    interface = "chat"

    def judge(self, max_tokens):
        return LocalModel(
            model=self.model,
            base_url=self.url + "/v1",
            api_key=self.key,
            temperature=0,
            generation_kwargs={"max_tokens": max_tokens},
        )

    def text(self, prompt, max_tokens=32):
        return self.judge(max_tokens).generate(prompt)[0]


class AsyncChat(AsyncCalls, Chat):
    async def answer(self, prompt, max_tokens):
        return (await self.judge(max_tokens).a_generate(prompt))[0]


class ChatContract(AnswerContract, unittest.TestCase):
    calls = Chat


class AsyncChatContract(AnswerContract, unittest.TestCase):
    calls = AsyncChat


if __name__ == "__main__":
    unittest.main()
