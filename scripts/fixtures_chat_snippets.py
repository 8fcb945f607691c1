#!/usr/bin/env python3
"""Makes text/tests/fixtures/chat_snippets.json: pieces of chat templates and what Jinja2, as transformers
sets it up, writes of them.

    python3 -m venv DIR && DIR/bin/pip install transformers jinja2    # without torch
    DIR/bin/python scripts/fixtures_chat_snippets.py

The file is committed; nothing in the build or the tests runs this. Seeded: the same bytes each time. Each
case is [template, what it writes]; `variables` are what every template is told. Pieces that Jinja2 refuses
are left out. Last made with transformers 5.24 and Jinja2 3.1.
"""

import copy
import json
import random
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

FILE = Path(__file__).resolve().parent.parent / "text" / "tests" / "fixtures" / "chat_snippets.json"

VARIABLES = {
    "s": "x",
    "quoted": "it's \"so\"",
    "lines": "a\r\nb\tc",
    "types": ["NUMBER", "NULL"],
    "mixed": ["x", None, True, 1, 2.5, ["b"], {"k": "v"}],
    "deep": {"a": "it's", "b": [1e-05, {"z": None}], "c": {}},
    "empty_list": [],
    "empty_dict": {},
    "n": 7,
    "whole": 1.0,
    "tiny": 1e-07,
    "huge": 1e16,
    "long": 1234567.125,
    "negative": -2.5e-300,
    "yes": True,
    "nothing": None,
    "schema": {"type": ["string", "null"], "enum": ["a", 1e-7], "minimum": 1e22},
}

# What is done with each value.
USES = """
{{ v }}
{{ v ~ '|' }}
{{ 'a' ~ v ~ 1 }}
{{ v ~ v }}
{{ v|string }}
{{ v|string|length }}
{{ v|upper }}
{{ v|lower }}
{{ v|capitalize }}
{{ v|trim }}
{{ v|replace('x', 'y') }}
{{ v|indent }}
{{ [v, v]|join(', ') }}
{{ [v]|join }}
{{ [v, 'z']|join(d='-') }}
{{ v|join(v) }}
{{ [{'a': v}, {'a': [v]}]|join(', ', attribute='a') }}
{{ '%s and %s'|format(v, [v]) }}
{{ v|tojson }}
{{ v|tojson(indent=2) }}
{{ {'d': v} }}
{{ [v] ~ {'d': v} }}
{{ [v]|map('upper')|list }}
{{ [v]|map('string')|join('+') }}
{{ (v ~ '')|length }}
{{ v|default('?') ~ undefined_name }}
{% set t = v ~ '.' %}{{ t }}
{% if v ~ '' == v|string %}same{% else %}other{% endif %}
{% for c in [v ~ 'a', v] %}{{ c }};{% endfor %}
{% macro m(a, b='k' ~ v) %}{{ a ~ b }}{% endmacro %}{{ m(v) }}{{ m(v, b=v ~ v) }}
""".strip().splitlines()

