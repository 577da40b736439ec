"""AutoGen's assistant agent against the real server. Run by `scripts/client_matrix`."""

import unittest

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from contract import AsyncCalls, Contract

ABILITIES = {
    "family": "unknown",
    "function_calling": False,
    "json_output": False,
    "structured_output": False,
    "vision": False,
}


class Chat(AsyncCalls):
    package = "autogen-agentchat"
    interface = "chat"

    def agent(self, max_tokens, extra={}, streams=False):
        client = OpenAIChatCompletionClient(
            model=self.model,
            base_url=self.url + "/v1",
            api_key=self.key,
            model_info=ABILITIES,
            max_retries=0,
            temperature=0,
            max_tokens=max_tokens,
            extra_body=extra,
        )
        # The default system message is longer than the answer.
        return AssistantAgent("a", client, system_message=None, model_client_stream=streams)

    async def answer(self, prompt, max_tokens):
        return (await self.agent(max_tokens).run(task=prompt)).messages[-1].content

    async def stream(self, prompt, max_tokens, **extra):
        events = self.agent(max_tokens, extra, streams=True).run_stream(task=prompt)
        try:
            async for event in events:
                if isinstance(event, ModelClientStreamingChunkEvent):
                    yield event.content
        finally:
            await events.aclose()


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


if __name__ == "__main__":
    unittest.main()
