#!/usr/bin/env python3
"""Makes text/tests/fixtures/chat_templates.json: small chat templates with the constructs of published
ones, and what transformers renders of them.

    DIR/bin/python scripts/fixtures_chat.py    # the environment of fixtures_env.sh

The file is committed; nothing in the build or the tests runs this. Each case has a name (whose model's
template has such constructs), the template, the messages, and what is written, or the words with which
the template refuses them. It is 4 July 2025, 09:05:07, a Friday. Last made with transformers 5.24.
"""

import copy
import datetime
import json
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

from fixtures_chat_tools import FUNCTIONS, TOOL_TEMPLATES

FILE = Path(__file__).resolve().parent.parent / "text" / "tests" / "fixtures" / "chat_templates.json"
NOW = datetime.datetime(2025, 7, 4, 9, 5, 7)

TURNS = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": " Two plus two? "},
    {"role": "assistant", "content": "<think>\nAdd.\n</think>\n\nFour."},
    {"role": "user", "content": "And <b>'three'</b> & \"é\"?"},
]
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "sum", "arguments": {"b": 1, "a": [1.5, None, True, "ü"], "deep": {"x": {}}}},
}
TOOLS = [
    {"role": "user", "content": "Sum it."},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "\nUse a tool.\n"},
    {"role": "tool", "content": "<tool_response>7</tool_response>", "tool_call_id": "call00001", "name": "sum"},
    {"role": "assistant", "content": "Seven.", "thinking": "Done."},
    {"role": "user", "content": "Thanks."},
]

# What templates are told beside the messages.
VARIABLES = [
    ("qwen3", {"enable_thinking": False}),
    ("qwen3", {"enable_thinking": True}),
    ("gpt-oss", {"reasoning_effort": "high", "model_identity": "You are 'another' one: <é>."}),
    ("gpt-oss", {"builtin_tools": ["browser"]}),
]

