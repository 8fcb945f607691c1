//! Longer texts of `--help`: introductions, examples, file formats and exit codes.

use planner::machine::bundled_names;

/// Returns the help of `plan --machine`.
pub fn machine() -> String {
    let known: Vec<&str> = bundled_names().collect();
    format!(
        "Machine description: a .toml file, or one of {} [default: this machine, as measured]",
        known.join(", ")
    )
}

/// First lines of the help.
pub const ABOUT: &str = "Run language models too large for the GPU, on GPU and CPU together";

/// Last lines of `-h`.
pub const AFTER_SHORT: &str = "Examples, file formats and exit codes: --help";

/// Last lines of `--help`.
pub const AFTER: &str = "\
Examples:
  Answer a file of prompts, in four concurrent batches of fifteen prompts:
    coordinator --model ./SmolLM2-135M-Instruct --batches 4x15 --input in.jsonl --output out.jsonl
  Resume this run after an interruption, without computing finished answers again:
    coordinator --model ./SmolLM2-135M-Instruct --batches 4x15 --input in.jsonl --output out.jsonl --resume
  Answer a single prompt and print the answer:
    echo 'What is a kernel?' > ask.txt
    coordinator --model ./SmolLM2-135M-Instruct --input ask.txt --chat
  Benchmark four layers of a model without downloading its weights:
    coordinator --model opt-30b --dummy-weights --layers 4 --batches 2x8 --report r.json
  Run attention on the emulated device, and all other operations on the CPU:
    coordinator --model opt-125m --dummy-weights --device emulated --split scores:out

