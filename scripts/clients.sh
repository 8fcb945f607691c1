#!/bin/sh
# Real clients against `coordinator serve` with SmolLM2-135M:
#     scripts/clients.sh [openai] [responses] [batches] [embeddings] [anthropic] [agents] [lm-eval] [guidellm]
# openai     scripts/clients/openai_checks.py: models, chat, streams equal to whole answers, logprobs, structured output,
#            completions with echo, n and stop, the client's own error types; and with a template that tells of functions
#            (scripts/clients/tools.jinja) calls, drawn and streamed, their arguments and results
# responses  tests/clients/openai_responses.py: the Responses API of openai-python, also with tools and stored
# batches    tests/clients/openai_batches.py: the Files and Batch APIs of openai-python, against the same requests alone
# embeddings tests/clients/openai_embeddings.py: the embeddings of openai-python, in both encodings
# anthropic  tests/clients/anthropic_messages.py: the Messages API of the package anthropic, also with tools
# agents     tests/clients/openai_agents.py: an agent of the OpenAI Agents SDK that answers, and one that calls a function
# lm-eval    a task that needs no download (scripts/clients/capitals.*) by local-completions with token-id prompts, which
#            asks for echo and logprobs: the likelihood of every choice, and the accuracy, are those of the same task
#            through transformers in float32, within 0.001 of a logarithm. The same through the Python package's
#            model `tandem`, and a task that generates, whose answers are those of transformers
# guidellm   a short benchmark at once and one at a constant rate, over chat and text completions: every request is
#            answered, with the tokens that were asked for
# Installs the packages into $CARGO_TARGET_DIR/clients (target/clients) once: about 6 GB, most of it
# torch's CUDA libraries that guidellm brings. Serves at a free port of 127.0.0.1 in f32, so that transformers' arithmetic is comparable. Ends with 1
# where anything is not as expected.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }
chosen=" ${*:-openai responses batches embeddings anthropic agents lm-eval guidellm} "
wanted() { case "$chosen" in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/clients"
folder=$(cd "$target/clients" && pwd)
bin=$folder/venv/bin
if [ ! -f "$folder/installed-2" ]; then
    say python3 -m venv "$folder/venv"
    say "$bin/pip" install --quiet --disable-pip-version-check openai anthropic openai-agents 'lm-eval[api,hf]' guidellm gguf
    : > "$folder/installed-2"
fi
model=$(scripts/model.sh | tail -n 1)
say cargo build --release --package coordinator

# Nothing of these packages looks for models, data or news outside; what they cache stays here.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$folder/cache" TOKENIZERS_PARALLELISM=false
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

# Serves a model with further options, at $url.
serve() {
    served=$1
    shift
    "$target/release/coordinator" serve --model "$served" --dtype f32 --device none --port 0 --slots 8 --context 2048 "$@" \
        > "$work/served" 2>&1 &
    server=$!
    url=
    for _ in $(seq 600); do
        kill -0 "$server" 2>/dev/null || { cat "$work/served" >&2; exit 1; }
        url=$(sed -n 's/^serving .* at \(http:[^ ]*\)$/\1/p' "$work/served")
        [ -n "$url" ] && "$bin/python" -c "import urllib.request as u; u.urlopen('$url/health')" 2>/dev/null && break
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

serve "$model" --store-batches "$work/batches"

# The tokenizer of the very file, as a folder that transformers reads.
if wanted lm-eval || wanted guidellm; then
    "$bin/python" - "$model" "$work/tokenizer" <<'PYTHON'
import pathlib, sys
from transformers import AutoTokenizer

model = pathlib.Path(sys.argv[1])
AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(sys.argv[2])
PYTHON
fi

if wanted openai; then
    say "$bin/python" scripts/clients/openai_checks.py "$url"
fi

if wanted responses; then
    say "$bin/python" tests/clients/openai_responses.py "$url"
fi
if wanted batches; then
    say "$bin/python" tests/clients/openai_batches.py "$url"
fi
if wanted embeddings; then
    say "$bin/python" tests/clients/openai_embeddings.py "$url"
fi
if wanted anthropic; then
    say "$bin/python" tests/clients/anthropic_messages.py "$url"
fi
if wanted agents; then
    say "$bin/python" tests/clients/openai_agents.py "$url"
fi

if wanted lm-eval; then
    mkdir "$work/tasks"
    for task in capitals capitals_said; do
        sed "s|@DATA@|$(pwd)/scripts/clients/capitals.jsonl|" "scripts/clients/$task.yaml" > "$work/tasks/$task.yaml"
    done
    # lm_eval with the Python package's model added.
    evaluate() {
        task=$1
        shift
        echo "+ python -m tandem.lm_eval --tasks $task $*"
        TANDEM_COORDINATOR=$(realpath "$target/release/coordinator") PYTHONPATH="$(pwd)/python" \
            "$bin/python" -m tandem.lm_eval --tasks "$task" --include_path "$work/tasks" --log_samples "$@" \
            > "$work/lm-eval" 2>&1 || { tail -n 30 "$work/lm-eval" >&2; exit 1; }
    }
    by_transformers="pretrained=$(dirname "$model"),gguf_file=$(basename "$model"),tokenizer=$work/tokenizer,dtype=float32"
    by_package="model=$model,dtype=f32,device=none,slots=8,context=2048"
    name=$("$bin/python" -c "import json, urllib.request as u; print(json.load(u.urlopen('$url/v1/models'))['data'][0]['id'])")
    evaluate tandem_capitals --model local-completions --output_path "$work/by-server" --model_args \
        "model=$name,base_url=$url/v1/completions,tokenizer=$work/tokenizer,tokenizer_backend=huggingface,tokenized_requests=True,num_concurrent=4"
    evaluate tandem_capitals --model hf --device cpu --output_path "$work/by-transformers" --model_args "$by_transformers"
    evaluate tandem_capitals --model tandem --output_path "$work/by-package" --model_args "$by_package"
    say python3 scripts/clients/same_likelihoods.py "$work/by-server" "$work/by-transformers" 0.001
    say python3 scripts/clients/same_likelihoods.py "$work/by-package" "$work/by-transformers" 0.001
    evaluate tandem_capitals_said --model hf --device cpu --output_path "$work/said-by-transformers" --model_args "$by_transformers"
    evaluate tandem_capitals_said --model tandem --output_path "$work/said-by-package" --model_args "$by_package"
    say python3 scripts/clients/same_texts.py "$work/said-by-package" "$work/said-by-transformers"
fi

if wanted guidellm; then
    benchmark() {
        name=$1 form=$2 profile=$3
        echo "+ guidellm run, $form, $profile"
        "$bin/guidellm" run --backend "kind=openai_http,target=$url,request_format=$form" --profile "$profile" \
            --constraint kind=max_requests,count=12 --constraint kind=max_duration,seconds=300 \
            --tokenizer "kind=huggingface_auto,model=$work/tokenizer" \
            --data kind=synthetic_text,prompt_tokens=48,output_tokens=12 \
            --output "kind=json,path=$work/$name.json" --disable-console-interactive \
            > "$work/guidellm" 2>&1 || { tail -n 30 "$work/guidellm" >&2; exit 1; }
        say python3 scripts/clients/guidellm_report.py "$work/$name.json" 12 12
    }
    benchmark chat /v1/chat/completions kind=throughput,max_concurrency=8
    benchmark text /v1/completions kind=constant,rate=2
fi

end

# SmolLM2's own template tells of no functions: the same model with one that does, in Hermes' manner.
if wanted openai || wanted responses || wanted anthropic || wanted agents; then
    say "$bin/gguf-new-metadata" --chat-template-file scripts/clients/tools.jinja "$model" "$work/tools.gguf" > /dev/null
    serve "$work/tools.gguf" --store-responses "$work/responses"
    if wanted openai; then
        say "$bin/python" scripts/clients/openai_checks.py "$url" tools
    fi
    if wanted responses; then
        say "$bin/python" tests/clients/openai_responses.py "$url" tools
        say "$bin/python" tests/clients/openai_responses.py "$url" stored
    fi
    if wanted anthropic; then
        say "$bin/python" tests/clients/anthropic_messages.py "$url" tools
    fi
    if wanted agents; then
        say "$bin/python" tests/clients/openai_agents.py "$url" tools
    fi
    end
fi
echo "all as expected"
