"""Google's agent development kit over LiteLLM's providers, all of whose calls are awaited. Run by `scripts/client_matrix`."""

import unittest

from contract import AsyncCalls, StreamContract
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


# The kit passes on the class of LiteLLM's error and no status.
STATUSES = {"NotFoundError": 404, "AuthenticationError": 401, "BadRequestError": 400, "ContextWindowExceededError": 400}


class OpenAI(AsyncCalls):
    package = "google-adk"
    interface = "openai"
    path = "/v1"

    async def events(self, prompt, max_tokens, mode):
        model = f"{self.interface}/{self.model}"
        lite = LiteLlm(model, api_base=self.url + self.path, api_key=self.key, num_retries=0)
        settings = types.GenerateContentConfig(temperature=0, max_output_tokens=max_tokens)
        runner = InMemoryRunner(agent=LlmAgent(name="a", model=lite, generate_content_config=settings), app_name="a")
        session = await runner.session_service.create_session(app_name="a", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        run = RunConfig(streaming_mode=mode)
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message, run_config=run):
            if event.error_message:
                raise RuntimeError(event.error_code, event.error_message)
            if event.content and event.content.parts:
                yield event, "".join(part.text or "" for part in event.content.parts)

    def status_and_message(self, error):
        code, message = error.args
        return STATUSES.get(code), message

    async def answer(self, prompt, max_tokens):
        return "".join([text async for _, text in self.events(prompt, max_tokens, StreamingMode.NONE)])

    async def stream(self, prompt, max_tokens):
        async for event, text in self.events(prompt, max_tokens, StreamingMode.SSE):
            # The last event has the whole text again.
            if event.partial:
                yield text


class Ollama(OpenAI):
    interface = "ollama_chat"
    path = ""


class OpenAIContract(StreamContract, unittest.TestCase):
    calls = OpenAI


class OllamaContract(StreamContract, unittest.TestCase):
    calls = Ollama


if __name__ == "__main__":
    unittest.main()
