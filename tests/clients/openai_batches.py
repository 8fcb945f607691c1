#!/usr/bin/env python3
"""The `openai` package's Files and Batch APIs against a served model: tests/clients/openai_batches.py URL

The server must keep batches (`--store-batches DIR`). Each check asks as an application would and
compares what the client's own types hold; the answers are those of the same requests outside of a
batch. Any difference ends with code 1.
"""

import io
import json
import sys
import time

import openai

CITIES = ["France", "Spain", "Italy", "Norway", "Japan"]
LIMITS = {"temperature": 0, "seed": 1, "max_tokens": 12}
DEADLINE = 120


def chat_body(model, country):
    question = f"What is the capital of {country}?"
    return {"model": model, "messages": [{"role": "user", "content": question}], **LIMITS}


def chat_line(model, number, country):
    body = chat_body(model, country)
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def upload(client, lines, name="batch.jsonl"):
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return client.files.create(file=(name, io.BytesIO(content)), purpose="batch"), content


def wait(client, batch):
    until = time.monotonic() + DEADLINE
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < until, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def check_files(client, model):
    file, content = upload(client, [chat_line(model, 0, "France")], "caf\u00e9.jsonl")
    assert file.object == "file" and file.purpose == "batch" and file.status == "processed", file
    assert file.bytes == len(content) and file.filename == "caf\u00e9.jsonl", file
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    with client.files.with_streaming_response.content(file.id) as response:
        assert b"".join(response.iter_bytes()) == content
    assert client.files.wait_for_processing(file.id).id == file.id
    policy = {"anchor": "created_at", "seconds": 3600}
    short = client.files.create(file=("a.jsonl", content), purpose="batch", expires_after=policy)
    assert short.expires_at == short.created_at + 3600 and file.expires_at is None, short
    assert client.files.delete(short.id).deleted
    more = [upload(client, [chat_line(model, 0, country)])[0].id for country in CITIES]
    listed = [listed.id for listed in client.files.list(limit=2, purpose="batch")]
    assert listed[:6] == [*reversed(more), file.id], listed
    assert [listed.id for listed in client.files.list(order="asc")][-5:] == more
    for file_id in [file.id, *more]:
        assert client.files.delete(file_id).deleted
    try:
        client.files.retrieve(file.id)
        raise AssertionError("a deleted file is found")
    except openai.NotFoundError as error:
        assert "No such File object" in error.body["message"], error.body


def check_batch(client, model):
    lines = [chat_line(model, number, country) for number, country in enumerate(CITIES)]
    lines.append(chat_line("another-model", 99, "Oz"))
    file, _ = upload(client, lines)
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"description": "nightly evaluation"},
    )
    assert batch.object == "batch" and batch.status == "validating", batch
    assert batch.metadata == {"description": "nightly evaluation"} and batch.expires_at == batch.created_at + 86400
    done = wait(client, batch)
    assert done.status == "completed" and done.errors is None, done
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (len(lines), len(CITIES), 1), counts
    assert done.in_progress_at and done.finalizing_at and done.completed_at, done
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens > 0, done.usage
    output = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in output] == [f"request-{number}" for number in range(len(CITIES))], output
    for line, country in zip(output, CITIES):
        assert line["response"]["status_code"] == 200 and line["error"] is None, line
        answer = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
        alone = client.chat.completions.create(**chat_body(model, country))
        assert answer.choices[0].message.content == alone.choices[0].message.content, (answer, alone)
        assert answer.usage.completion_tokens == alone.usage.completion_tokens, (answer, alone)
    (error,) = [json.loads(line) for line in client.files.content(done.error_file_id).text.splitlines()]
    assert error["custom_id"] == "request-99" and error["error"]["code"] == "model_not_found", error
    assert client.files.retrieve(done.output_file_id).purpose == "batch_output"
    return file, done


def check_embeddings(client, model):
    bodies = [{"model": model, "input": country, "encoding_format": "float"} for country in CITIES]
    lines = [
        {"custom_id": f"text-{number}", "method": "POST", "url": "/v1/embeddings", "body": body}
        for number, body in enumerate(bodies)
    ]
    file, _ = upload(client, lines)
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    done = wait(client, batch)
    assert done.status == "completed" and done.request_counts.completed == len(CITIES), done
    output = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    for line, body in zip(output, bodies):
        answer = openai.types.CreateEmbeddingResponse.model_validate(line["response"]["body"])
        assert answer.data[0].embedding == client.embeddings.create(**body).data[0].embedding, line["custom_id"]


def check_lists(client, file, first):
    create = lambda: client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    batches = [create() for _ in range(3)]
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:4] == [*(batch.id for batch in reversed(batches)), first.id], listed
    assert [wait(client, batch).status for batch in batches] == ["completed"] * 3


def check_cancel(client, model):
    lines = [chat_line(model, number, country) for number, country in enumerate(CITIES * 100)]
    for line in lines:
        line["body"].update(max_tokens=200, ignore_eos=True)
    file, _ = upload(client, lines)
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    try:
        client.files.delete(file.id)
        raise AssertionError("a file in use is deleted")
    except openai.ConflictError as error:
        assert "still processing" in error.body["message"], error.body
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled") and cancelled.cancelling_at, cancelled
    done = wait(client, cancelled)
    assert done.status == "cancelled" and done.cancelled_at, done
    assert done.request_counts.completed < len(lines), done
    assert client.files.delete(file.id).deleted


def check_errors(client, file):
    wrong = [
        dict(input_file_id="file-" + "0" * 32, endpoint="/v1/completions", completion_window="24h"),
        dict(input_file_id=file.id, endpoint="/v1/images/generations", completion_window="24h"),
        dict(input_file_id=file.id, endpoint="/v1/completions", completion_window="soon"),
        dict(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"a": "b" * 513}),
    ]
    for fields in wrong:
        try:
            client.batches.create(**fields)
            raise AssertionError(f"{fields} is accepted")
        except openai.BadRequestError as error:
            assert error.code and error.body["message"] and error.body["param"] in fields, error.body
    try:
        client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
        raise AssertionError("files for other purposes are accepted")
    except openai.BadRequestError as error:
        assert error.body["param"] == "purpose", error.body
    try:
        client.batches.retrieve("batch_0")
        raise AssertionError("a batch that does not exist is found")
    except openai.NotFoundError as error:
        assert "No batch found" in error.body["message"], error.body


def main():
    url = sys.argv[1]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    check_files(client, model)
    file, done = check_batch(client, model)
    check_lists(client, file, done)
    check_embeddings(client, model)
    check_cancel(client, model)
    check_errors(client, file)
    print("openai batches: as expected")


main()