Input, one request per line:
  {\"prompt\": \"Once upon a time\", \"max_tokens\": 24}
  {\"prompt\": [2, 11, 7], \"stop\": [\"\\n\"]}                 token ids need no tokenizer
  {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}   needs the model's chat template
  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": \
   {\"prompt\": \"Hi\"}}
  A .txt file contains one raw prompt per line. Supported fields, with defaults: prompt, messages,
  max_tokens (16, chats 1024) or max_completion_tokens, temperature (0, greedy), top_p (1), top_k,
  min_p, presence_penalty, frequency_penalty, repetition_penalty, min_tokens, n (1), seed (--seed),
  stop, logprobs, top_logprobs, response_format, structured_outputs (constrained output), tools,
  tool_choice, parallel_tool_calls (function calls), chat_template_kwargs, reasoning_effort,
  continue_final_message.
  If another field of OpenAI, vLLM or llama.cpp has a value that is not its default, the request
  gets an error line; with --ignore-unknown-fields the field is ignored. Columns of your own (id,
  label) are copied to the answer's line.

Output, one line per request, in input order: OpenAI's batch output, with token_ids in each choice.
  An answer is on disk one second, or two steps, after its last token. `coordinator formats`
  describes all files by example.

Exit codes:
  0    every request was answered
  1    the run failed: model, memory, device, files, or a worker died
  2    invalid command line; nothing was run
  3    finished, but some requests got an error line or an answer that violates its output format
  130  interrupted by Ctrl-C or SIGTERM; finished answers are kept; a second signal stops at once
  141  the reader of stdout closed it";

/// Last lines of `completions --help`.
pub const AFTER_COMPLETIONS: &str = "\
Examples:
  coordinator completions bash > ~/.local/share/bash-completion/completions/coordinator
  coordinator completions zsh > ~/.zfunc/_coordinator
  coordinator completions fish > ~/.config/fish/completions/coordinator.fish";

/// Last lines of `pull --help`.
pub const AFTER_PULL: &str = "\
Examples:
  Download a checkpoint and answer prompts with it:
    coordinator pull HuggingFaceTB/SmolLM2-135M-Instruct
    coordinator --model HuggingFaceTB/SmolLM2-135M-Instruct --chat --input ask.txt
  Download one file of a repository:
    coordinator pull bartowski/Qwen2.5-7B-Instruct-GGUF --file Qwen2.5-7B-Instruct-Q4_K_M.gguf

Files are stored in the Hugging Face cache (HF_HUB_CACHE, HF_HOME), which other programs also use,
and verified against the hub's checksums. An interrupted download resumes where it stopped.
HF_TOKEN grants access to gated and private models; it is sent to the hub, and to no host that the
hub redirects to. HF_ENDPOINT selects another hub. Without a network, copy the model's directory
to this machine and pass its path as --model.";

/// Last lines of `plan --help`.
pub const AFTER_PLAN: &str = "\
Examples:
  Plan OPT-30B on this machine with the emulated device, after measuring it if necessary:
    coordinator plan --model opt-30b --device emulated --batches 2x8
  Find the best split of a layer whose operations were timed elsewhere:
    coordinator plan --tables layer.json
  Plan OPT-30B on a described machine, with four batches of sixty sequences:
    coordinator plan --machine ryzen7950x-a4000 --model opt-30b --batches 4x60
  Describe a machine of your own, in a file that explains every field, and plan for it:
    coordinator plan --machine-template > my-machine.toml
    coordinator plan --machine my-machine.toml --model ./my-model --batches 1x50 --json
  Simulate a server under every policy for attention on the GPU, the CPU or both:
    coordinator plan --serve --machine g5-16xlarge --model llama-3.1-8b --rate 2
  Compare machines for OPT-30B with the best batches of each, and show what limits them:
    coordinator plan --compare my-machine.toml,spr-a100 --model opt-30b --batches auto

A table (--table-template prints one):
  {\"ops\": [{\"name\": \"q\", \"cpu_ms\": 5.1, \"gpu_ms\": 0.9, \"h2d_ms\": 6.0}, ...], \
   \"batches\": 2}
Times are for one batch. Optional fields: h2d_compressed_ms, decompress_ms, s2d_ms (from NVMe), and
kv: true if the transfer is the KV cache; compression: off, on or search; nvme: true or false;
cost: paper or simulated. `coordinator formats` describes every field of both files.";

/// Last lines of `quantize --help`.
pub const AFTER_QUANTIZE: &str = "\
Examples:
  From a checkpoint, weighted by the inputs that the model has for a text:
    coordinator quantize ./SmolLM2-135M-Instruct small.gguf --type q4_k_m --calibrate text.txt
  From a GGUF file in bf16:
    coordinator quantize model-bf16.gguf model-q6_k.gguf --type q6_k

The names of types are those of llama.cpp, which reads the files. Matrices whose rows a type's
blocks do not divide get a type with smaller blocks and no fewer bits; vectors and routers keep 32
bits. Only a few megabytes per thread are in memory, and with --calibrate the whole model in bf16.";

/// Last lines of `stage --help`.
pub const AFTER_STAGE: &str = "\
Examples:
  Run a model that is larger than memory with two NVMe drives:
    coordinator stage --model opt-30b --nvme /mnt/nvme0 --nvme /mnt/nvme1
    coordinator profile --model opt-30b --nvme /mnt/nvme0 --nvme /mnt/nvme1
    coordinator --model opt-30b --nvme /mnt/nvme0 --nvme /mnt/nvme1 --input in.jsonl \\
      --output out.jsonl
  List the staged weights, and verify them:
    coordinator stage --status --nvme /mnt/nvme0
    coordinator stage --verify --model opt-30b --nvme /mnt/nvme0

`profile` measures the rate of concurrent reads from the drives, to assign each drive its share of
every weight; a run measures it if that was not done.

Weights are written once, in the format in which a run multiplies them (--dtype, --compress w4, a
GGUF file's own blocks). Every directory gets all weights, so that a run continues when a drive
fails. Interrupted staging resumes where it stopped. To free the space, remove the staged
directory.";

/// Last lines of `profile --help`.
pub const AFTER_PROFILE: &str = "\
Examples:
  Measure OPT-30B's operations on this machine's CPU, in under 40 seconds:
    coordinator profile --model opt-30b
  Measure four batches of sixty with the emulated device, uncompressed and in 4 bits:
    coordinator profile --model opt-30b --batches 4x60 --device emulated --compress w4kv4
  Export a description of this machine, to plan with elsewhere or to edit by hand:
    coordinator profile --model opt-30b --batches 2x8 --device cuda:0 --export machine.toml
    coordinator plan --machine machine.toml --model opt-30b --batches 2x8

The profile is stored in $XDG_CACHE_HOME/tandem or ~/.cache/tandem with a fingerprint of the
machine. If the machine or the profiled workload changes, the difference is reported and the
profile is measured again.";

/// Last lines of `serve --help`.
pub const AFTER_SERVE: &str = "\
Examples:
  Serve a model at http://127.0.0.1:8000, and request an answer:
    coordinator serve --model ./SmolLM2-135M-Instruct
    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is a kernel?\"}]}'
  Serve other machines, with an API key and a log of requests:
    TANDEM_API_KEY=$(cat key) coordinator serve --model ./my-model --host 0.0.0.0 --log log.jsonl
  Use OpenAI's own client:
    OpenAI(base_url='http://127.0.0.1:8000/v1', api_key='none').chat.completions.create(...)

Endpoints: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health,
/metrics. Requests have the fields of a batch line (`coordinator formats`), and also stream and
stream_options. Unlike in a batch, the default temperature is that of the model's
generation_config.json, otherwise 1, and unknown fields of messages are ignored.

On SIGTERM or Ctrl-C the server accepts no new requests, and running ones have --drain-timeout
seconds to complete. A second signal stops it at once. docs/serving.md describes every field,
metric, limit and error.";

/// Last lines of `bench-serve --help`.
pub const AFTER_BENCH_SERVE: &str = "\
Examples:
  Measure the maximum throughput of a server, and 100 requests at two per second:
    coordinator bench-serve --input-len 64 --output-len 256
    coordinator bench-serve --rate 2 --requests 100
  Use the lengths of a real service, and its arrivals scaled to one request per second:
    coordinator bench-serve --lengths code.csv --rate 2
    coordinator bench-serve --trace code.csv --rate 1 --requests 500 --json
  Measure llama.cpp's server:
    coordinator bench-serve --url http://127.0.0.1:8080 --api llama

Arrival times are drawn before the first request is sent and do not depend on answers. The time to
first token counts from the scheduled arrival, so that a server that cannot keep up shows it.
Prompts are random tokens without a common prefix; answers are greedy and have exactly the
requested length. A first request, which is not counted, checks that the server answers. The table
has the rows of `vllm bench serve`; goodput counts answers that meet all of --slo-ttft,
--slo-ttft-per-token and --slo-tpot. Exit code 3: some requests were not answered.";

/// Last lines of `score --help`.
pub const AFTER_SCORE: &str = "\
Examples:
  Compare continuations by probability; a prompt is computed once for all of them:
    echo '{\"prompt\": \"The sky is\", \"continuations\": [\" blue\", \" green\"]}' > ask.jsonl
    coordinator score --model ./SmolLM2-135M --input ask.jsonl --output scores.jsonl
  Compute the perplexity of a text, in windows of 1024 tokens every 512 tokens:
    coordinator score --model ./SmolLM2-135M --input text.txt --context 1024 --stride 512 \
    --output windows.jsonl
  Output the ten most likely tokens at each position, and a summary as JSON:
    coordinator score --model ./SmolLM2-135M --input ask.jsonl --top 10 --tokens --summary sums.json

Output, one line per input line, in input order:
  {\"custom_id\": \"a\", \"scores\": [{\"logprob\": -3.1, \
   \"token_logprobs\": [-3.1], \"greedy\": true}, ...], ...}

Exit codes are those of a batch job. docs/evaluation.md describes how texts are tokenised.";