TEMPLATES = {
    "qwen3": r"""
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index or loop.last %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}
""",
    "gpt-oss": r"""
{#- Macros that call each other, with defaults. #}
{%- macro type_of(value, depth=0, quote=false) -%}
    {%- if value is mapping -%}
        {{- "{" -}}
        {%- for key, inner in value.items() -%}
            {{- key ~ ": " + type_of(inner, depth + 1) -}}
            {%- if not loop.last -%}{{- ", " -}}{%- endif -%}
        {%- endfor -%}
        {{- "}" -}}
    {%- elif value is iterable and value is not string -%}
        {{- "[" -}}{%- for inner in value -%}{{- type_of(inner, quote=true) -}}{%- if loop.index < value|length -%}|{%- endif -%}{%- endfor -%}{{- "]" -}}
    {%- elif value is none -%}null
    {%- elif value is boolean -%}boolean
    {%- elif value is number -%}{%- if value is integer -%}int{%- else -%}number{%- endif -%}
    {%- elif quote -%}{{- '"' + value + '"' -}}
    {%- else -%}string
    {%- endif -%}
{%- endmacro -%}
{%- macro build_system_message() -%}
    {%- if model_identity is not defined %}{%- set model_identity = "You are a model." %}{%- endif %}
    {{- model_identity + "\n" }}
    {{- "Knowledge cutoff: 2024-06\n" }}
    {{- "Current date: " + strftime_now("%Y-%m-%d") + "\n\n" }}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\n\n" }}
    {%- if builtin_tools is defined and builtin_tools is not none %}{{- "# Tools\n\n" }}{%- if "browser" in builtin_tools %}{{- "browser" }}{%- endif %}{%- endif -%}
    {{- "# Valid channels: analysis, commentary, final." }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- build_system_message() }}{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}{{- "<|start|>developer<|message|># Instructions\n\n" + developer_message + "<|end|>" }}{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and "<|channel|>analysis" in message.content %}{{- raise_exception("Pass thinking in its own field.") }}{%- endif %}
        {%- if "tool_calls" in message %}
            {%- set future = namespace(found=false) %}
            {%- for later in loop_messages[loop.index:] %}
                {%- if later.role == 'assistant' and "tool_calls" not in later %}{%- set future.found = true %}{%- endif %}
            {%- endfor %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- "later: " ~ future.found ~ "; " }}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary " + (tool_call.content_type if tool_call.content_type is defined else "json") + "<|message|>" + type_of(tool_call.arguments) + tool_call.arguments|tojson + "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}{{- "unreached" }}
        {%- else %}
            {%- if message.thinking %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("A tool's message must follow a call.") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
""",
    "gemma3": r"""
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}
""",
    "phi-4": r"""{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif 'tools' in message and message['tools'] is not none %}{{ message['tools'] }}{% endif %}{% endfor %}{{ eos_token if not add_generation_prompt else '<|im_start|>assistant<|im_sep|>' }}""",
    "mistral-small": r"""
{%- set today = strftime_now("%Y-%m-%d") %}
{%- set default_system_message = "You are a model of " + today + "." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content'] %}{%- else %}{%- set system_message = messages[0]['content'][0]['text'] %}{%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}{%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- elif tools is not none %}{{- "tools" }}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("Roles must alternate.") }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message == user_messages[-1] %}{{- "(last)" }}{%- endif %}
        {{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS][" }}
        {%- for tool_call in message.tool_calls %}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("Tool call IDs should be 9 long!") }}{%- endif %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}{{- ', "id": "' + tool_call.id[-5:] + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS]{"content": ' + content|string + '}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception('Only user, system, assistant and tool roles are supported!') }}
    {%- endif %}
{%- endfor %}
""",
    "smollm3": r"""
{%- set system_message = messages[0].content if messages[0].role == "system" else "" -%}
{%- set reasoning_mode = "/think" -%}
{%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
{%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "<|im_start|>system\n" }}{{- "Today Date: " ~ today ~ "\n" }}{{- custom + "\n\n" if custom else "" }}
{%- if xml_tools or python_tools or tools -%}{{- "### Tools\n" -}}{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}{{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}{%- endif -%}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\n" }}{%- endif -%}
""",
    "granite": r"""
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.\nToday's Date: " + strftime_now('%B %d, %Y') + "." %}
    {%- if documents %}{%- set system_message = system_message + " Use the documents." %}{%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- for message in loop_messages %}
    {%- if loop.previtem is defined and loop.previtem.role == message.role %}{{- "(again)" }}{%- endif %}
    {%- if loop.nextitem is not defined %}{{- "(end)" }}{%- endif %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- for key, value in call.function.arguments|dictsort %}{{- key }}={{ value|tojson(indent=2) }};{%- endfor %}
            {%- for key in call.function.arguments %}{{- loop.cycle("<", ">") + key }}{%- endfor %}
        {%- endfor %}
    {%- endif %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson() }}{%- endif %}{{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}
""",
    "python's spelling": r"""
{{ true }} {{ false }} {{ none }} {{ undefined_name }} {{ 1.0 }} {{ 10 / 4 }} {{ 7 // 2 }} {{ 2 ** 3 }}
{{ ["a", 'it\'s', 1, 2.5, none, true] }} {{ {"k": "v", "n": [false]} }}
{{ "yes" ~ true ~ none }} {{ [1, 2]|string }} {{ true|string }} {{ "a,b"|upper }} {{ "-" * 3 }}
{{ messages|map(attribute="role")|join(", ") }} {{ messages|map(attribute="role")|unique|list|length }}
{{ messages|rejectattr("role", "equalto", "user")|list|length }} {{ "a b  c".split() }} {{ "a-b-c".split("-", 1) }}
{{ {"b": 1, "a": "<é>"}|tojson }} {{ {"b": 1, "a": "é"}|tojson(ensure_ascii=False) }} {{ {"b": [1], "a": {}}|tojson(sort_keys=True) }}
{{ {"b": [1, 2]}|tojson(separators=(",", ":")) }} {{ {"b": [1, []], "e": {}}|tojson(indent=4) }}
{{ "x".join(["a", "b"]) }} {{ "Hello"|length }} {{ "abc"[1] }} {{ "abc"[::-1] }} {{ [3, 1, 2]|sort }} {{ "%s-%s"|format("a", 1) }}
{{ strftime_now("%A %a %d %b %B %j %H:%M:%S %I %p %y %-d %e %%") }} {{ "t" in {"t": 1} }} {{ 3 is divisibleby 3 }}
""",
    "refuses": "{{ raise_exception('Roles must ' ~ 'alternate: ' ~ messages[0].role) }}",
}


def as_expected(name, messages):
    """The messages as the template with this name expects them: DeepSeek's joins arguments, Kimi's writes ids."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for index, call in enumerate(message.get("tool_calls", [])):
            if name.startswith("deepseek v3.1"):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            if name.startswith("kimi"):
                call["id"] = f"functions.{call['function']['name']}:{index}"
        if name.startswith("kimi") and "tool_call_id" in message:
            message["tool_call_id"] = "functions.sum:0"
    return messages


def render(template, messages, tools, variables):
    compiled = _compile_jinja_template(template)
    return compiled.render(
        **variables,
        messages=messages,
        tools=tools,
        documents=None,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        strftime_now=NOW.strftime,
    )


def main():
    cases = []
    asked = [(name, template, None, {}) for name, template in TEMPLATES.items()]
    asked += [(name, template, tools, {}) for name, template in TOOL_TEMPLATES.items() for tools in [FUNCTIONS, None]]
    asked += [(name, TEMPLATES[name], None, variables) for name, variables in VARIABLES]
    for name, template, tools, variables in asked:
        for messages in [TURNS, TOOLS]:
            case = {"name": name, "template": template, "messages": messages}
            if tools is not None:
                case["tools"] = tools
            if variables:
                case["variables"] = variables
            try:
                case["expected"] = render(template, as_expected(name, messages), tools, variables)
            except jinja2.exceptions.TemplateError as error:
                case["refusal"] = str(error)
            cases.append(case)
    FILE.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
    print(f"{FILE}: {len(cases)} cases, {sum('refusal' in case for case in cases)} refused")


if __name__ == "__main__":
    main()
