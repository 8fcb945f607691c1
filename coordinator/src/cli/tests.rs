//! Accepted command lines, and the messages for the refused ones.

use std::time::Duration;

use batch::sink::{IoTarget, OutputMode};
use model::config::Dtype;
use planner::policy::name::PolicyName;
use scheduler::hybrid::SchedulingPolicy;
use server::config::LogTarget;

use super::command::Command;
use super::request::{CacheAction, CacheRequest, PlanSource};
use super::values::{parse_batches, parse_device, parse_size};
use super::{EarlyExit, parse};
use lab::load::api::Api;
use lab::load::arrivals::Rate;
use lab::load::slo::Slo;
use lab::request::{LengthsChoice, TimedReplay, TimedSource};
use session::exit::Exit;
use session::request::{PlacementChoice, PromptCacheConfig, RunRequest, RunTask, Verbosity};
use session::values::{Batches, BatchesChoice, DeviceChoice};

fn words(line: &str) -> Vec<&str> {
    std::iter::once("coordinator").chain(line.split_whitespace()).collect()
}

fn run(line: &str) -> RunRequest {
    match parse(words(line)) {
        Ok(Command::Run(run)) => *run,
        other => panic!("{line}: {other:?}"),
    }
}

/// Asserts that the line is refused with `exit` and a text that contains each of `expected`.
#[track_caller]
fn refused(line: &str, exit: Exit, expected: &[&str]) {
    let Err(EarlyExit::Invalid(text, code)) = parse(words(line)) else {
        panic!("{line} was accepted")
    };
    assert_eq!(code, exit, "{line}: {text}");
    for word in expected {
        assert!(text.contains(word), "{line} should say {word:?}: {text}");
    }
}

#[test]
fn the_smallest_line_is_a_benchmark_on_the_cpu() {
    // Without a device, because an existing one would be chosen.
    let run = run("--model opt-125m --device none");
    assert_eq!(run.options.model.name, "opt-125m");
    assert_eq!(run.task, RunTask::Benchmark { prompt_len: 512, gen_len: 32 });
    assert_eq!(
        (run.batches, run.options.device, run.options.placement),
        (None, DeviceChoice::None, PlacementChoice::Named(PolicyName::CpuOnly))
    );
    assert_eq!(
        (run.options.dtype, run.options.seed, run.options.fuse_attention),
        (Dtype::Bf16, 0, true)
    );
    assert_eq!(run.options.verbosity, Verbosity::Normal);
}

#[test]
fn a_line_with_everything() {
    let run =
        run("--model m --revision r --dummy-weights --layers 4 --batches 4x15 --input in.jsonl \
         --output out.jsonl --resume --chat --max-tokens 9 --dtype f32 --temperature 0.5 --top-p \
         0.9 --stop a --stop b --system Brief. --json-schema s.json --ignore-unknown-fields \
         --device emulated:vram=8GiB,link=16GB/s --split scores.3: --split-chunks scores=8 \
         --no-fuse --cpu-threads 3 --emulated-threads 2 --dram 1GiB --seed 5 --report r.json \
         --trace t.json -vv");
    assert_eq!(run.options.model.revision.as_deref(), Some("r"));
    assert_eq!((run.options.model.layers, run.options.model.dummy_weights), (Some(4), true));
    assert_eq!(run.batches, Some(BatchesChoice::Fixed(Batches { count: 4, size: 15 })));
    let file = |name: &str| IoTarget::File(name.into());
    let (input, output) = (file("in.jsonl"), file("out.jsonl"));
    let mode = OutputMode::Resume;
    let RunTask::Requests(requests) = &run.task else { panic!("requests") };
    assert_eq!((&requests.input, &requests.output, requests.mode), (&input, &output, mode));
    assert_eq!((requests.chat, requests.max_tokens), (true, Some(9)));
    let defaults = &requests.defaults;
    assert_eq!((defaults.temperature, defaults.top_p), (Some(0.5), Some(0.9)));
    assert_eq!(
        (&defaults.stop[..], defaults.system.as_deref()),
        (&["a".to_owned(), "b".to_owned()][..], Some("Brief."))
    );
    assert_eq!(requests.json_schema.as_deref(), Some(std::path::Path::new("s.json")));
    assert!(requests.ignore_unknown_fields);
    assert_eq!(run.options.vram_bytes, Some(8 << 30));
    let PlacementChoice::Split { split, chunking } = run.options.placement else {
        panic!("a split")
    };
    assert_eq!((split.as_str(), chunking.map(|chunking| chunking.chunks)), ("scores.3:", Some(8)));
    assert_eq!(
        (run.options.fuse_attention, run.options.seed, run.options.dtype),
        (false, 5, Dtype::F32)
    );
    assert_eq!((run.options.cpu_threads, run.options.emulated_threads), (Some(3), Some(2)));
    assert_eq!(run.options.verbosity, Verbosity::Verbose);
}

