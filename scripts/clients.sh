#!/bin/sh
# `make test-clients`: the newest releases of client packages against `coordinator serve` with SmolLM2-135M:
#     scripts/clients.sh [NAME]...
# A name is a client below; without names, all but lm-eval and guidellm. Each client's script is in tests/clients and
# says what it checks.
# openai       chat and text completions, streams, logprobs, structured output, calls and errors of openai-python
# responses    the Responses API of openai-python, also stored
# batches      its Files and Batch APIs, against the same requests alone
# embeddings   its embeddings
# openai-node  the same APIs of the package `openai` for Node
# anthropic    the Messages API of the package anthropic
# agents       the OpenAI Agents SDK, by responses and by chat completions
# langchain    chat, responses, text completions, embeddings and agents of LangChain
# litellm      LiteLLM's providers openai, hosted_vllm and anthropic
# instructor, dspy, pydantic-ai, smolagents
# ai           Vercel's AI SDK with @ai-sdk/openai and @ai-sdk/openai-compatible
# lm-eval      a task that needs no download (scripts/clients/capitals.*) by local-completions with token-id prompts, which
#              asks for echo and logprobs: the likelihood of every choice, and the accuracy, are those of the same task
#              through transformers in float32, within 0.001 of a logarithm. The same through the Python package's
#              model `tandem`, and a task that generates, whose answers are those of transformers
# guidellm     a short benchmark at once and one at a constant rate, over chat and text completions: every request is
#              answered, with the tokens that were asked for
# The server gets no option that a client needs, except that `batches` and stored responses need a directory. For calls the
# model file has a chat template that describes functions (scripts/clients/tools.jinja).
# Installs each package into an environment of its own below $CARGO_TARGET_DIR/clients (target/clients) once: about 2 GB, and
# 6 GB more for lm-eval and guidellm. What cannot be installed because a registry is out of reach is skipped by name. Serves
# the program that TANDEM_COORDINATOR names, otherwise a release build, at free ports of 127.0.0.1. Ends with 1 where
# anything is not as expected.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }
python_clients="openai responses batches embeddings anthropic agents langchain litellm instructor dspy pydantic-ai smolagents"
node_clients="openai-node ai"
clients="$python_clients $node_clients"
chosen=" ${*:-$clients} "
wanted() { case "$chosen" in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
for name in $chosen; do
    case " $clients lm-eval guidellm " in
        *" $name "*) ;;
        *) echo "clients.sh: no client has the name $name; the names are $clients lm-eval guidellm" >&2; exit 2 ;;
    esac
done

# The packages of PyPI of a client, whose environment has the name of the first.
packages_of() {
    case $1 in
        openai | responses | batches | embeddings) echo openai ;;
        agents) echo openai-agents ;;
        langchain) echo langchain langchain-openai ;;
        pydantic-ai) echo 'pydantic-ai-slim[openai]' ;;
        smolagents) echo 'smolagents[openai]' ;;
        evaluators) echo 'lm-eval[api,hf]' guidellm gguf ;;
        *) echo "$1" ;;
    esac
}

script_of() {
    case $1 in
        openai) echo openai_chat.py ;;
        anthropic) echo anthropic_messages.py ;;
        agents) echo openai_agents.py ;;
        langchain) echo langchain_models.py ;;
        litellm) echo litellm_completion.py ;;
        instructor) echo instructor_models.py ;;
        dspy) echo dspy_programs.py ;;
        pydantic-ai) echo pydantic_ai_agents.py ;;
        smolagents) echo smolagents_agents.py ;;
        openai-node) echo openai_node.mjs ;;
        ai) echo vercel_ai.mjs ;;
        *) echo "openai_$1.py" ;;
    esac
}

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/clients"
folder=$(cd "$target/clients" && pwd)
work=$(mktemp -d "$folder/run.XXXXXX")
server=
finish() {
    code=$?
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    [ "$code" -eq 0 ] || [ ! -s "$work/served" ] || tail -n 20 "$work/served" >&2
    rm -rf "$work"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0 failed=0 skipped=0 missing=" "
skip() {
    echo "SKIP $1: $2"
    missing="$missing$1 "
    skipped=$((skipped + 1))
}
installed() { case "$missing" in *" $1 "*) return 1 ;; *) return 0 ;; esac; }

# Installs packages of PyPI into the environment `name`. Fails only if the registry is out of reach.
environment() {
    name=$1
    shift
    [ "$(cat "$folder/$name/installed" 2>/dev/null)" != "$*" ] || return 0
    [ -x "$folder/$name/bin/python" ] || say python3 -m venv "$folder/$name"
    if ! say "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@"; then
        "$folder/$name/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$work/reached" pip || return 1
        echo "clients.sh: $* cannot be installed" >&2
        exit 1
    fi
    echo "$*" > "$folder/$name/installed"
}

