//! Longer texts of `--help`: introductions, examples, file formats and exit codes.

use planner::machine::names;

/// Returns the help of `plan --machine`.
pub fn machine() -> String {
    let known: Vec<&str> = names().collect();
    format!(
        "A machine by description: a .toml file, or one of {} [default: this one, as measured]",
        known.join(", ")
    )
}

/// First lines of the help.
pub const ABOUT: &str = "Runs a language model too large for the GPU, on GPU and CPU together";

/// Last lines of `-h`.
pub const AFTER_SHORT: &str = "Examples, file formats and exit codes: --help";

/// Last lines of `--help`.
pub const AFTER: &str = "\
Examples:
  Answer a file of prompts, four batches of fifteen at a time:
    coordinator --model ./SmolLM2-135M-Instruct --batches 4x15 --input in.jsonl --output out.jsonl
  The same again after it was interrupted; finished answers are not computed again:
    coordinator --model ./SmolLM2-135M-Instruct --batches 4x15 --input in.jsonl --output out.jsonl --resume
  Prompts by hand, answers to the screen:
    echo 'What is a kernel?' > ask.txt
    coordinator --model ./SmolLM2-135M-Instruct --input ask.txt --chat
  Measure a model one does not have, four of its layers:
    coordinator --model opt-30b --dummy-weights --layers 4 --batches 2x8 --report r.json
  The emulated device runs attention, the CPU the rest:
    coordinator --model opt-125m --dummy-weights --device emulated --split scores:out