#[test]
fn standard_streams_and_output_modes() {
    let place = |line: &str| match run(line).task {
        RunTask::Requests(requests) => {
            assert_eq!(requests.max_tokens, None);
            (requests.input, requests.output, requests.mode)
        }
        RunTask::Benchmark { .. } => panic!("{line}"),
    };
    let standard = IoTarget::Standard;
    assert_eq!(place("--model m --input -"), (standard.clone(), standard.clone(), OutputMode::New));
    let file = IoTarget::File("o".into());
    assert_eq!(
        place("--model m --input - --output o --force"),
        (standard.clone(), file.clone(), OutputMode::Overwrite)
    );
    assert_eq!(
        place("--model m --input - --output o --force --resume"),
        (standard, file, OutputMode::ResumeReplacing)
    );
    refused("--model m --input i --output - --resume", Exit::Usage, &["--resume", "--output FILE"]);
    refused("--model m --output o", Exit::Usage, &["--input"]);
    refused("--model m --input i --prompt-len 5", Exit::Usage, &["--prompt-len"]);
    refused("--model m --input i --max-tokens 0", Exit::Usage, &["--max-tokens"]);
    refused("--model m --input i --temperature 2.1", Exit::Usage, &["--temperature", "0 to 2"]);
    refused("--model m --input i --temperature nan", Exit::Usage, &["--temperature", "0 to 2"]);
    refused("--model m --input i --top-p 0", Exit::Usage, &["--top-p", "above 0"]);
    refused("--model m --top-p 0.5", Exit::Usage, &["--input"]);
    refused("--model m --input a.txt --system Hi", Exit::Usage, &["--system", "--chat"]);
}

#[test]
fn batches_teach_their_form() {
    for (text, reason) in [
        ("0x5", "is 0"),
        ("5x0", "is 0"),
        ("4", "no \"x\""),
        ("4x", "missing"),
        ("x4", "missing"),
        ("-1x2", "\"-1\""),
        ("axb", "\"a\""),
        ("4x15x2", "\"15x2\""),
        ("99999x1", "65535"),
        ("", "no \"x\""),
    ] {
        let error = parse_batches(text).unwrap_err();
        assert!(error.contains(reason) && error.contains("4x15"), "{text}: {error}");
        if !text.is_empty() {
            let line = format!("--model m --batches {text}");
            refused(&line, Exit::Usage, &["--batches", "4x15", reason]);
        }
    }
    assert_eq!(parse_batches("4X60").unwrap().to_string(), "4x60");
}

#[test]
fn devices() {
    let emulated =
        |vram_bytes, link_bytes_per_s| DeviceChoice::Emulated { vram_bytes, link_bytes_per_s };
    assert_eq!(parse_device("emulated"), Ok(emulated(None, None)));
    assert_eq!(parse_device("emulated:vram=2MiB"), Ok(emulated(Some(2 << 20), None)));
    assert_eq!(parse_device("emulated:link=1GB/s"), Ok(emulated(None, Some(1_000_000_000))));
    assert_eq!(parse_device("cuda:3"), Ok(DeviceChoice::Cuda(3)));
    for wrong in
        ["gpu", "cuda:x", "emulated:", "emulated:vram", "emulated:vram=0", "emulated:ram=1"]
    {
        assert!(parse_device(wrong).is_err(), "{wrong}");
        refused(&format!("--model m --device {wrong}"), Exit::Usage, &["--device"]);
    }
    refused("--model m --device cuda:999", Exit::Failure, &["CUDA", "emulated"]);
    refused("--model m --device emulated:vram=1GiB --vram 2GiB", Exit::Usage, &["twice"]);
    refused("--model m --device none --vram 2GiB", Exit::Usage, &["--vram"]);
    refused("--model m --device none --emulated-threads 2", Exit::Usage, &["--emulated-threads"]);
    assert_eq!(run("--model m --device emulated --vram 2GiB").options.vram_bytes, Some(2 << 30));
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("8GiB", 8 << 30),
        ("16GB", 16_000_000_000),
        ("512", 512),
        ("1.5KiB", 1536),
        ("2 mib", 2 << 20),
        ("16G", 16 << 30),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for wrong in ["", "GiB", "0", "-1GiB", "8Gigs", "1e9", "99999999TiB", "1.2.3GB", "inf"] {
        assert!(parse_size(wrong).is_err_and(|error| error.contains("8GiB")), "{wrong}");
    }
}

