#!/usr/bin/env python3
"""LangChain's models of `langchain-openai` against a served model: tests/clients/langchain_models.py URL [tools]

Chat completions, responses and embeddings, as an application would request them. With `tools`, the
model's chat template must describe functions. Any difference ends with code 1.
"""

import asyncio
import sys
from typing import Literal

import openai
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

# One loop: the models keep connections of it.
LOOP = asyncio.new_event_loop()
MESSAGES = [SystemMessage("Be brief."), HumanMessage("Name the capital of France.")]


class City(BaseModel):
    """A city."""

    # No field in which a small model may continue for ever, and none that it adds.
    model_config = ConfigDict(extra="forbid")
    name: Literal["Paris", "Rome"]
    is_capital: bool


@tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Returns the weather of a city."""
    return f"4 degrees and rain in {city}"


def check_text(llm):
    answer = llm.invoke(MESSAGES)
    assert answer.text.strip(), answer
    usage = answer.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0, usage
    chunks = list(llm.stream(MESSAGES))
    assert "".join(chunk.text for chunk in chunks) == answer.text, (chunks, answer)
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata["output_tokens"] == usage["output_tokens"], whole
    chain = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "Name the capital of {country}.")]) | llm
    countries = [{"country": country} for country in ("France", "Spain", "Italy")]
    found = chain.batch(countries)
    assert len(found) == 3 and found[0].text == answer.text, found
    assert LOOP.run_until_complete(llm.ainvoke(MESSAGES)).text == answer.text


def check_structured(llm):
    for method in ("json_schema", "json_mode"):
        parser = llm.with_structured_output(City, method=method, include_raw=True)
        found = parser.invoke("Describe Paris as JSON with the keys name and is_capital.")
        if method == "json_schema":
            assert isinstance(found["parsed"], City), found
        else:
            assert found["raw"].text.lstrip().startswith("{"), found


def check_logprobs(llm):
    answer = llm.bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    content = answer.response_metadata["logprobs"]["content"]
    assert content and all(len(token["top_logprobs"]) == 2 for token in content), answer


def check_completions(model, arguments):
    llm = OpenAI(model=model, temperature=0, max_tokens=8, **arguments)
    whole = llm.invoke("One, two, three,")
    assert "".join(llm.stream("One, two, three,")) == whole, whole


def check_embeddings(model, arguments):
    # By default the package counts tokens with a file that it fetches, and only knows OpenAI's own models.
    embeddings = OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **arguments)
    vectors = embeddings.embed_documents(["a kernel", "a nut"])
    assert len(vectors) == 2 and len(vectors[0]) == len(vectors[1]) > 0
    assert all(abs(sum(element**2 for element in vector) - 1) < 1e-5 for vector in vectors)
    assert embeddings.embed_query("a nut") == vectors[1]


def check_errors(model, arguments):
    try:
        ChatOpenAI(model=model, temperature=-1, **arguments).invoke(MESSAGES)
        raise AssertionError("a negative temperature is accepted")
    except openai.BadRequestError as error:
        assert error.param == "temperature", error


def check_tools(llm):
    forced = llm.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    question = HumanMessage("What is the weather in Oslo?")
    answer = forced.invoke([question])
    call = answer.tool_calls[0]
    assert call["name"] == "get_weather" and call["args"]["city"] in ("Oslo", "Rome"), answer
    whole = None
    for chunk in forced.stream([question]):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [call["args"] for call in answer.tool_calls], whole
    results = [get_weather.invoke(call) for call in answer.tool_calls]
    assert isinstance(results[0], ToolMessage) and "rain" in results[0].content, results
    followed = llm.bind_tools([get_weather], tool_choice="none").invoke([question, answer, *results])
    assert followed.text.strip() and not followed.tool_calls, followed
    parsed = llm.with_structured_output(City, method="function_calling").invoke("Describe Paris.")
    assert isinstance(parsed, City), parsed
    # An answer of the format, or a call.
    both = llm.with_structured_output(
        City, tools=[get_weather], strict=True, include_raw=True, parallel_tool_calls=False
    )
    found = both.invoke("Describe Paris as JSON.")
    assert isinstance(found["parsed"], City) or found["raw"].tool_calls, found


def check_agent(llm):
    described = create_agent(llm, tools=[], response_format=ProviderStrategy(City), system_prompt="Be brief.")
    found = described.invoke({"messages": [HumanMessage("Describe Paris.")]})
    assert isinstance(found["structured_response"], City), found
    # A tool that ends the loop: a small model calls again and again.
    direct = tool(return_direct=True)(get_weather.func)
    agent = create_agent(llm, tools=[direct], system_prompt="Use the tool.")
    *_, last = agent.invoke({"messages": [HumanMessage("What is the weather in Oslo?")]})["messages"]
    assert "rain" in last.content if isinstance(last, ToolMessage) else last.text.strip(), last


def main():
    url, modes = sys.argv[1], sys.argv[2:]
    arguments = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    model = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
    for responses in (False, True):
        llm = ChatOpenAI(
            model=model, temperature=0, max_tokens=100, stream_usage=True, use_responses_api=responses, **arguments
        )
        if "tools" in modes:
            check_tools(llm)
            check_agent(llm)
            continue
        check_text(llm)
        check_structured(llm)
        if not responses:
            check_logprobs(llm)
    if "tools" not in modes:
        check_completions(model, arguments)
        check_embeddings(model, arguments)
        check_errors(model, arguments)
    print("langchain: as expected")


main()
