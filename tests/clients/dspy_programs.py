#!/usr/bin/env python3
"""DSPy against a served model: tests/clients/dspy_programs.py URL [tools]

Its language model, also of texts, and a program whose answers follow a response format: alone, streamed
and as a batch. With `tools`, where the model's chat template must describe functions, a program that
chooses calls. Any difference ends with code 1.
"""

import asyncio
import os
import sys
from typing import Literal

# Its table of prices is in the package, too.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
import openai


class Describe(dspy.Signature):
    """Describes a city."""

    question: str = dspy.InputField()
    # No field in which a small model may continue for ever.
    name: Literal["Paris", "Rome"] = dspy.OutputField()
    is_capital: bool = dspy.OutputField()


class ServedModel(dspy.LM):
    """The package only knows of its own list of models what they support."""

    supports_response_schema = True
    supports_function_calling = True

    @property
    def supported_params(self):
        return super().supported_params | {"response_format", "tools", "tool_choice"}


def check_language_model(lm):
    (whole,) = lm("Name the capital of France.")
    assert whole.strip(), whole
    (again,) = lm("Name the capital of France.")
    assert again == whole, (again, whole)
    usage = lm.history[-1]["usage"]
    assert usage["completion_tokens"] > 0, usage


def check_program(lm):
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter(), track_usage=True):
        found = dspy.Predict(Describe)(question="Which city is the capital of France?")
        assert found.name in ("Paris", "Rome") and isinstance(found.is_capital, bool), found
        assert found.get_lm_usage(), found
        batch = [dspy.Example(question=f"Question {number}?").with_inputs("question") for number in range(3)]
        assert [answer.name in ("Paris", "Rome") for answer in dspy.Predict(Describe).batch(batch)] == [True] * 3


async def check_stream(lm):
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        program = dspy.streamify(dspy.Predict(Describe))
        question = "Which city is the capital of France?"
        parts = [part async for part in program(question=question)]
        assert len(parts) > 2 and isinstance(parts[-1], dspy.Prediction), parts
        whole = dspy.Predict(Describe)(question=question)
        assert (parts[-1].name, parts[-1].is_capital) == (whole.name, whole.is_capital), (parts[-1], whole)


class ChooseCalls(dspy.Signature):
    """Chooses the functions that answer a question."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    outputs: dspy.ToolCalls = dspy.OutputField()


def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """Returns the weather of a city."""
    return "4 degrees and rain"


def check_tools(lm):
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter(use_native_function_calling=True)):
        found = dspy.Predict(ChooseCalls)(question="What is the weather in Oslo?", tools=[dspy.Tool(get_weather)])
        calls = found.outputs.tool_calls
        assert calls and all(call.name == "get_weather" and call.args["city"] in ("Oslo", "Rome") for call in calls), found


def main():
    url, modes = sys.argv[1], sys.argv[2:]
    model = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    arguments = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0, "num_retries": 0}
    for provider in ("openai", "hosted_vllm"):
        lm = ServedModel(f"{provider}/{model}", max_tokens=200, **arguments)
        if "tools" in modes:
            check_tools(lm.copy(tool_choice="required"))
            continue
        check_language_model(lm)
        check_program(lm)
        asyncio.run(check_stream(lm))
    if "tools" in modes:
        print("dspy: as expected")
        return
    text = dspy.LM(f"text-completion-openai/{model}", model_type="text", max_tokens=16, **arguments)
    assert text("One, two, three,")[0].strip(), text.history[-1]
    print("dspy: as expected")


main()