Input, one request a line:
  {\"prompt\": \"Once upon a time\", \"max_tokens\": 24}
  {\"prompt\": [2, 11, 7], \"stop\": [\"\\n\"]}                 token ids need no tokenizer
  {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}   needs the model's chat template
  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": \
   {\"prompt\": \"Hi\"}}
  A .txt file has one raw prompt a line. Read are prompt, messages, max_tokens (16, chats 1024) or
  max_completion_tokens, temperature (0, greedy, unless given), top_p (1), top_k, min_p,
  presence_penalty, frequency_penalty, repetition_penalty, min_tokens, n (1), seed (--seed),
  stop, logprobs, top_logprobs, response_format, structured_outputs (answers of a form), tools,
  tool_choice, parallel_tool_calls (function calls), chat_template_kwargs,
  reasoning_effort, continue_final_message.
  Another field of OpenAI's, vLLM's or llama.cpp's with a value that is not its default gives
  that request an error line, or is left out with --ignore-unknown-fields. Columns of your own
  (id, label) go into the answer's line.

Output, one line a request, in input order: OpenAI's batch output, with token_ids in each choice.
  An answer is on disk a second, or two steps, after its last token. `coordinator formats`
  describes all files by example.

Exit codes:
  0    every request is answered
  1    the run failed: model, memory, device, files, a worker that died
  2    the command line is wrong; nothing was run
  3    finished, and some requests got an error line, or an answer without the form it had to have
  130  interrupted by Ctrl-C or SIGTERM; finished answers are kept (a second one stops at once)
  141  the reader of stdout went away";

/// Last lines of `completions --help`.
pub const AFTER_COMPLETIONS: &str = "\
Examples:
  coordinator completions bash > ~/.local/share/bash-completion/completions/coordinator
  coordinator completions zsh > ~/.zfunc/_coordinator
  coordinator completions fish > ~/.config/fish/completions/coordinator.fish";

/// Last lines of `pull --help`.
pub const AFTER_PULL: &str = "\
Examples:
  A checkpoint, then answers from it:
    coordinator pull HuggingFaceTB/SmolLM2-135M-Instruct
    coordinator --model HuggingFaceTB/SmolLM2-135M-Instruct --chat --input ask.txt
  One file of many:
    coordinator pull bartowski/Qwen2.5-7B-Instruct-GGUF --file Qwen2.5-7B-Instruct-Q4_K_M.gguf

Files go to the Hugging Face cache (HF_HUB_CACHE, HF_HOME), which other programs use too, and are
compared with the hub's checksums. An interrupted download resumes where it stopped. HF_TOKEN
is sent for models that are not for everybody, to the hub and to nothing that it redirects to;
HF_ENDPOINT is another hub. Without a network, copy the model's folder and give its path as
--model.";

/// Last lines of `plan --help`.
pub const AFTER_PLAN: &str = "\
Examples:
  What this machine would do with OPT-30B beside the emulated device, measured first if need be:
    coordinator plan --model opt-30b --device emulated --batches 2x8
  The best split of a layer whose operations were timed elsewhere:
    coordinator plan --tables layer.json
  OPT-30B on a machine one does not have, four batches of sixty:
    coordinator plan --machine ryzen7950x-a4000 --model opt-30b --batches 4x60
  The same for a machine of one's own; every field of the file is explained in it:
    coordinator plan --machine-template > my-machine.toml
    coordinator plan --machine my-machine.toml --model ./my-model --batches 1x50 --json
  Requests that come to a server, under every policy of who attends for them:
    coordinator plan --serve --machine g5-16xlarge --model llama-3.1-8b --rate 2
  Which of them for OPT-30B, and what to improve: a row for each, the best batches of each:
    coordinator plan --compare my-machine.toml,spr-a100 --model opt-30b --batches auto

A table (--table-template prints one):
  {\"ops\": [{\"name\": \"q\", \"cpu_ms\": 5.1, \"gpu_ms\": 0.9, \"h2d_ms\": 6.0}, ...], \
   \"batches\": 2}
Times are for one batch; also h2d_compressed_ms, decompress_ms, s2d_ms (from NVMe), and kv: true where the
transfer is the KV cache. compression: off, on or search; nvme: true or false; cost: paper or simulated.
`coordinator formats` says what every field of both files means.";

/// Last lines of `stage --help`.
pub const AFTER_STAGE: &str = "\
With two NVMe drives and a model that is larger than memory:
  coordinator stage --model opt-30b --nvme /mnt/nvme0 --nvme /mnt/nvme1
  coordinator profile --model opt-30b --nvme /mnt/nvme0 --nvme /mnt/nvme1
  coordinator --model opt-30b --nvme /mnt/nvme0 --nvme /mnt/nvme1 --input in.jsonl \\
    --output out.jsonl
The second measures how fast the drives read together, so that each gets its part of every
weight; a run does it where it was not done. What is staged, and whether it is sound:
  coordinator stage --status --nvme /mnt/nvme0
  coordinator stage --verify --model opt-30b --nvme /mnt/nvme0

Weights are written once, in the form in which a run multiplies them (--dtype, --compress w4, a
GGUF file's own blocks), all of them to every directory, so that a run goes on when a drive fails.
A staging that was interrupted is taken up where it stopped. Remove its folder to have the space
back.";

/// Last lines of `profile --help`.
pub const AFTER_PROFILE: &str = "\
Examples:
  OPT-30B's operations on this machine's CPU, in under 40 seconds:
    coordinator profile --model opt-30b
  Four batches of sixty beside the emulated device, uncompressed and in 4 bits:
    coordinator profile --model opt-30b --batches 4x60 --device emulated --compress w4kv4
  A description of this machine to plan with elsewhere, or to change by hand:
    coordinator profile --model opt-30b --batches 2x8 --device cuda:0 --export machine.toml
    coordinator plan --machine machine.toml --model opt-30b --batches 2x8

The measurement is kept under $XDG_CACHE_HOME/tandem or ~/.cache/tandem with a fingerprint of the machine. When
the machine or what is profiled changes, the difference is named and the profile is made anew.";

/// Last lines of `serve --help`.
pub const AFTER_SERVE: &str = "\
Examples:
  A model at http://127.0.0.1:8000, and an answer:
    coordinator serve --model ./SmolLM2-135M-Instruct
    curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is a kernel?\"}]}'
  For other machines, with a key, and a line for each request:
    TANDEM_API_KEY=$(cat key) coordinator serve --model ./my-model --host 0.0.0.0 --log log.jsonl
  OpenAI's own client:
    OpenAI(base_url='http://127.0.0.1:8000/v1', api_key='none').chat.completions.create(...)

Endpoints: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health,
/metrics. Requests have the fields of a batch line (`coordinator formats`), and stream and
stream_options. Unlike in a batch the temperature is that of the model's generation_config.json,
else 1, unless a request gives one; fields of messages that are not known
are left out.

SIGTERM or Ctrl-C: nothing more begins, what has begun is answered for --drain-timeout seconds.
The second ends at once. docs/serving.md describes every field, number, limit and error.";

/// Last lines of `bench-serve --help`.
pub const AFTER_BENCH_SERVE: &str = "\
Examples:
  What a server can do at most, and 100 requests at two a second:
    coordinator bench-serve --input-len 64 --output-len 256
    coordinator bench-serve --rate 2 --requests 100
  Lengths of a service, then its own arrivals at one request a second:
    coordinator bench-serve --lengths code.csv --rate 2
    coordinator bench-serve --trace code.csv --rate 1 --requests 500 --json
  llama.cpp's server:
    coordinator bench-serve --url http://127.0.0.1:8080 --api llama

Arrivals are drawn before the first request is sent and wait for no answer, and the time to a first
token counts from the arrival, so a server that falls behind is seen to. Prompts are random tokens
and have no prefix in common; answers are greedy and have the length that was asked for. A first
request that is not counted finds out whether the server answers. The table has the rows of
`vllm bench serve`; goodput counts answers that kept all of --slo-ttft, --slo-ttft-per-token and
--slo-tpot. Exit code 3: some requests were not answered.";

/// Last lines of `score --help`.
pub const AFTER_SCORE: &str = "\
Examples:
  Which of several continuations is likelier; a prompt is computed once for all of its own:
    echo '{\"prompt\": \"The sky is\", \"continuations\": [\" blue\", \" green\"]}' > ask.jsonl
    coordinator score --model ./SmolLM2-135M --input ask.jsonl --output scores.jsonl
  The perplexity of a text, in windows of 1024 tokens every 512:
    coordinator score --model ./SmolLM2-135M --input text.txt --context 1024 --stride 512 \
    --output windows.jsonl
  The ten likeliest tokens in the place of each, and the sums as JSON:
    coordinator score --model ./SmolLM2-135M --input ask.jsonl --top 10 --tokens --summary sums.json

Output, one line a line of the input, in its order:
  {\"custom_id\": \"a\", \"scores\": [{\"logprob\": -3.1, \
   \"token_logprobs\": [-3.1], \"greedy\": true}, ...], ...}

Exit codes are those of a batch job. docs/evaluation.md says how texts become tokens.";
