#!/usr/bin/env python3
"""LiteLLM against a served model: tests/clients/litellm_completion.py URL [tools]

Its providers `openai`, `hosted_vllm` and `anthropic`, its responses, text completions and embeddings.
With `tools`, the model's chat template must describe functions. Any difference ends with code 1.
"""

import asyncio
import json
import os
import sys
from typing import Literal

# Its table of prices is in the package, too.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "Name the capital of France, and say one thing about it."}]
GREEDY = {"temperature": 0, "max_tokens": 24}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


class City(BaseModel):
    """A city."""

    # No field in which a small model may continue for ever.
    name: Literal["Paris", "Rome"]
    is_capital: bool


def check_text(arguments):
    whole = litellm.completion(messages=MESSAGES, **arguments, **GREEDY)
    text = whole.choices[0].message.content
    assert text.strip() and 0 < whole.usage.completion_tokens <= GREEDY["max_tokens"], whole
    chunks = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **arguments, **GREEDY))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text, chunks
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content == text, built
    assert built.usage.completion_tokens == whole.usage.completion_tokens, built.usage
    again = asyncio.run(litellm.acompletion(messages=MESSAGES, **arguments, **GREEDY))
    assert again.choices[0].message.content == text, again
    return text


def check_structured(arguments):
    messages = [{"role": "user", "content": "Describe Paris as JSON."}]
    answer = litellm.completion(
        messages=messages, response_format=City, temperature=0, max_tokens=100, **arguments
    )
    City.model_validate_json(answer.choices[0].message.content)


def check_tools(arguments):
    request = {
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 100,
        **arguments,
    }
    answer = litellm.completion(tool_choice="required", parallel_tool_calls=False, **request).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and call.function.name == "get_weather", answer
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome"), call
    chunks = list(litellm.completion(tool_choice="required", parallel_tool_calls=False, stream=True, **request))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert json.loads(built.function.arguments) == json.loads(call.function.arguments), built
    result = {"role": "tool", "tool_call_id": call.id, "content": "4 degrees and rain"}
    messages = [*request["messages"], answer.message.model_dump(), result]
    followed = litellm.completion(**(request | {"messages": messages})).choices[0].message
    assert followed.content or followed.tool_calls, followed


def check_responses(arguments):
    limits = {"temperature": 0, "max_output_tokens": 24}
    whole = litellm.responses(input="Name the capital of France.", **arguments, **limits)
    text = whole.output[-1].content[0].text
    assert text.strip(), whole
    events = litellm.responses(input="Name the capital of France.", stream=True, **arguments, **limits)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text, (deltas, text)


def check_others(arguments):
    request = {"prompt": "One, two, three,", "max_tokens": 8, "temperature": 0, **arguments}
    whole = litellm.text_completion(**request).choices[0].text
    streamed = [chunk.choices[0].text or "" for chunk in litellm.text_completion(stream=True, **request)]
    assert "".join(streamed) == whole, (streamed, whole)
    found = litellm.embedding(input=["a kernel", "a nut"], **arguments)
    assert len(found.data) == 2 and found.usage.prompt_tokens > 0, found
    for item in found.data:
        assert abs(sum(element**2 for element in item["embedding"]) - 1) < 1e-5


def check_errors(arguments, model):
    try:
        litellm.completion(messages=MESSAGES, **(arguments | {"model": arguments["model"].replace(model, "no-such-model")}))
        raise AssertionError("another model is accepted")
    except litellm.NotFoundError:
        pass
    long = [{"role": "user", "content": "a " * 20000}]
    try:
        litellm.completion(messages=long, **arguments)
        raise AssertionError("a prompt beyond the context is accepted")
    except litellm.ContextWindowExceededError:
        pass


def main():
    url, modes = sys.argv[1], sys.argv[2:]
    model = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
    known = {"api_key": "none", "num_retries": 0}
    openai_arguments = known | {"model": f"openai/{model}", "api_base": f"{url}/v1"}
    vllm_arguments = known | {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1"}
    anthropic_arguments = known | {"model": f"anthropic/{model}", "api_base": url}
    if "tools" in modes:
        for arguments in (openai_arguments, vllm_arguments, anthropic_arguments):
            check_tools(arguments)
    else:
        texts = [check_text(arguments) for arguments in (openai_arguments, vllm_arguments, anthropic_arguments)]
        assert len(set(texts)) == 1, texts
        for arguments in (openai_arguments, vllm_arguments):
            check_structured(arguments)
            check_responses(arguments)
        check_others(openai_arguments)
        check_errors(openai_arguments, model)
    print("litellm: as expected")


main()
