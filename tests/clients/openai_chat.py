#!/usr/bin/env python3
"""openai-python against a served model: tests/clients/openai_chat.py URL [tools]

Each check asks as an application would and compares what the client's own types hold. Any difference ends with code 1."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "Name the capital of France, and say one thing about it."}]
GREEDY = {"temperature": 0, "max_tokens": 24}


class City(BaseModel):
    # No field in which a small model may go on for ever.
    name: Literal["Paris", "Rome"]
    is_capital: bool


def check_models(client):
    models = [model.id for model in client.models.list()]
    assert models, "no model is listed"
    assert client.models.retrieve(models[0]).id == models[0]


def check_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, **GREEDY)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content.strip(), answer
    assert choice.finish_reason in ("stop", "length"), answer
    usage = answer.usage
    assert 0 < usage.completion_tokens <= GREEDY["max_tokens"], usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert usage.prompt_tokens_details.cached_tokens >= 0, usage
    again = client.chat.completions.create(model=model, messages=QUESTION, **GREEDY)
    assert again.choices[0].message.content == choice.message.content, "the same request has another answer"
    return choice.message.content, usage


def check_stream(client, model, text, usage):
    options = {"include_usage": True}
    events = list(
        client.chat.completions.create(model=model, messages=QUESTION, stream=True, stream_options=options, **GREEDY)
    )
    pieces = [choice.delta.content or "" for event in events for choice in event.choices]
    assert "".join(pieces) == text, ("".join(pieces), text)
    assert len(pieces) >= usage.completion_tokens, "fewer events than tokens"
    reasons = [choice.finish_reason for event in events for choice in event.choices if choice.finish_reason]
    assert len(reasons) == 1, reasons
    assert events[-1].choices == [], events[-1]
    counts = lambda usage: (usage.prompt_tokens, usage.completion_tokens)
    assert counts(events[-1].usage) == counts(usage), (events[-1].usage, usage)
    with client.chat.completions.stream(model=model, messages=QUESTION, **GREEDY) as stream:
        for _ in stream:
            pass
        # The final one would be refused where the answer ended by its length.
        assert stream.current_completion_snapshot.choices[0].message.content == text


def check_logprobs(client, model):
    ask = {"model": model, "messages": QUESTION, "logprobs": True, "top_logprobs": 3, **GREEDY}
    tokens = client.chat.completions.create(**ask).choices[0].logprobs.content
    assert tokens, "no logprobs"
    for token in tokens:
        top = [each.logprob for each in token.top_logprobs]
        assert len(top) == 3 and top == sorted(top, reverse=True) and top[0] <= 0, token
        assert token.logprob == top[0], "greedy takes the likeliest"
    streamed = [
        token
        for event in client.chat.completions.create(**ask, stream=True)
        for choice in event.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    values = lambda tokens: [(token.token, token.logprob) for token in tokens]
    assert values(streamed) == values(tokens), (streamed, tokens)


def check_structured(client, model):
    ask = {"model": model, "messages": [{"role": "user", "content": "Describe Paris as JSON."}], "max_tokens": 200}
    parsed = client.chat.completions.parse(response_format=City, temperature=0, **ask).choices[0].message.parsed
    assert isinstance(parsed, City), parsed
    schema = {"name": "colour", "strict": True, "schema": {"type": "string", "enum": ["red", "green"]}}
    form = {"type": "json_schema", "json_schema": schema}
    text = client.chat.completions.create(response_format=form, **ask).choices[0].message.content
    assert json.loads(text) in ("red", "green"), text
    choice = client.chat.completions.create(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}, **ask)
    assert choice.choices[0].message.content in ("yes", "no"), choice


def check_completions(client, model):
    ask = {"model": model, "prompt": "One, two, three,", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**ask).choices[0]
    streamed = [event.choices[0].text for event in client.completions.create(**ask, stream=True)]
    assert "".join(streamed) == whole.text, (streamed, whole.text)
    told = client.completions.create(**(ask | {"echo": True, "logprobs": 2, "max_tokens": 1})).choices[0]
    assert told.text.startswith(ask["prompt"]), told
    assert told.logprobs.token_logprobs[0] is None and all(value <= 0 for value in told.logprobs.token_logprobs[1:])
    several = client.completions.create(**(ask | {"prompt": ["A", "B"], "n": 2, "temperature": 1, "seed": 5}))
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3], several
    stop = whole.text[4:6]
    stopped = client.completions.create(**(ask | {"stop": [stop]})).choices[0]
    assert (stopped.text, stopped.finish_reason) == (whole.text.split(stop)[0], "stop"), (stopped, whole.text)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            # No field in which a small model may go on for ever.
            "properties": {"city": {"enum": ["Oslo", "Paris"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}


class Add(BaseModel):
    a: Literal[1, 2]
    b: Literal[3, 4]


def check_tools(client, model):
    """Of a model whose template tells it of functions."""
    messages = [{"role": "user", "content": "Will it be cold in Oslo?"}]
    ask = {"model": model, "messages": messages, "tools": [WEATHER, NOW], "max_tokens": 90}
    for seed in range(10):
        drawn = ask | {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "seed": seed}
        choice = client.chat.completions.create(**drawn).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None), choice
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        if call.function.name == "get_weather":
            assert arguments["city"] in ("Oslo", "Paris") and 1 <= arguments["days"] <= 9, arguments
        else:
            assert (call.function.name, arguments) == ("now", {}), call
        with client.chat.completions.stream(**drawn) as stream:
            final = stream.get_final_completion().choices[0]
        (streamed,) = final.message.tool_calls
        assert streamed.function.arguments == call.function.arguments, (streamed, call)
        assert (final.finish_reason, streamed.function.name) == ("tool_calls", call.function.name), final
    # A conversation goes on with the result.
    result = {"role": "tool", "tool_call_id": call.id, "content": "-4 degrees"}
    told = client.chat.completions.create(**(ask | {"messages": [*messages, choice.message, result]}))
    assert told.choices[0].finish_reason in ("stop", "length", "tool_calls"), told
    plain = ask | {"temperature": 0, "tool_choice": "auto"}
    auto = client.chat.completions.create(**plain).choices[0]
    assert auto.message.content or auto.message.tool_calls, auto
    named = {"type": "function", "function": {"name": "Add"}}
    tools = [openai.pydantic_function_tool(Add)]
    parsed = client.chat.completions.parse(**(ask | {"tools": tools, "tool_choice": named, "temperature": 0}))
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Add), call
    try:
        client.chat.completions.create(**(ask | {"tools": [{"type": "function", "function": {"name": "a b"}}]}))
    except openai.BadRequestError as error:
        assert (error.code, error.param) == ("invalid_value", "tools"), error
    else:
        raise AssertionError("a function's name with a space was accepted")


def check_errors(client, model):
    cases = [
        (openai.NotFoundError, {"model": "no-such-model"}, "model_not_found"),
        (openai.BadRequestError, {"temperature": -1}, "invalid_value"),
        (openai.BadRequestError, {"extra_body": {"length_penalty": 2.0}}, "unsupported_field"),
    ]
    for kind, fields, code in cases:
        try:
            client.chat.completions.create(**({"model": model, "messages": QUESTION} | fields))
        except kind as error:
            assert error.code == code and error.message, error
        else:
            raise AssertionError(f"{fields} was accepted")


def main():
    client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    if sys.argv[2:] == ["tools"]:
        check_tools(client, model)
        print(f"openai {openai.__version__}: function calls: as expected")
        return
    check_models(client)
    text, usage = check_chat(client, model)
    check_stream(client, model, text, usage)
    check_logprobs(client, model)
    check_structured(client, model)
    check_completions(client, model)
    check_errors(client, model)
    print(f"openai {openai.__version__}: models, chat, streams, logprobs, structured output, completions, errors: as expected")


if __name__ == "__main__":
    main()
