#!/usr/bin/env python3
"""`smolagents` against a served model: tests/clients/smolagents_agents.py URL [tools]

Its model class for OpenAI's API: texts, streams and formats; with `tools`, where the model's chat template
must describe functions, calls and an agent that calls a function. Any difference ends with code 1.
"""

import json
import sys

import openai
from smolagents import ChatMessage, MessageRole, OpenAIServerModel, ToolCallingAgent, tool

QUESTION = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "Name the capital of France."}])]


@tool
def get_weather(city: str) -> str:
    """
    Returns the weather of a city.

    Args:
        city: Name of the city.
    """
    return "4 degrees and rain"


def check_text(model):
    whole = model.generate(QUESTION)
    assert whole.content.strip() and whole.token_usage.output_tokens > 0, whole
    deltas = list(model.generate_stream(QUESTION))
    assert "".join(delta.content or "" for delta in deltas) == whole.content, deltas
    stopped = model.generate(QUESTION, stop_sequences=[whole.content[4:8]])
    assert stopped.content == whole.content.split(whole.content[4:8])[0], (stopped.content, whole.content)


def check_structured(model):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Paris", "Rome"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    answer = model.generate(QUESTION, response_format=response_format)
    assert json.loads(answer.content)["name"] in ("Paris", "Rome"), answer


def check_tools(model):
    answer = model.generate(QUESTION, tools_to_call_from=[get_weather])
    call = answer.tool_calls[0]
    assert call.function.name == "get_weather", answer
    arguments = call.function.arguments
    assert list(json.loads(arguments) if isinstance(arguments, str) else arguments) == ["city"], call
    # Every step is a call; which one is the model's choice, so the steps are few.
    agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=2, verbosity_level=0)
    agent.run("What is the weather in Oslo?")
    steps = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    assert steps and all(call.name in ("get_weather", "final_answer") for step in steps for call in step.tool_calls), steps


def main():
    url, modes = sys.argv[1], sys.argv[2:]
    name = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
    limits = {"temperature": 0, "max_tokens": 60, "client_kwargs": {"max_retries": 0}}
    model = OpenAIServerModel(name, api_base=f"{url}/v1", api_key="none", **limits)
    if "tools" in modes:
        check_tools(model)
    else:
        check_text(model)
        check_structured(model)
    print("smolagents: as expected")


main()
