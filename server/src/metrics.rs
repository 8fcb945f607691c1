//! Prometheus metrics: numbers that the server counts itself, and the engine's status at the time
//! of the query.

use std::sync::Arc;

use engine_api::serving::{Engine, EngineState, EngineStatus, HybridStepCounts, LaneActivity};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::admission::Admission;
use super::batch_metrics::BatchMetrics;
use super::histograms::{BETWEEN_TOKENS_S, FIRST_TOKEN_S, REQUEST_S, token_buckets};

/// Label of a counter: its name and value.
type Labels = [(&'static str, String); 1];

/// The server's metrics. Times are in seconds.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    /// Time from a request's arrival to its submission to the engine.
    pub preparation: Histogram,
    /// Time from submission until a sequence gets a slot.
    pub queue_time: Histogram,
    /// Time from a request's arrival until its prompt is computed.
    pub prompt_time: Histogram,
    pub request_latency: Histogram,
    pub prompt_tokens: Histogram,
    pub generated_tokens: Histogram,
    pub lost_log_lines: Counter,
    pub batches: BatchMetrics,
    finished: Family<Labels, Counter>,
    refused: Family<Labels, Counter>,
    responses: Family<Labels, Counter>,
}

impl Metrics {
    /// Creates metrics without any observations.
    pub fn new(engine: Arc<dyn Engine>, admission: Arc<Admission>) -> Metrics {
        let context = u64::from(engine.limits().context);
        let of_tokens = || Histogram::new(token_buckets(context));
        let mut registry = Registry::with_prefix("tandem");
        registry.register_collector(Box::new(EngineCollector { engine, admission }));
        let metrics = Metrics {
            registry: Registry::default(),
            first_token: Histogram::new(FIRST_TOKEN_S),
            between_tokens: Histogram::new(BETWEEN_TOKENS_S),
            preparation: Histogram::new(REQUEST_S),
            queue_time: Histogram::new(REQUEST_S),
            prompt_time: Histogram::new(REQUEST_S),
            request_latency: Histogram::new(REQUEST_S),
            prompt_tokens: of_tokens(),
            generated_tokens: of_tokens(),
            lost_log_lines: Counter::default(),
            batches: BatchMetrics::default(),
            finished: Family::default(),
            refused: Family::default(),
            responses: Family::default(),
        };
        metrics.register(&mut registry);
        Metrics { registry, ..metrics }
    }

    fn register(&self, registry: &mut Registry) {
        let mut seconds = |name: &str, help: &str, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        let first = "Time from a request's arrival to the first token of an answer";
        seconds("time_to_first_token", first, &self.first_token);
        let between = "Time between two tokens of an answer";
        seconds("inter_token_latency", between, &self.between_tokens);
        let preparation = "Time from a request's arrival until the engine receives it";
        seconds("request_preparation_time", preparation, &self.preparation);
        let queue = "Time from when the engine receives a request until a sequence has a slot";
        seconds("request_queue_time", queue, &self.queue_time);
        let prompt = "Time from a request's arrival until a prompt is computed, including waiting";
        seconds("request_prompt_time", prompt, &self.prompt_time);
        let whole = "Time from a request's arrival to the end of its last answer";
        seconds("e2e_request_latency", whole, &self.request_latency);
        let prompt = "Prompt tokens of a request";
        registry.register("request_prompt_tokens", prompt, self.prompt_tokens.clone());
        let generated = "Tokens generated for a request";
        registry.register("request_generation_tokens", generated, self.generated_tokens.clone());
        let finished = "Answers by finish reason";
        registry.register("request_success", finished, self.finished.clone());
        let refused = "Requests without complete answers, by error code";
        registry.register("request_refused", refused, self.refused.clone());
        let responses = "HTTP responses by status";
        registry.register("http_responses", responses, self.responses.clone());
        let lost = "Lines of the request log that were dropped";
        registry.register("log_lines_lost", lost, self.lost_log_lines.clone());
        self.batches.register(registry);
    }

    /// Counts an answer by its finish reason.
    pub fn count_finished(&self, reason: &str) {
        self.finished.get_or_create(&[("finished_reason", reason.to_owned())]).inc();
    }

    /// Counts a refused request by the code of its error.
    pub fn count_refused(&self, code: &str) {
        self.refused.get_or_create(&[("reason", code.to_owned())]).inc();
    }

    /// Counts a response by its HTTP status.
    pub fn count_response(&self, status: u16) {
        self.responses.get_or_create(&[("status", status.to_string())]).inc();
    }

    /// Returns all metrics in OpenMetrics' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a text takes everything");
        text
    }
}

