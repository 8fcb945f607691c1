#!/usr/bin/env python3
"""The OpenAI Agents SDK against a served model: tests/clients/openai_agents.py URL [tools]

By responses, its default, and by chat completions, an agent answers, streams, gives an output of a type
and, with `tools`, calls a function, which the model's chat template must describe. Any difference ends
with code 1.
"""

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

CONFIG = RunConfig(tracing_disabled=True)
calls = []


class City(BaseModel):
    # No field in which a small model may continue for ever.
    name: Literal["Paris", "Rome"]
    is_capital: bool


@function_tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Returns the weather of a city."""
    calls.append(city)
    return "4 degrees and rain"


async def check_text(model):
    agent = Agent(
        name="guide", instructions="Be brief.", model=model, model_settings=ModelSettings(temperature=0, max_tokens=100)
    )
    result = await Runner.run(agent, "Name the capital of France.", run_config=CONFIG)
    assert result.final_output.strip(), result
    again = result.to_input_list() + [{"role": "user", "content": "And of Italy?"}]
    streamed = Runner.run_streamed(agent, again, run_config=CONFIG)
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds and streamed.final_output.strip(), kinds
    whole = await Runner.run(agent, again, run_config=CONFIG)
    assert whole.final_output == streamed.final_output, (whole, streamed)


async def check_structured(model):
    settings = ModelSettings(temperature=0, max_tokens=100)
    agent = Agent(name="atlas", model=model, model_settings=settings, output_type=City)
    result = await Runner.run(agent, "Describe Paris as JSON.", run_config=CONFIG)
    assert isinstance(result.final_output, City), result


async def check_tools(model):
    calls.clear()
    settings = ModelSettings(temperature=0, max_tokens=120, tool_choice="required", parallel_tool_calls=False)
    agent = Agent(
        name="weather",
        instructions="Use the tool.",
        model=model,
        model_settings=settings,
        tools=[get_weather],
        tool_use_behavior="stop_on_first_tool",
    )
    result = await Runner.run(agent, "What is the weather in Oslo?", run_config=CONFIG)
    assert len(calls) == 1 and result.final_output == "4 degrees and rain", (calls, result.final_output)
    # Next to a format, which a required call takes the place of.
    result = await Runner.run(agent.clone(output_type=City), "What is the weather in Oslo?", run_config=CONFIG)
    assert len(calls) == 2 and result.new_items[0].type == "tool_call_item", result


async def main():
    url, tools = sys.argv[1], "tools" in sys.argv[2:]
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    set_tracing_disabled(True)
    name = (await client.models.list()).data[0].id
    for model in (OpenAIResponsesModel(name, client), OpenAIChatCompletionsModel(name, client)):
        if tools:
            await check_tools(model)
        else:
            await check_text(model)
            await check_structured(model)
    print("openai agents: as expected")


asyncio.run(main())
