#!/usr/bin/env python3
"""The `openai` package's embeddings against a served model: tests/clients/openai_embeddings.py URL

The client asks for base64 unless told otherwise, and decodes it. Any difference ends with code 1.
"""

import sys

import openai

TEXTS = ["a kernel", "the core of an operating system", "a nut"]


def main():
    client = openai.OpenAI(base_url=sys.argv[1].rstrip("/") + "/v1", api_key="none")
    model = client.models.list().data[0].id
    found = client.embeddings.create(model=model, input=TEXTS)
    assert [item.index for item in found.data] == [0, 1, 2], found
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0, found.usage
    floats = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    for item, other in zip(found.data, floats.data):
        vector = list(item.embedding)
        assert abs(sum(element * element for element in vector) - 1) < 1e-5, vector
        assert max(abs(a - b) for a, b in zip(vector, other.embedding)) < 1e-7
    alone = client.embeddings.create(model=model, input=TEXTS[1])
    assert list(alone.data[0].embedding) == list(found.data[1].embedding)
    try:
        client.embeddings.create(model=model, input="")
    except openai.BadRequestError as error:
        assert error.param == "input", error
    else:
        raise AssertionError("an empty text was embedded")
    print("embeddings as expected")


if __name__ == "__main__":
    main()
