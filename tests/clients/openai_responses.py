#!/usr/bin/env python3
"""The `openai` package's Responses API against a served model: tests/clients/openai_responses.py URL [tools] [stored]

Each check asks as an application would and compares what the client's own types hold. With `tools`,
the model's chat template must describe functions; with `stored`, the server must store responses.
Any difference ends with code 1.
"""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

QUESTION = "Name the capital of France, and say one thing about it."
GREEDY = {"temperature": 0, "max_output_tokens": 24}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    is_capital: bool


def check_response(client, model):
    response = client.responses.create(model=model, input=QUESTION, **GREEDY)
    assert response.output_text.strip(), response
    assert response.status in ("completed", "incomplete"), response
    assert 0 < response.usage.output_tokens <= GREEDY["max_output_tokens"], response.usage
    assert response.usage.input_tokens_details.cached_tokens >= 0, response.usage
    return response


def check_stream(client, model, whole):
    events = list(client.responses.create(model=model, input=QUESTION, stream=True, **GREEDY))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[1].type == "response.in_progress", events
    assert events[-1].type == f"response.{whole.status}", events[-1]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text, events[-1]
    with client.responses.stream(model=model, input=QUESTION, **GREEDY) as stream:
        for _ in stream:
            pass
        if whole.status == "completed":
            assert stream.get_final_response().output_text == whole.output_text


def check_parse(client, model):
    response = client.responses.parse(
        model=model, input="Paris as JSON.", text_format=City, temperature=0, max_output_tokens=80
    )
    assert isinstance(response.output_parsed, City), response


def check_conversation(client, model):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": QUESTION},
    ]
    response = client.responses.create(model=model, input=messages, instructions="Answer.", **GREEDY)
    assert response.output_text.strip(), response
    counted = client.responses.input_tokens.count(model=model, input=messages, instructions="Answer.")
    assert counted.input_tokens == response.usage.input_tokens, counted
    followed = client.responses.create(
        model=model, input=messages + response.output + [{"role": "user", "content": "Again."}], **GREEDY
    )
    assert followed.usage.input_tokens > response.usage.input_tokens, followed.usage


def check_logprobs(client, model):
    response = client.responses.create(
        model=model, input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY
    )
    logprobs = response.output[-1].content[0].logprobs
    assert logprobs and len(logprobs[0].top_logprobs) == 2, logprobs


def check_tools(client, model):
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    limits = {"temperature": 0, "max_output_tokens": 120}
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        response = client.responses.create(
            model=model, input=question, tools=[WEATHER], tool_choice=choice, **limits
        )
        call = response.output[-1]
        assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Oslo", "Rome"), response
    events = list(
        client.responses.create(
            model=model, input=question, tools=[WEATHER], tool_choice=choice, stream=True, **limits
        )
    )
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == call.arguments, (arguments, call)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "4 degrees and rain."}
    answer = client.responses.create(model=model, input=question + [call, output], tools=[WEATHER], **GREEDY)
    assert answer.output, answer


def check_storage(client, model):
    first = client.responses.create(model=model, input=QUESTION, **GREEDY)
    assert first.store and client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model=model, input="Again.", previous_response_id=first.id, **GREEDY)
    assert second.usage.input_tokens > first.usage.input_tokens, second.usage
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.type for item in items] == ["message"] * 3, items
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        raise AssertionError("a deleted response is found")
    except openai.NotFoundError:
        pass


def check_errors(client, model):
    for wrong in ({"previous_response_id": "resp_0"}, {"tools": [{"type": "web_search"}]}, {"background": True}):
        try:
            client.responses.create(model=model, input=QUESTION, **wrong)
            raise AssertionError(f"{wrong} is accepted")
        except openai.BadRequestError as error:
            assert error.code and error.body["message"], error.body


def main():
    url, modes = sys.argv[1], sys.argv[2:]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    if "tools" in modes:
        check_tools(client, model)
    elif "stored" in modes:
        check_storage(client, model)
    else:
        whole = check_response(client, model)
        check_stream(client, model, whole)
        check_parse(client, model)
        check_conversation(client, model)
        check_logprobs(client, model)
        check_errors(client, model)
    print("openai responses: as expected")


main()