# What belongs to an operand of `~`.
CHAINS = r"""
{{ 1 + 2 ~ 3 if false else 'a' ~ [1] }}
{{ 2 * 3 ~ 4 * 5 }}
{{ 2 ** 3 ~ 7 // 2 ~ 7 % 4 }}
{{ -1 ~ -n }}
{{ 'a' ~ n == 'a7' }}
{{ 'a' ~ n in ['a7'] }}
{{ 'a' ~ n not in ['a7'] }}
{{ not 'a' ~ n }}
{{ 'a' ~ n is string }}
{{ 'a' ~ n is not none }}
{{ 'a' ~ nothing is none }}
{{ ('a' ~ n) is string }}
{{ 'a' ~ types|length ~ types|join('/')|lower }}
{{ ('a' ~ types)|lower ~ types[0] ~ types[-1:] ~ deep.b[0] }}
{{ [s ~ n, (s ~ [s ~ n]) ~ {'k': s ~ types}] }}
{{ s ~ (n ~ (s ~ (n ~ types))) }}
{{ '}}' ~ '{{' ~ "%}" ~ '\'' ~ "\"" ~ '~' }}
{{ {'a': {'b': s ~ types}}['a']['b'] ~ {'c': 1} }}
{{ s ~ n if n > 6 and s ~ n == 'x7' else s ~ types }}
{{ 1e-7 ~ 1.5 ~ 1e3 ~ 100 }}
{{ s.upper() ~ types|length if types.nothing is defined else s.upper() ~ 0 }}
{{- s ~ types -}} ~ {{- s ~ n -}}
{# {{ s ~ types }} #}{{ s ~ types }}
{% raw %}{{ s ~ types }}{% endraw %}{{ s ~ types }}
{%- raw -%} {{ s ~ n }} {%- endraw -%} {{ s ~ n }}
{% for k, w in deep.items() %}{{ k ~ '=' ~ w }}{{ ',' if not loop.last }}{% endfor %}
{% for a in types if a ~ '' == 'NULL' %}{{ loop.index ~ a ~ [a] }}{% endfor %}
{% if s ~ n == 'x7' and not (s ~ types == 'x') %}yes{% elif s ~ n %}maybe{% endif %}
{% set ns = namespace(t='') %}{% for a in mixed %}{% set ns.t = ns.t ~ a ~ ';' %}{% endfor %}{{ ns.t }}
{% set a, b = s ~ n, s ~ types %}{{ b ~ a }}
{% set block %}{{ s ~ types }}{% endset %}{{ block ~ 1 }}
{% call(x) m(1) if false else none %}{% endcall %}
{{ s ~ s|default(n ~ n) ~ undefined_name|default(s ~ types) }}
{{ (s ~ n) * 2 ~ 1 }}
{{ types|map('lower')|list ~ types|select('equalto', 'NULL')|list }}
{{ 'a' 'b' ~ 'c' }}
{{ s~n~types~1.0~true~none }}
{{ schema|tojson }}{{ schema.type ~ schema.enum ~ schema.minimum }}
""".strip("\n").splitlines()

LINES = [
    "a\nb\n",
    "{% if true %}\nx\n{% endif %}\ny\n\n",
    "  {% if true %}\n  x\n  {% endif %}\n",
    "{{ s }}\n{# a\nremark #}\n{{ n }}\n",
    "{%- if true -%}\n  x  \n{%- endif %}\n{{- s }}\n",
    "{% set t = 'a\nb' %}{{ t }}{{ 'c\\r\\nd' }}\n",
    "{{ lines }}\n{{ lines ~ types }}\n",
    "\n\n",
    "a\n\n{{ s -}}\n\nb",
    "{% raw %}\n{{ x }}\n{% endraw %}\n",
]


def chain(chooser, depth=0):
    """A random expression of `~` and what binds more and less."""
    atoms = ["s", "n", "types", "deep", "tiny", "whole", "'q'", "3", "0.25", "nothing", "yes", "types[0]", "deep.a"]
    if depth > 2 or chooser.random() < 0.3:
        return chooser.choice(atoms)
    inner = lambda: chain(chooser, depth + 1)
    kind = chooser.randrange(9)
    if kind < 4:
        return " ~ ".join(inner() for _ in range(chooser.randrange(2, 5)))
    if kind == 4:
        return f"({inner()})|{chooser.choice(['upper', 'lower', 'string', 'trim'])}"
    if kind == 5:
        return f"[{inner()}, {inner()}]"
    if kind == 6:
        return f"({inner()} if {inner()} else {inner()})"
    if kind == 7:
        return f"{{'k': {inner()}}}"
    return f"{inner()} {chooser.choice(['==', '!=', 'and', 'or'])} {inner()}"


def templates():
    for use in USES:
        for name in VARIABLES:
            yield "{% set v = " + name + " %}" + use
    yield from CHAINS
    for text in LINES:
        for end in ["\n", "\r\n", "\r"]:
            yield text.replace("\n", end)
    chooser = random.Random(54)
    for _ in range(300):
        yield "{{ " + chain(chooser) + " }}"


def main():
    cases, refused = [], 0
    for template in dict.fromkeys(templates()):
        try:
            cases.append([template, _compile_jinja_template(template).render(**copy.deepcopy(VARIABLES))])
        except Exception:  # Whatever Python raises.
            refused += 1
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    FILE.write_text(f'{{"variables": {json.dumps(VARIABLES)},\n"cases": [\n{lines}\n]}}\n')
    json.loads(FILE.read_text())
    print(f"{FILE.name}: {len(cases)} cases, {refused} refused by Jinja2, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
