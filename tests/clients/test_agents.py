"""OpenAI's agents SDK, on responses (its default) and on chat, against the real server."""

import asyncio
import unittest
from importlib.metadata import version

from contract import Calls, Contract, optional

agents = optional("agents")
openai = optional("openai")
agents.set_tracing_disabled(True)


class AgentCalls(Calls):
    client = f"openai-agents {version('openai-agents')}"

    def agent(self, max_tokens, extra):
        client = openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=self.key, max_retries=0)
        settings = agents.ModelSettings(temperature=0, max_tokens=max_tokens, extra_body=extra or None)
        model = self.model_class(model=self.model, openai_client=client)
        return agents.Agent(name="a", model=model, model_settings=settings), client

    def text(self, prompt, max_tokens=32):
        async def ask():
            agent, client = self.agent(max_tokens, {})
            async with client:
                return (await agents.Runner.run(agent, prompt)).final_output

        return asyncio.run(ask())

    def pieces(self, prompt, max_tokens=32, **extra):
        loop = asyncio.new_event_loop()
        agent, client = self.agent(max_tokens, extra)

        async def start():
            return agents.Runner.run_streamed(agent, prompt)

        run = loop.run_until_complete(start())
        events = run.stream_events()
        try:
            while (event := loop.run_until_complete(anext(events, None))) is not None:
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    yield event.data.delta
        finally:
            run.cancel()
            loop.run_until_complete(client.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def status_and_message(self, error):
        return error.status_code, str(error)


class Responses(AgentCalls):
    interface = "responses"
    model_class = agents.OpenAIResponsesModel


class Chat(AgentCalls):
    interface = "chat"
    model_class = agents.OpenAIChatCompletionsModel


class ResponsesContract(Contract, unittest.TestCase):
    calls = Responses


class ChatContract(Contract, unittest.TestCase):
    calls = Chat


if __name__ == "__main__":
    unittest.main()
