#!/usr/bin/env python3
"""`instructor` against a served model: tests/clients/instructor_models.py URL [tools]

Typed answers by response formats, whole and in parts, and with `tools`, where the model's chat template
must describe functions, by function calls. Any difference ends with code 1.
"""

import asyncio
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field

MESSAGES = [{"role": "user", "content": "Describe Paris as JSON."}]
GREEDY = {"temperature": 0, "max_tokens": 120, "max_retries": 0}


class City(BaseModel):
    """A city."""

    # No field in which a small model may continue for ever, and none that it adds.
    model_config = ConfigDict(extra="forbid")
    name: Literal["Paris", "Rome"]
    is_capital: bool


class Cities(BaseModel):
    model_config = ConfigDict(extra="forbid")
    cities: list[City] = Field(min_length=2, max_length=2)


def check_mode(url, model, mode):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode)
    create = client.chat.completions.create
    city = create(model=model, messages=MESSAGES, response_model=City, **GREEDY)
    assert isinstance(city, City), city
    cities = create(model=model, messages=MESSAGES, response_model=Cities, **GREEDY)
    assert len(cities.cities) == 2, cities
    found, completion = client.chat.completions.create_with_completion(
        model=model, messages=MESSAGES, response_model=City, **GREEDY
    )
    assert found.model_dump() == city.model_dump() and completion.usage.completion_tokens > 0, completion
    partial = client.chat.completions.create_partial(model=model, messages=MESSAGES, response_model=City, **GREEDY)
    *_, last = partial
    assert (last.name, last.is_capital) == (city.name, city.is_capital), (last, city)
    return city


async def check_async(url, model, mode, city):
    client = instructor.from_openai(
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode
    )
    create = client.chat.completions.create
    requests = [create(model=model, messages=MESSAGES, response_model=City, **GREEDY) for _ in range(4)]
    assert [found.model_dump() for found in await asyncio.gather(*requests)] == [city.model_dump()] * 4


def main():
    url, modes = sys.argv[1], sys.argv[2:]
    model = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
    mode = instructor.Mode.TOOLS if "tools" in modes else instructor.Mode.JSON_SCHEMA
    city = check_mode(url, model, mode)
    asyncio.run(check_async(url, model, mode, city))
    print("instructor: as expected")


main()