/// Collector for the status of the engine and of admission control.
#[derive(Debug)]
struct EngineCollector {
    engine: Arc<dyn Engine>,
    admission: Arc<Admission>,
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = self.engine.status();
        for (name, help, value) in gauges(&status, &self.admission) {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let help = "Time that a lane spent executing instructions";
        let (unit, kind) = (Some(&Unit::Seconds), MetricType::Counter);
        let mut lanes = encoder.encode_descriptor("lane_busy", help, unit, kind)?;
        for LaneActivity { name, busy_ns } in self.engine.lanes() {
            let counter = ConstCounter::new(busy_ns as f64 / 1e9);
            counter.encode(lanes.encode_family(&[("lane", name)])?)?;
        }
        for (name, help, value) in counters(&status) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(
                name,
                help,
                None,
                counter.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

/// Name, description and value of a metric.
type Gauge = (&'static str, &'static str, f64);
type Count = (&'static str, &'static str, u64);

/// Returns the metrics that can rise and fall.
fn gauges(status: &EngineStatus, admission: &Admission) -> Vec<Gauge> {
    let capacity = status.kv_positions.max(1) as f64;
    let used = status.kv_positions_used as f64 / capacity;
    let ready = f64::from(u8::from(status.state == EngineState::Ready));
    vec![
        ("num_requests_running", "Sequences that are running", f64::from(status.running)),
        ("num_requests_waiting", "Sequences that wait for a slot", f64::from(status.waiting)),
        (
            "num_background_running",
            "Sequences of batches that are running",
            f64::from(status.background_running),
        ),
        (
            "num_background_waiting",
            "Sequences of batches that wait for a slot",
            f64::from(status.background_waiting),
        ),
        ("num_requests_open", "Requests that are admitted", admission.requests() as f64),
        (
            "queue_prompt_tokens",
            "Prompt tokens that are not computed yet",
            admission.prompt_tokens() as f64,
        ),
        (
            "prompt_tokens_going",
            "Tokens of prompts in progress",
            status.prompt_progress.tokens as f64,
        ),
        (
            "prompt_tokens_going_computed",
            "Computed tokens of prompts in progress",
            status.prompt_progress.computed_tokens as f64,
        ),
        (
            "prompt_seconds_left",
            "Predicted time until prompts in progress are computed, in seconds",
            status.prompt_progress.remaining_ms as f64 / 1e3,
        ),
        ("kv_cache_usage_perc", "KV cache usage, from 0 to 1", used),
        ("engine_ready", "1 if requests are computed as they arrive, else 0", ready),
        (
            "worker_allocations",
            "Heap allocations of the workers since startup, by grammars and stored prompts",
            status.worker_allocations as f64,
        ),
    ]
}

/// Returns the metrics that only rise.
fn counters(status: &EngineStatus) -> Vec<Count> {
    let HybridStepCounts { gpu, pipelined, deferred, moves_to_host, moves_to_device } =
        status.hybrid_steps;
    vec![
        ("prompt_tokens", "Computed prompt tokens", status.prompt_tokens),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache", status.cached_tokens),
        (
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            status.prompt_tokens + status.cached_tokens,
        ),
        ("generation_tokens", "Generated tokens", status.generated_tokens),
        ("spec_decode_num_draft_tokens", "Verified drafted tokens", status.drafts.verified),
        ("spec_decode_num_accepted_tokens", "Accepted drafted tokens", status.drafts.accepted),
        ("num_preemptions", "Preempted sequences", status.preemptions),
        ("prompt_store_hits", "Sequences with a stored prefix", status.prompt_cache.hits),
        (
            "prompt_store_tokens",
            "Prompt tokens found in the prompt store",
            status.prompt_cache.tokens,
        ),
        (
            "prompt_store_read_bytes",
            "Bytes read from the prompt store",
            status.prompt_cache.read_bytes,
        ),
        (
            "prompt_store_written_bytes",
            "Bytes written to the prompt store",
            status.prompt_cache.written_bytes,
        ),
        (
            "prompt_store_refused",
            "Damaged pages of the prompt store",
            status.prompt_cache.unusable_pages,
        ),
        ("engine_steps", "Engine steps", status.steps),
        ("engine_restarts", "Worker restarts", status.restarts),
        ("iterations_gpu", "Steps with all attention on the device", gpu),
        ("iterations_pipelined", "Steps with concurrent attention on host and device", pipelined),
        ("iterations_async", "Steps in which host rows advanced by one layer", deferred),
        ("kv_moves_to_host", "Sequences whose KV cache moved to host memory", moves_to_host),
        ("kv_moves_to_device", "Sequences whose KV cache moved to device memory", moves_to_device),
    ]
}