#[test]
fn policies() {
    let placement = |line: &str| run(&format!("--model m {line}")).options.placement;
    let named = PlacementChoice::Named;
    assert_eq!(placement("--device emulated"), named(PolicyName::Auto));
    assert_eq!(placement("--policy auto"), named(PolicyName::CpuOnly));
    assert_eq!(placement("--policy ellm"), named(PolicyName::Ellm));
    for name in PolicyName::ALL {
        let line = format!("--device emulated --policy {}", name.name());
        assert_eq!(placement(&line), named(name));
    }
    assert_eq!(run("--model m --batches auto").batches, Some(BatchesChoice::Auto));
    assert_eq!(
        placement("--device emulated --policy cpu-only"),
        PlacementChoice::Named(PolicyName::CpuOnly)
    );
    let split = PlacementChoice::Split { split: "q:out".to_owned(), chunking: None };
    assert_eq!(placement("--device emulated --split q:out"), split);
    assert_eq!(placement("--device emulated --split q:out --policy two-split"), split);
    refused("--model m --policy gpu-only", Exit::Usage, &["--device"]);
    refused("--model m --policy two-split", Exit::Usage, &["--device"]);
    refused(
        "--model m --device emulated --policy best",
        Exit::Usage,
        &["best", "two-split", "lia"],
    );
    refused("--model m --split q:out", Exit::Usage, &["--device emulated"]);
    refused(
        "--model m --device emulated --split q: --policy gpu-only",
        Exit::Usage,
        &["two-split"],
    );
    refused("--model m --device emulated --split q: --split-chunks 8", Exit::Usage, &["scores="]);
    refused("--model m --split-chunks scores=8", Exit::Usage, &["--split"]);
}

