"""OpenAI's agents SDK, on responses (its default) and on chat, against the real server. Run by `scripts/client_matrix`."""

import unittest

import agents
import openai
from contract import AnswerContract, AsyncCalls, Contract

agents.set_tracing_disabled(True)


class Agent(AsyncCalls):
    package = "openai-agents"
    model_class = None

    def agent(self, max_tokens, extra={}):
        client = openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=self.key, max_retries=0)
        settings = agents.ModelSettings(temperature=0, max_tokens=max_tokens, extra_body=extra or None)
        model = self.model_class(model=self.model, openai_client=client)
        return agents.Agent(name="a", model=model, model_settings=settings)

    async def answer(self, prompt, max_tokens):
        return (await agents.Runner.run(self.agent(max_tokens), prompt)).final_output

    async def stream(self, prompt, max_tokens, **extra):
        run = agents.Runner.run_streamed(self.agent(max_tokens, extra), prompt)
        events = run.stream_events()
        try:
            async for event in events:
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    yield event.data.delta
        finally:
            run.cancel()
            await events.aclose()


class Responses(Agent):
    interface = "responses"
    model_class = agents.OpenAIResponsesModel


class Chat(Agent):
    interface = "chat"
    model_class = agents.OpenAIChatCompletionsModel


class RunSync:
    """`Runner.run_sync`, which has no streams."""

    way = "sync"

    def text(self, prompt, max_tokens=32):
        return agents.Runner.run_sync(self.agent(max_tokens), prompt).final_output


class SyncResponses(RunSync, Responses):
    pass


class SyncChat(RunSync, Chat):
    pass


class ResponsesContract(Contract, unittest.TestCase):
    calls = Responses


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


class SyncResponsesContract(AnswerContract, unittest.TestCase):
    calls = SyncResponses


class SyncChatContract(AnswerContract, unittest.TestCase):
    calls = SyncChat


if __name__ == "__main__":
    unittest.main()
