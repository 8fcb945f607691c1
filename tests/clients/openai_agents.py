#!/usr/bin/env python3
"""The OpenAI Agents SDK, with its default API, against a served model: tests/clients/openai_agents.py URL [tools]

An agent answers, streams and, with `tools`, calls a function of which the model's chat template must
be able to tell. Any difference ends with code 1.
"""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    RunConfig,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

calls = []


@function_tool
def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    calls.append(city)
    return "4 degrees and rain"


async def main():
    url, tools = sys.argv[1], "tools" in sys.argv[2:]
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    set_tracing_disabled(True)
    model = (await client.models.list()).data[0].id
    config = RunConfig(tracing_disabled=True)
    settings = ModelSettings(temperature=0, max_tokens=1000)
    if tools:
        settings = ModelSettings(temperature=0, max_tokens=120, tool_choice="required")
        agent = Agent(
            name="weather",
            instructions="Use the tool.",
            model=model,
            model_settings=settings,
            tools=[get_weather],
            tool_use_behavior="stop_on_first_tool",
        )
        result = await Runner.run(agent, "What is the weather in Oslo?", run_config=config)
        assert calls and result.final_output == "4 degrees and rain", (calls, result.final_output)
    else:
        agent = Agent(name="guide", instructions="Be brief.", model=model, model_settings=settings)
        result = await Runner.run(agent, "Name the capital of France.", run_config=config)
        assert result.final_output.strip(), result
        again = result.to_input_list() + [{"role": "user", "content": "And of Italy?"}]
        streamed = Runner.run_streamed(agent, again, run_config=config)
        kinds = [event.type async for event in streamed.stream_events()]
        assert "raw_response_event" in kinds and streamed.final_output.strip(), kinds
    print("openai agents: as expected")


asyncio.run(main())
