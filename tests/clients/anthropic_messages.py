#!/usr/bin/env python3
"""The `anthropic` package against a served model: tests/clients/anthropic_messages.py URL [tools]

Each check asks as an application would and compares what the client's own types hold. With `tools`,
the model's chat template must describe functions. Any difference ends with code 1.
"""

import sys

import anthropic

QUESTION = [{"role": "user", "content": "Name the capital of France, and say one thing about it."}]
# Recent versions of the package have no parameter for the temperature.
GREEDY = {"extra_body": {"temperature": 0}, "max_tokens": 24}
WEATHER = {
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def check_message(client, model):
    message = client.messages.create(model=model, messages=QUESTION, **GREEDY)
    assert message.type == "message" and message.role == "assistant", message
    assert message.content[-1].type == "text" and message.content[-1].text.strip(), message
    assert message.stop_reason in ("end_turn", "max_tokens"), message
    assert 0 < message.usage.output_tokens <= GREEDY["max_tokens"], message.usage
    return message


def check_stream(client, model, whole):
    with client.messages.stream(model=model, messages=QUESTION, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[-1].text == final.content[-1].text, (text, whole)
    assert final.stop_reason == whole.stop_reason, final
    assert final.usage.output_tokens == whole.usage.output_tokens, final.usage
    prompt = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert prompt(final.usage) == prompt(whole.usage), (final.usage, whole.usage)
    kinds = [event.type for event in client.messages.create(model=model, messages=QUESTION, stream=True, **GREEDY)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds


def check_count(client, model, whole):
    count = client.messages.count_tokens(model=model, messages=QUESTION)
    assert count.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, count


def check_system_and_stop(client, model):
    system = [{"type": "text", "text": "Count.", "cache_control": {"type": "ephemeral"}}]
    message = client.messages.create(
        model=model,
        system=system,
        messages=[{"role": "user", "content": "Count from 1 to 9."}, {"role": "assistant", "content": "1, 2, 3, 4,"}],
        stop_sequences=["7", ","],
        metadata={"user_id": "me"},
        **GREEDY,
    )
    if message.stop_reason == "stop_sequence":
        assert message.stop_sequence in ("7", ","), message
        assert all(message.stop_sequence not in block.text for block in message.content), message


def check_format(client, model):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(
        model=model, messages=QUESTION, output_config=config, **(GREEDY | {"max_tokens": 60})
    )
    assert message.content[0].text.replace(" ", "").startswith('{"name":"'), message


def check_tools(client, model):
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}):
        message = client.messages.create(
            model=model, messages=question, tools=[WEATHER], tool_choice=choice, **(GREEDY | {"max_tokens": 120})
        )
        assert message.stop_reason == "tool_use", message
        use = message.content[-1]
        assert use.type == "tool_use" and use.input["city"] in ("Oslo", "Rome"), message
    with client.messages.stream(
        model=model, messages=question, tools=[WEATHER], tool_choice=choice, **(GREEDY | {"max_tokens": 120})
    ) as stream:
        streamed = stream.get_final_message().content[-1]
    assert (streamed.name, streamed.input) == (use.name, use.input), streamed
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "4 degrees and rain."}
    conversation = question + [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(model=model, messages=conversation, tools=[WEATHER], **GREEDY)
    assert answer.content, answer
    counted = client.messages.count_tokens(model=model, messages=conversation, tools=[WEATHER])
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, counted


def check_tool_runner(client, model):
    from anthropic import beta_tool

    calls = []

    @beta_tool
    def get_time(city: str) -> str:
        """Returns the time of a city.

        Args:
            city: Name of the city.
        """
        calls.append(city)
        return "12:00"

    runner = client.beta.messages.tool_runner(
        model=model,
        tools=[get_time],
        messages=[{"role": "user", "content": "What is the time in Oslo?"}],
        max_iterations=2,
        **GREEDY,
    )
    assert list(runner), "no message"


def check_errors(client, model):
    try:
        client.messages.create(model="no-such-model", messages=QUESTION, **GREEDY)
        raise AssertionError("another model is accepted")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}
    for wrong in ({"messages": []}, {"messages": [{"role": "user", "content": [image]}]}):
        try:
            client.messages.create(model=model, max_tokens=1, **wrong)
            raise AssertionError(f"{wrong} is accepted")
        except anthropic.BadRequestError as error:
            assert error.body["error"]["type"] == "invalid_request_error", error.body


def main():
    url, tools = sys.argv[1], "tools" in sys.argv[2:]
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    model = client.get("/v1/models", cast_to=object)["data"][0]["id"]
    if tools:
        check_tools(client, model)
        check_tool_runner(client, model)
    else:
        whole = check_message(client, model)
        check_stream(client, model, whole)
        check_count(client, model, whole)
        check_system_and_stop(client, model)
        check_format(client, model)
        check_errors(client, model)
    print("anthropic: as expected")


main()
