#!/usr/bin/env python3
"""`pydantic-ai` against a served model: tests/clients/pydantic_ai_agents.py URL [tools]

Agents over chat completions and over responses: texts, streams, formats and, with `tools`, where the
model's chat template must describe functions, calls. Any difference ends with code 1.
"""

import asyncio
import sys
from typing import Literal

import openai
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "Name the capital of France, and say one thing about it."
SETTINGS = {"temperature": 0, "max_tokens": 100, "parallel_tool_calls": False}


class City(BaseModel):
    """A city."""

    # No field in which a small model may continue for ever, and none that it adds.
    model_config = ConfigDict(extra="forbid")
    name: Literal["Paris", "Rome"]
    is_capital: bool


async def check_text(model):
    agent = Agent(model, instructions="Be brief.", model_settings={"temperature": 0, "max_tokens": 24})
    whole = await agent.run(QUESTION)
    assert whole.output.strip(), whole
    async with agent.run_stream(QUESTION) as stream:
        deltas = [delta async for delta in stream.stream_text(delta=True)]
    assert "".join(deltas) == whole.output, (deltas, whole)
    followed = await agent.run("Again.", message_history=whole.all_messages())
    assert followed.output.strip(), followed


async def check_structured(model):
    agent = Agent(model, output_type=NativeOutput(City), model_settings=SETTINGS, retries=0)
    whole = await agent.run("Describe Paris as JSON.")
    assert isinstance(whole.output, City), whole
    async with agent.run_stream("Describe Paris as JSON.") as stream:
        parts = [part async for part in stream.stream_output()]
    assert parts[-1] == whole.output, parts


async def check_tools(model):
    agent = Agent(model, output_type=ToolOutput(City), model_settings=SETTINGS, retries=0)
    whole = await agent.run("Describe Paris.")
    assert isinstance(whole.output, City), whole
    async with agent.run_stream("Describe Paris.") as stream:
        assert await stream.get_output() == whole.output, whole
    cities = []

    def get_weather(city: Literal["Oslo", "Rome"]) -> str:
        """Returns the weather of a city."""
        cities.append(city)
        return "4 degrees and rain"

    # The function's result is the output, so the model has to call it.
    agent = Agent(model, output_type=get_weather, model_settings=SETTINGS, retries=0)
    found = await agent.run("What is the weather in Oslo?")
    assert found.output == "4 degrees and rain" and len(cities) == 1, found
    # Next to a tool, the first answer is a call or of the format.
    agent = Agent(model, output_type=NativeOutput(City), tools=[get_weather], model_settings=SETTINGS, retries=0)
    async with agent.iter("Describe Paris as JSON.") as run:
        async for node in run:
            if Agent.is_call_tools_node(node):
                for part in node.model_response.parts:
                    assert part.part_kind == "tool-call" or City.model_validate_json(part.content), part
                break
        else:
            raise AssertionError("no answer")


async def main():
    url, modes = sys.argv[1], sys.argv[2:]
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    name = (await client.models.list()).data[0].id
    for model_class in (OpenAIChatModel, OpenAIResponsesModel):
        model = model_class(name, provider=OpenAIProvider(openai_client=client))
        if "tools" in modes:
            await check_tools(model)
        else:
            await check_text(model)
            await check_structured(model)
    print("pydantic-ai: as expected")


asyncio.run(main())
