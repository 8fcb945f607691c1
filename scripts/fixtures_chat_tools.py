"""Functions, and templates that tell of them, for fixtures_chat.py."""

FUNCTIONS = [
    {
        "type": "function",
        "function": {
            "name": "sum",
            "description": "Adds 'numbers' & more: <é>.",
            "parameters": {
                "type": "object",
                "properties": {"b": {"type": "integer"}, "a": {"type": "array", "items": {}}},
                "required": ["b"],
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "now"}},
]

# Templates that tell of functions, in the ways of writing calls that are known.
TOOL_TEMPLATES = {
    "qwen coder with tools": r"""
{% macro others(fields, known) %}
    {%- if fields is mapping %}
        {%- for key in fields if key not in known %}
            {%- if fields[key] is mapping or (fields[key] is sequence and fields[key] is not string) %}
                {{- '\n<' ~ key ~ '>' ~ (fields[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{- '\n<' ~ key ~ '>' ~ (fields[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if system_message is defined %}{{- "<|im_start|>system\n" + system_message }}
{%- elif tools is iterable and tools | length > 0 %}{{- "<|im_start|>system\nYou may call functions." }}
{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "\n\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
        {{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}{{- '\n<description>' ~ (tool.description | trim) ~ '</description>' }}{%- endif %}
        {{- '\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for name, fields in tool.parameters.properties|items %}
                {{- '\n<parameter>\n<name>' ~ name ~ '</name>' }}
                {%- if fields.type is defined %}{{- '\n<type>' ~ (fields.type | string) ~ '</type>' }}{%- endif %}
                {{- others(fields, ['name', 'type', 'description']) }}
                {{- '\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- others(tool.parameters, ['type', 'properties']) }}
        {{- '\n</parameters>' }}{{- others(tool, ['type', 'name', 'description', 'parameters']) }}{{- '\n</function>' }}
    {%- endfor %}
    {{- '\n</tools>\n\nWrite a call as\n<tool_call>\n<function=its_name>\n<parameter=its_parameter>\nvalue\n</parameter>\n</function>\n</tool_call>' }}
{%- endif %}
{%- if system_message is defined or (tools is iterable and tools | length > 0) %}{{- '<|im_end|>\n' }}{%- endif %}
{%- for message in loop_messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}{{- '\n' + message.content | trim + '\n' }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for name, value in tool_call.arguments|items %}
                    {{- '<parameter=' + name + '>\n' }}
                    {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                    {{- value }}
                    {{- '\n</parameter>\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>\n' }}
        {%- elif loop.last %}{{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""",
    "hermes with tools": r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Functions\n\nThese may be called:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n\nWrite each call as\n<tool_call>\n{"name": <its name>, "arguments": <an object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""",
    "llama with tools": r"""
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{%- if tools is not none %}
    {{- 'Answer with a call, {"name": its name, "parameters": its arguments}.\n\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("One call at a time!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
""",
    "mistral with tools": r"""
{{- bos_token }}
{%- set user_messages = messages | selectattr("role", "equalto", "user") | list %}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("Ids are nine long!") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
""",
    "mistral with named calls": r"""
{{- bos_token }}
{%- if tools is defined and tools is not none and tools|length > 0 %}{{- '[AVAILABLE_TOOLS]' + (tools|tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {%- if message['tool_calls'] is defined and message['tool_calls']|length > 0 %}
            {%- for tool_call in message['tool_calls'] %}
                {%- set arguments = tool_call['function']['arguments'] %}
                {%- if arguments is not string %}{%- set arguments = arguments|tojson|safe %}{%- elif arguments == '' %}{%- set arguments = '{}' %}{%- endif %}
                {{- '[TOOL_CALLS]' + tool_call['function']['name'] + '[ARGS]' + arguments }}
            {%- endfor %}
        {%- else %}{{- message['content'] }}
        {%- endif %}
        {{- eos_token }}
    {%- elif message['role'] == 'tool' %}{{- '[TOOL_RESULTS]' + message['content']|string + '[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
""",
    "glm with tools": r"""
[gMASK]<sop>
{%- if tools -%}
<|system|>
These functions may be called:
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>

A call is written as
<tool_call>{its name}
<arg_key>{a name}</arg_key>
<arg_value>{a value}</arg_value>
</tool_call>{%- endif -%}
{%- macro text_of(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ text_of(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not text_of(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set thought = '' %}
{%- set content = text_of(m.content) %}
{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}
{%- elif '</think>' in content %}
    {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user and thought -%}{{ '\n<think>' + thought.strip() +  '</think>'}}{%- else -%}{{ '\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\n<tool_call>' + tc.name }}
{% set _args = tc.arguments or {} %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<tool_response>\n' }}{{- m.content }}{{- '\n</tool_response>' }}
{%- elif m.role == 'system' -%}
<|system|>
{{ text_of(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
""",
    "minimax with tools": r"""
{%- set begin = '<minimax:tool_call>' -%}
{%- set end = '</minimax:tool_call>' -%}
{%- macro declare(list) -%}
{%- for tool in list -%}
<tool>{{ tool.function | tojson(ensure_ascii=False) }}</tool>
{% endfor -%}
{%- endmacro -%}
{%- set system = none -%}
{%- set turns = messages -%}
{%- if messages and messages[0].role == "system" -%}{%- set system = messages[0] -%}{%- set turns = messages[1:] -%}{%- endif -%}
{%- set ns = namespace(last_user=-1) %}
{% for m in turns %}{%- if m.role == 'user' %}{% set ns.last_user = loop.index0 -%}{%- endif %}{%- endfor %}
{{- ']~!b[' ~ ']~b]system' ~ '\n' }}{{- system.content if system and system.content else 'You help.' }}
{%- if tools -%}
{{- '\n\n' ~ 'Functions:' ~ '\n' ~ '<tools>' ~ '\n' }}{{- declare(tools) }}{{- '</tools>' ~ '\n\n' }}
{{- 'Calls:' ~ '\n' ~ begin }}
<invoke name="its-name">
<parameter name="a-name">a value</parameter>
</invoke>
{{- '\n' ~ end }}
{%- endif -%}
{{- '[e~[\n' }}
{%- set called = namespace(name=none) -%}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {{- ']~b]ai' ~ '\n' }}
        {%- set thought = '' %}
        {%- set content = message.content %}
        {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].strip('\n').split('<think>')[-1].strip('\n') %}
            {%- set content = content.split('</think>')[-1].strip('\n') %}
        {%- endif %}
        {%- if thought and loop.index0 > ns.last_user -%}{{- '<think>' ~ '\n' ~ thought ~ '\n' ~ '</think>' ~ '\n\n' }}{%- endif -%}
        {%- if content -%}{{- content }}{%- endif -%}
        {%- if message.tool_calls -%}
            {{- '\n' ~ begin ~ '\n' }}
            {%- for tool_call in message.tool_calls -%}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<invoke name="' + tool_call.name + '">' }}
                {% set _args = tool_call.arguments %}
                {%- for k, v in _args.items() %}
                {{- '<parameter name="' + k + '">' }}{{- v | tojson(ensure_ascii=False) if v is not string else v }}{{- '</parameter>' }}
                {% endfor %}
                {{- '</invoke>' ~ '\n' }}
            {%- endfor -%}
            {{- end }}
            {%- set called.name = message.tool_calls[-1].name -%}
        {%- else -%}{%- set called.name = none -%}
        {%- endif -%}
        {{- '[e~[' ~ '\n' }}
    {%- elif message.role == 'tool' -%}
        {%- if called.name is none -%}{{- raise_exception("A result of no call!") }}{%- endif -%}
        {%- if loop.first or (turns[loop.index0 - 1].role != 'tool') -%}{{- ']~b]tool' }}{%- endif -%}
        {{- '\n<response>' }}{{- message.content }}{{- '</response>' }}
        {%- if loop.last or (turns[loop.index0 + 1].role != 'tool') -%}{{- '[e~[\n' -}}{%- endif -%}
    {%- elif message.role == 'user' -%}{{- ']~b]user' ~ '\n' }}{{- message.content }}{{- '[e~[' ~ '\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- ']~b]ai' ~ '\n' ~ '<think>' ~ '\n' }}{%- endif -%}
""",
    "deepseek v3 with tools": r"""
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_last_user=false) %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}
{{ bos_token }}{{ ns.system_prompt }}
{%- if tools %}
    {{"\n\nFunctions:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{"\n</tools>\n\n"}}
    {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>its name\n```json\nits arguments\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"}}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.is_tool = false -%}{%- set ns.is_last_user = true -%}
        {{'<｜User｜>' + message['content'] + '<｜Assistant｜>'}}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
        {%- set ns.is_last_user = false -%}{%- set ns.is_first = false %}{%- set ns.is_tool = false -%}{%- set ns.is_output_first = true %}
        {%- for tool in message['tool_calls'] %}
            {%- if not ns.is_first %}
                {%- if message['content'] is none %}{{'<｜tool▁calls▁begin｜>'}}{%- else %}{{message['content'] + '<｜tool▁calls▁begin｜>'}}{%- endif %}
                {%- set ns.is_first = true -%}
            {%- else %}{{'\n'}}
            {%- endif %}
            {{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments']|tojson + '\n' + '```' + '<｜tool▁call▁end｜>'}}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}
    {%- endif %}
    {%- if message['role'] == 'assistant' and (message['tool_calls'] is not defined or message['tool_calls'] is none) %}
        {%- set ns.is_last_user = false -%}
        {%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}
        {%- else %}{{message['content'] + '<｜end▁of▁sentence｜>'}}
        {%- endif %}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {%- set ns.is_last_user = false -%}{%- set ns.is_tool = true -%}
        {%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- set ns.is_output_first = false %}
        {%- else %}{{'\n<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}
        {%- endif %}
    {%- endif %}
{%- endfor -%}
{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}
{% if add_generation_prompt and not ns.is_last_user and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}
""",
    "deepseek v3.1 with tools": r"""
{%- if not thinking is defined -%}
  {%- if enable_thinking is defined -%}{%- set thinking = enable_thinking -%}{%- else -%}{%- set thinking = false -%}{%- endif -%}
{%- endif -%}
{%- set ns = namespace(is_first=false, is_tool=false, system_prompt='', is_last_user=false) -%}
{%- for message in messages -%}{%- if message['role'] == 'system' -%}{%- set ns.system_prompt = ns.system_prompt + message['content'] -%}{%- endif -%}{%- endfor -%}
{%- if tools is defined and tools is not none -%}
  {%- set list = namespace(text='Functions:\n') -%}
  {%- for tool in tools -%}{%- set list.text = list.text + (tool.function | tojson) + '\n' -%}{%- endfor -%}
  {%- set ns.system_prompt = ns.system_prompt + '\n\n' + list.text -%}
{%- endif -%}
{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}{%- set ns.is_tool = false -%}{%- set ns.is_last_user = true -%}{{'<｜User｜>' + message['content']}}{%- endif -%}
  {%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none -%}
    {%- if ns.is_last_user -%}{{'<｜Assistant｜></think>'}}{%- endif -%}
    {%- set ns.is_last_user = false -%}{%- set ns.is_first = false -%}{%- set ns.is_tool = false -%}
    {%- for tool in message['tool_calls'] -%}
      {%- if not ns.is_first -%}
        {%- if message['content'] is none -%}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>'}}
        {%- else -%}{{message['content'] + '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>'}}
        {%- endif -%}
        {%- set ns.is_first = true -%}
      {%- else -%}{{'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜>'}}
      {%- endif -%}
    {%- endfor -%}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}
  {%- endif -%}
  {%- if message['role'] == 'assistant' and (message['tool_calls'] is not defined or message['tool_calls'] is none) -%}
    {%- if ns.is_last_user -%}{{'<｜Assistant｜>'}}{%- if message['prefix'] is defined and message['prefix'] and thinking -%}{{'<think>'}}{%- else -%}{{'</think>'}}{%- endif -%}{%- endif -%}
    {%- set ns.is_last_user = false -%}
    {%- if ns.is_tool -%}{{message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}
    {%- else -%}
      {%- set content = message['content'] -%}
      {%- if '</think>' in content -%}{%- set content = content.split('</think>', 1)[1] -%}{%- endif -%}{{content + '<｜end▁of▁sentence｜>'}}
    {%- endif -%}
  {%- endif -%}
  {%- if message['role'] == 'tool' -%}{%- set ns.is_last_user = false -%}{%- set ns.is_tool = true -%}{{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.is_last_user and not ns.is_tool -%}{{'<｜Assistant｜>'}}{%- if not thinking -%}{{'</think>'}}{%- else -%}{{'<think>'}}{%- endif -%}{%- endif %}
""",
    "kimi with tools": r"""
{%- macro content_of(msg) -%}
    {%- set c = msg.get('content') -%}
    {%- if c is string -%}{{ c }}{%- elif c is not none -%}{% for content in c -%}{{ content['text'] }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{% macro role_of(message) -%}
  {%- set role_name =  message.get('name') or  message['role'] -%}
  {%- if message['role'] == 'user' -%}<|im_user|>{{role_name}}<|im_middle|>
  {%- elif message['role'] == 'assistant' -%}<|im_assistant|>{{role_name}}<|im_middle|>
  {%- else -%}<|im_system|>{{role_name}}<|im_middle|>
  {%- endif -%}
{%- endmacro -%}
{%- macro calls_of(message) -%}
  <|tool_calls_section_begin|>
  {%- for tool_call in message['tool_calls'] -%}
    {%- set formatted_id = tool_call['id'] -%}
    <|tool_call_begin|>{{ formatted_id }}<|tool_call_argument_begin|>{% if tool_call['function']['arguments'] is string %}{{ tool_call['function']['arguments'] }}{% else %}{{ tool_call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>
  {%- endfor -%}
  <|tool_calls_section_end|>
{%- endmacro -%}
{%- set ns = namespace(last_answer=-1) -%}
{%- for idx in range(messages|length-1, -1, -1) -%}
    {%- if messages[idx]['role'] == 'assistant' and not messages[idx].get('tool_calls') -%}{%- set ns.last_answer = idx -%}{%- break -%}{%- endif -%}
{%- endfor -%}
{%- set earlier = messages[:ns.last_answer+1] -%}
{%- set later = messages[ns.last_answer+1:] -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>{%- endif -%}
{%- if messages|length == 0 or messages[0]['role'] != 'system' -%}<|im_system|>system<|im_middle|>You help.<|im_end|>{%- endif -%}
{%- for part in [earlier, later] -%}
{%- set is_later = loop.last -%}
{%- for message in part -%}
  {{role_of(message)}}
  {%- if message['role'] == 'assistant' -%}
    <think>{{ message.get('reasoning_content', '') if is_later }}</think>{{content_of(message)}}
    {%- if message.get('tool_calls') -%}{{calls_of(message)}}{%- endif -%}
  {%- elif message['role'] == 'tool' -%}
    {%- set tool_call_id = message.tool_call_id -%}
    ## Return of {{ tool_call_id }}
{{content_of(message)}}
  {%- elif message['content'] is not none -%}{{content_of(message)}}
  {%- endif -%}
  <|im_end|>
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}
""",
    "hy3 with tools": r"""
{%- set end = ':opensource' -%}
{%- set calls = '<tool_calls{}>'.format(end) -%}
{%- set calls_end = '</tool_calls{}>'.format(end) -%}
{%- set call = '<tool_call{}>'.format(end) -%}
{%- set call_end = '</tool_call{}>'.format(end) -%}
{%- set sep = '<tool_sep{}>'.format(end) -%}
{%- set key = '<arg_key{}>'.format(end) -%}
{%- set key_end = '</arg_key{}>'.format(end) -%}
{%- set value = '<arg_value{}>'.format(end) -%}
{%- set value_end = '</arg_value{}>'.format(end) -%}
{%- set think = '<think{}>'.format(end) -%}
{%- set think_end = '</think{}>'.format(end) -%}
{{- bos_token }}
{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}
{%- if tools %}{{- '\n\nFunctions:\n' }}{%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- endfor %}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<｜hy_User{}｜>'.format(end) + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<｜hy_Assistant{}｜>'.format(end) + think + (message.reasoning_content or '') + think_end + message.content }}
        {%- if message.tool_calls %}
            {{- calls + '\n' }}
            {%- for tool_call in message.tool_calls %}
                {{- call + tool_call.function.name + sep + '\n' }}
                {%- for name, given in tool_call.function.arguments.items() %}
                    {{- key + name + key_end + '\n' + value }}{{- given if given is string else given | tojson(ensure_ascii=False) }}{{- value_end + '\n' }}
                {%- endfor %}
                {{- call_end + '\n' }}
            {%- endfor %}
            {{- calls_end }}
        {%- endif %}
        {{- '<｜hy_eos{}｜>'.format(end) }}
    {%- elif message.role == 'tool' %}{{- '<tool_response{}>\n'.format(end) + message.content + '\n</tool_response{}>\n'.format(end) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜hy_Assistant{}｜>'.format(end) + think }}{%- endif %}
""",
}
