# lm-eval and guidellm, sourced by scripts/clients.sh: the model is served in f32 at $url, so that transformers' arithmetic
# is comparable, and $bin has their programs.

# The tokenizer of the very file, as a folder that transformers reads.
"$bin/python" - "$model" "$work/tokenizer" <<'PYTHON'
import pathlib, sys
from transformers import AutoTokenizer

model = pathlib.Path(sys.argv[1])
AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(sys.argv[2])
PYTHON

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
        TANDEM_COORDINATOR=$(realpath "$program") PYTHONPATH="$(pwd)/python" \
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