#[test]
fn help_teaches_and_everything_else_is_refused() {
    let Err(EarlyExit::Help(help)) = parse(words("--help")) else { panic!("help") };
    for word in
        ["Examples:", "Exit codes:", "--batches", "4x15", "temperature (0", "130", "token_ids"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(!help.contains("worker <"), "the hidden command shows: {help}");
    for (words, taught) in [("plan --help", "--tables layer.json"), ("profile --help", "--force")] {
        let found = parse(words.split(' ').fold(vec!["coordinator"], |mut all, word| {
            all.push(word);
            all
        }));
        let Err(EarlyExit::Help(text)) = found else { panic!("{words}") };
        assert!(text.contains(taught) && text.contains("Examples:"), "{text}");
    }
    let Err(EarlyExit::Help(version)) = parse(words("--version")) else { panic!("version") };
    assert_eq!(version, format!("coordinator {}\n", env!("CARGO_PKG_VERSION")));
    refused("", Exit::Usage, &["--model"]);
    refused("--model m --frobnicate", Exit::Usage, &["--frobnicate"]);
    refused("--model m --dtype f16", Exit::Usage, &["bf16"]);
    refused("--model m --layers 0", Exit::Usage, &["--layers"]);
    refused("--model m -q -v", Exit::Usage, &["--quiet"]);
}

#[test]
fn the_worker_subcommand() {
    let worker = Command::Worker { role: "cpu".to_owned(), channel: 5 };
    assert_eq!(parse(words("worker cpu 5")).unwrap(), worker);
}

#[test]
fn batches_are_no_larger_than_their_sequences() {
    let cases = [
        ((4, 15), 1000, (4, 15)),
        ((4, 15), 60, (4, 15)),
        ((4, 15), 21, (4, 6)),
        ((4, 15), 3, (3, 1)),
        ((300, 300), 2, (2, 1)),
        ((1, 32), 5, (1, 5)),
        ((2, 2), 0, (1, 1)),
    ];
    for ((count, size), sequences, (fewer, smaller)) in cases {
        let fitted = Batches { count, size }.clamp_to_sequences(sequences);
        assert_eq!(fitted, Batches { count: fewer, size: smaller }, "{count}x{size}, {sequences}");
    }
}

#[test]
fn a_described_machine_is_asked_as_plan_asks_it() {
    let what = "--machine spr-a100 --model opt-30b --layers 4 --split-chunks scores=8";
    let command = |line: String| match parse(words(&line)) {
        Ok(command) => command,
        Err(error) => panic!("{line}: {error:?}"),
    };
    let Command::Timed(timed) = command(format!("{what} --device emulated:timed --json")) else {
        panic!("not timed")
    };
    let Command::Plan(plan) = command(format!("plan {what} --json")) else { panic!("no plan") };
    let TimedSource::Machine { machine, workload: timed } = timed.source else {
        panic!("not of a machine")
    };
    let PlanSource::Machine { machine: planned, workload: plan } = plan.source else {
        panic!("not of a machine")
    };
    assert_eq!(machine, planned);
    let given = BatchesChoice::Fixed(Batches { count: 1, size: 32 });
    assert_eq!((plan.batches, &plan.compress), (given, &None));
    assert_eq!(timed, plan);
    refused("--machine spr-a100 --model x", Exit::Usage, &["--device emulated:timed"]);
    refused("--machine spr-a100 --device emulated:timed", Exit::Usage, &["--model"]);
}

#[test]
fn a_described_machine_serves_where_it_is_asked_to() {
    let line = "plan --serve --machine g5-16xlarge --model m --input-len 1000 --rate 2 --json";
    let Ok(Command::Plan(plan)) = parse(words(line)) else { panic!("no plan") };
    let PlanSource::Serving { machine, serving } = plan.source else { panic!("it does not serve") };
    assert_eq!((machine.as_str(), plan.json, serving.load.requests), ("g5-16xlarge", true, None));
    let lengths = LengthsChoice::Fixed { prompt_tokens: 1000, answer_tokens: 128 };
    assert_eq!((serving.load.lengths, serving.load.rate), (lengths, Some(Rate::PerSecond(2.0))));
    let serve = |more: &str| format!("plan --model m {more}");
    refused(&serve("--serve"), Exit::Usage, &["--machine"]);
    refused(&serve("--machine x --trace t.csv"), Exit::Usage, &["--serve"]);
    let both = serve("--machine x --serve --trace t.csv --input-len 9");
    refused(&both, Exit::Usage, &["--input-len"]);
    refused(&serve("--machine x --serve --policy lia"), Exit::Usage, &["--policy"]);
    refused(&serve("--machine x --serve --chart c.json"), Exit::Usage, &["--timed"]);
    refused(&serve("--machine x --serve --device-slots 2"), Exit::Usage, &["--timed"]);
    let timed = serve("--machine x --serve --timed neo --device-slots 2 --chart c.json");
    let Ok(Command::Plan(plan)) = parse(words(&timed)) else { panic!("no plan") };
    let PlanSource::Serving { serving, .. } = plan.source else { panic!("it does not serve") };
    let replay = TimedReplay { policy: SchedulingPolicy::Neo, device_slots: Some(2) };
    assert_eq!(serving.timed, Some(replay));
}

#[test]
fn a_server_that_measured_is_planned_for_without_a_machine() {
    let line = "plan --serve --costs c.json --requests 9 --input-len 700 --output-len 20";
    let Ok(Command::Plan(plan)) = parse(words(line)) else { panic!("no plan") };
    let PlanSource::MeasuredServer { costs, load } = plan.source else { panic!("no costs") };
    assert_eq!((costs.to_str(), load.requests), (Some("c.json"), Some(9)));
    refused("plan --costs c.json", Exit::Usage, &["--serve"]);
    refused("plan --serve --costs c.json --machine x --model m", Exit::Usage, &["--costs"]);
    refused("serve --model m --costs c.json", Exit::Usage, &["--host-attention"]);
}

#[test]
fn a_description_is_of_a_machine_with_a_device() {
    let export = |rest: &str| format!("profile --model m --export m.toml {rest}");
    let Ok(Command::Profile(request)) = parse(words(&export("--device emulated"))) else {
        panic!("refused")
    };
    assert_eq!(request.export.as_deref(), Some(std::path::Path::new("m.toml")));
    refused(&export("--device none"), Exit::Usage, &["--export", "--device emulated"]);
    refused(&export("--device emulated --dtype f32"), Exit::Usage, &["--export", "bf16"]);
}

#[test]
fn a_server_is_this_machines_alone_unless_it_is_told_otherwise() {
    let served = |line: &str| match parse(words(line)) {
        Ok(Command::Serve(request)) => *request,
        other => panic!("{other:?}"),
    };
    let plain = served("serve --model opt-125m --device none");
    assert_eq!((plain.host.as_str(), plain.port), ("127.0.0.1", 8000));
    assert_eq!((plain.server.timeout, &plain.server.log), (None, &None));
    let line = "serve --model opt-125m --device none --cpu-threads 2 --dram 4GiB --seed 3 \
                --host 0.0.0.0 --port 0 --api-key s3cret --max-queue 5 --timeout 9 --slots 4 \
                --served-model-name a --served-model-name b --log -";
    let request = served(line);
    assert_eq!((request.options.cpu_threads, request.options.seed), (Some(2), 3));
    assert_eq!(request.options.dram_bytes, Some(4 << 30));
    assert_eq!((request.slots, request.names.len()), (Some(4), 2));
    assert_eq!((request.server.max_queue, request.server.seed), (5, 3));
    assert_eq!(request.server.log, Some(LogTarget::StandardError));
    let key = request.server.api_key.as_ref().expect("given");
    assert!(key.matches_header(b"Bearer s3cret"));
    assert!(!format!("{request:?}").contains("s3cret"), "nothing prints the key");
    assert_eq!(request.hybrid, None);
    let beside = served("serve --model m --device emulated --host-attention neo --device-slots 2");
    assert_eq!(beside.hybrid, Some((scheduler::hybrid::SchedulingPolicy::Neo, Some(2))));
    let alone = "serve --model m --device none --host-attention auto";
    refused(alone, Exit::Usage, &["--host-attention", "--device emulated"]);
    refused("serve --model m --host-attention quick", Exit::Usage, &["neo", "fastdecode"]);
    refused("serve --model m --device-slots 2", Exit::Usage, &["--host-attention"]);
    for wrong in ["serve", "serve --model m --timeout 0", "serve --model m --input a.jsonl"] {
        assert!(parse(words(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn a_load_is_alike_from_a_table_or_a_trace() {
    let meant = |line: &str| match parse(words(line)) {
        Ok(Command::BenchServe(request)) => *request,
        other => panic!("{line}: {other:?}"),
    };
    let plain = meant("bench-serve");
    assert_eq!((plain.target.authority().as_str(), plain.rate), ("127.0.0.1:8000", None));
    assert_eq!(plain.lengths, LengthsChoice::Fixed { prompt_tokens: 512, answer_tokens: 128 });
    assert_eq!((plain.slo, plain.requests, plain.api), (Slo::default(), None, Api::Openai));
    let all = meant(
        "bench-serve --url http://localhost:9/v1 --api llama --model m --api-key secret \
         --timeout 5 --rate 2.5 --requests 7 --lengths a.csv --vocab-size 9 --seed 3 \
         --slo-ttft 500 --slo-ttft-per-token 0.5 --slo-tpot 50 --json",
    );
    assert_eq!((all.api, all.rate), (Api::Llama, Some(Rate::PerSecond(2.5))));
    assert_eq!(all.lengths, LengthsChoice::Rows("a.csv".into()));
    assert_eq!(all.slo.per_prompt_token, Duration::from_micros(500));
    assert_eq!((all.requests, all.vocab_size, all.seed, all.json), (Some(7), 9, 3, true));
    assert_eq!(all.authorization.as_ref().expect("a key"), "Bearer secret");
    assert!(!format!("{all:?}").contains("secret"));
    assert_eq!(meant("bench-serve --trace t.csv").lengths, LengthsChoice::Trace("t.csv".into()));
    refused("bench-serve --trace t --input-len 3", Exit::Usage, &["--trace", "--input-len"]);
    refused("bench-serve --rate 0", Exit::Usage, &["inf"]);
    refused("bench-serve --url localhost", Exit::Usage, &["http://127.0.0.1:8000"]);
}

#[test]
fn shells_and_man_know_the_commands_and_options_that_users_have() {
    use clap_complete::Shell;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = text(super::shell::completions(shell));
        for known in ["bench-serve", "max-tokens", "step-ms", "two-split", "completions"] {
            // The script for fish names only values of enums, and a policy is not one.
            let is_said = script.contains(known) || known == "two-split";
            assert!(is_said, "{shell}: {known}");
        }
        for hidden in ["open-device-memory", "read-to-device", "worker process"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
    // Hyphens are escaped in pages.
    let page =
        |command| super::shell::render_man_page(command).map(|page| text(page).replace('\\', ""));
    let whole = page(None).expect("a page");
    for known in [".TH coordinator 1", "--max-tokens", "coordinator-serve(1)", "Exit codes:"] {
        assert!(whole.contains(known), "{known}: {whole}");
    }
    let serve = page(Some("serve")).expect("a page");
    for known in [".TH coordinator-serve 1", "--step-ms", "coordinator serve"] {
        assert!(serve.contains(known), "{known}: {serve}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    super::shell::write_man_pages(&folder.path().join("man1")).expect("writable");
    let written = |name: &str| std::fs::read(folder.path().join("man1").join(name)).ok();
    assert_eq!(written("coordinator.1"), super::shell::render_man_page(None).ok());
    assert_eq!(written("coordinator-serve.1"), super::shell::render_man_page(Some("serve")).ok());
    assert_eq!(written("coordinator-worker.1"), None);
    for missing in ["worker", "nothing"] {
        let error = page(Some(missing)).expect_err("no page").to_string();
        assert!(error.contains(missing) && error.contains("bench-serve"), "{error}");
    }
}

#[test]
fn stdin_is_read_by_one_reader() {
    assert!(!run("--model m").options.stop_at_eof);
    assert!(run("--model m --input i.jsonl --stop-at-eof").options.stop_at_eof);
    refused("--model m --input - --stop-at-eof", Exit::Usage, &["--input -", "--stop-at-eof"]);
    match parse(words("serve --model m --stop-at-eof")) {
        Ok(Command::Serve(request)) => assert!(request.options.stop_at_eof),
        other => panic!("{other:?}"),
    }
    match parse(words("score --model m --input i.jsonl --stop-at-eof")) {
        Ok(Command::Score(request)) => assert!(request.options.stop_at_eof),
        other => panic!("{other:?}"),
    }
    let twice = "score --model m --input - --stop-at-eof";
    refused(twice, Exit::Usage, &["--input -", "--stop-at-eof"]);
}

#[test]
fn prompts_are_kept_where_it_is_said_and_of_what_reads_them() {
    let kept = |line: &str| match parse(words(line)) {
        Ok(Command::Run(run)) => run.options.prompt_cache,
        Ok(Command::Serve(request)) => request.options.prompt_cache,
        Ok(Command::Score(request)) => request.options.prompt_cache,
        other => panic!("{line}: {other:?}"),
    };
    let model = "--model opt-125m --device none";
    let given = "--prompt-cache p --prompt-cache-max 3GiB --prompt-cache-min 9";
    let wanted =
        PromptCacheConfig { directory: "p".into(), max_bytes: Some(3 << 30), min_tokens: 9 };
    for line in ["serve", "score --input a.txt", "--input a.jsonl"] {
        assert_eq!(kept(&format!("{line} {model}")), None);
        assert_eq!(kept(&format!("{line} {model} {given}")), Some(wanted.clone()));
    }
    refused(&format!("{model} --prompt-cache p"), Exit::Usage, &["--input"]);
    refused(&format!("serve {model} --prompt-cache-max 3GiB"), Exit::Usage, &["--prompt-cache"]);
    let reported = format!("{model} --input a.jsonl --report r.json --trace t.json");
    assert!(kept(&format!("{reported} --prompt-cache p")).is_some());
    let selected = format!("serve {model} --kv-select alpha=4,max=0.2 --prompt-cache p");
    refused(&selected, Exit::Usage, &["--kv-select", "--prompt-cache"]);
    refused("cache rm p", Exit::Usage, &["--all", "NAME"]);
    let Ok(Command::Cache(request)) = parse(words("cache rm p ab cd --unused-days 3")) else {
        panic!("refused")
    };
    let names = vec!["ab".to_owned(), "cd".to_owned()];
    let action = CacheAction::Remove { names, model: None, unused_days: Some(3), all: false };
    assert_eq!(request, CacheRequest { directory: "p".into(), action });
}