node_environment() {
    if ! command -v npm > /dev/null; then
        command -v apt-get > /dev/null || return 1
        sudo=
        [ "$(id -u)" -eq 0 ] || sudo=sudo
        say $sudo apt-get update -q > /dev/null || return 1
        say $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends nodejs npm > /dev/null ||
            return 1
    fi
    mkdir -p "$folder/node"
    # Imports are looked for above the folder of a script.
    cp tests/clients/*.mjs "$folder/node/"
    ! cmp -s tests/clients/package.json "$folder/node/installed" || return 0
    cp tests/clients/package.json "$folder/node/"
    if ! (cd "$folder/node" && say npm install --no-audit --no-fund --loglevel=error); then
        npm view --silent openai version > /dev/null || return 1
        echo "clients.sh: the packages of tests/clients/package.json cannot be installed" >&2
        exit 1
    fi
    cp tests/clients/package.json "$folder/node/installed"
}

for client in $python_clients; do
    # shellcheck disable=SC2046 # one word a package
    ! wanted "$client" || environment $(packages_of "$client" | sed 's/[[ ].*//') $(packages_of "$client") ||
        skip "$client" "the registry of Python packages is out of reach"
done
if wanted openai-node || wanted ai; then
    node_environment || for client in $node_clients; do
        ! wanted "$client" || skip "$client" "the registry of Node packages is out of reach"
    done
fi

model=$(scripts/model.sh | tail -n 1)
program=${TANDEM_COORDINATOR:-}
if [ -z "$program" ]; then
    say cargo build --release --package coordinator
    program=$target/release/coordinator
fi

# Nothing of these packages looks for models, data, prices or news outside; what they cache stays here.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$folder/cache" TOKENIZERS_PARALLELISM=false
export LITELLM_LOCAL_MODEL_COST_MAP=True DSPY_CACHEDIR="$folder/cache" LANGSMITH_TRACING=false NO_COLOR=1

# Serves a model with further options, at $url.
serve() {
    served=$1
    shift
    "$program" serve --model "$served" --device none --port 0 "$@" > "$work/served" 2>&1 &
    server=$!
    url=
    for _ in $(seq 600); do
        kill -0 "$server" 2>/dev/null || { cat "$work/served" >&2; exit 1; }
        url=$(sed -n 's/^serving .* at \(http:[^ ]*\)$/\1/p' "$work/served")
        [ -n "$url" ] && python3 -c "import urllib.request as u; u.urlopen('$url/health')" 2>/dev/null && break
        sleep 0.5
    done
    echo "served at $url"
}

# A client's mistakes are its own: the server is still whole, and ends when it is asked to.
end() {
    kill -TERM "$server"
    wait "$server"
    server=
}

# Runs the script of a client, if it is wanted and installed.
check() {
    client=$1
    shift
    if ! wanted "$client" || ! installed "$client"; then
        return
    fi
    case $client in
        openai-node | ai) set -- node "$folder/node/$(script_of "$client")" "$url" "$@" ;;
        *)
            # Warnings are about versions to come.
            set -- "$folder/$(packages_of "$client" | sed 's/[[ ].*//')/bin/python" -W ignore \
                "tests/clients/$(script_of "$client")" "$url" "$@"
            ;;
    esac
    echo "+ $*"
    if timeout 900 "$@" > "$work/said" 2>&1; then
        tail -n 1 "$work/said"
        passed=$((passed + 1))
    else
        tail -n 60 "$work/said" >&2
        echo "FAIL $client" >&2
        failed=$((failed + 1))
    fi
}

any() {
    for client in "$@"; do
        ! wanted "$client" || ! installed "$client" || return 0
    done
    return 1
}

with_calls="openai responses anthropic agents langchain litellm instructor dspy pydantic-ai smolagents $node_clients"
# shellcheck disable=SC2086 # one word a client
if any $with_calls embeddings; then
    serve "$model"
    for client in $with_calls embeddings; do
        check "$client"
    done
    end
fi
if any batches responses; then
    serve "$model" --store-batches "$work/batches" --store-responses "$work/responses"
    check batches
    check responses stored
    end
fi
# SmolLM2's own template describes no functions: the same model with one that does, in Hermes' manner.
# shellcheck disable=SC2086
if any $with_calls; then
    if environment gguf gguf; then
        say "$folder/gguf/bin/gguf-new-metadata" --chat-template-file scripts/clients/tools.jinja "$model" \
            "$work/tools.gguf" > /dev/null 2>&1
        serve "$work/tools.gguf"
        for client in $with_calls; do
            check "$client" tools
        done
        end
    else
        skip "calls" "the registry of Python packages is out of reach"
    fi
fi
if wanted lm-eval || wanted guidellm; then
    # shellcheck disable=SC2046
    if environment evaluators $(packages_of evaluators); then
        bin=$folder/evaluators/bin
        serve "$model" --dtype f32 --slots 8 --context 2048
        . scripts/clients/evaluators.sh
        end
        passed=$((passed + 1))
    else
        skip "lm-eval and guidellm" "the registry of Python packages is out of reach"
    fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
