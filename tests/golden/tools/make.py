"""Renders `chat_template.jinja` as transformers does and writes `rendered.json`: pip install transformers; python make.py

The template is in the form of Qwen 2.5's and Qwen 3's (tools, calls, results), written for this repository.
"""

import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = Path(__file__).parent

# Keys are not in alphabetical order: templates print them as they were sent.
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city: \"<now>\" & größe",
    "parameters": {"type": "object", "properties": {
        "unit": {"type": "string", "enum": ["C", "F"]}, "city": {"type": "string", "description": "City"},
    }, "required": ["city"]},
}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def call(nth, name, arguments):
    return {"id": f"call_{nth}", "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather in Rome and Köln?"}
CALLS = {"role": "assistant", "content": "", "tool_calls": [
    call(1, "get_weather", {"unit": "C", "city": "Rome"}), call(2, "get_weather", {"city": "Köln", "deep": {"z": [1, 2.5, None, True], "a": {}}}),
]}
SPOKEN = {"role": "assistant", "content": "Let me look.", "tool_calls": [call(3, "clock", {})]}
RESULTS = [
    {"role": "tool", "content": "12 <b>", "tool_call_id": "call_1", "name": "get_weather"},
    {"role": "tool", "content": "{\"t\": 9}", "tool_call_id": "call_2"},
]

CASES = [
    ([USER], [WEATHER]),
    ([SYSTEM, USER], [WEATHER, CLOCK]),
    ([SYSTEM, USER, CALLS, *RESULTS], [WEATHER, CLOCK]),
    ([USER, SPOKEN, RESULTS[0], {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "Thanks"}], [CLOCK]),
    ([USER, CALLS, *RESULTS, {"role": "user", "content": "And now?"}], None),
]

if __name__ == "__main__":
    template = (FOLDER / "chat_template.jinja").read_text()
    written = []
    for messages, tools in CASES:
        [rendered], _ = render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=True)
        written.append({"messages": messages, "tools": tools or [], "rendered": rendered})
    (FOLDER / "rendered.json").write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n")
