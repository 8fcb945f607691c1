//! Simulation of consecutive iterations.

use std::collections::VecDeque;

use scheduler::hybrid::{
    HostDecision, Iteration, IterationLimits, IterationTimes, IterationWork, LayerCosts,
    QueuedSequence, Queues, SchedulingPolicy, next_iteration,
};

use super::results::{
    ExecutedIteration, LatencyDistribution, ServingResults, window_requests_per_s,
};

/// Arrival of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestArrival {
    pub at_ms: f64,
    /// Number of tokens, at least 1.
    pub prompt_tokens: u32,
    /// Number of tokens, at least 1.
    pub answer_tokens: u32,
}

/// Serves requests in the order of their arrival, to the end of the last one.
pub fn simulate(
    policy: SchedulingPolicy,
    arrivals: &[RequestArrival],
    limits: &IterationLimits,
    costs: &impl LayerCosts,
) -> ServingResults {
    let mut server = SimulatedServer::new(policy, arrivals, limits);
    while server.admit() {
        server.step(policy, limits, costs);
    }
    server.into_results()
}

/// Runs the iterations of a server by another clock: each is decided at its time from `decided_ms`,
/// with the requests that have arrived by then, regardless of the predicted duration of the
/// previous one. Ends when no requests remain.
pub fn replay_decisions(
    policy: SchedulingPolicy,
    arrivals: &[RequestArrival],
    limits: &IterationLimits,
    costs: &impl LayerCosts,
    decided_ms: &[f64],
) -> Vec<ExecutedIteration> {
    let mut server = SimulatedServer::new(policy, arrivals, limits);
    for at_ms in decided_ms {
        server.now_ms = *at_ms;
        server.arrive();
        if server.is_idle() {
            break;
        }
        server.step(policy, limits, costs);
    }
    server.results.iterations
}

/// Known state of a request.
#[derive(Debug, Clone, Copy, Default)]
struct RequestProgress {
    tokens: u32,
    first_ms: f64,
    last_ms: f64,
}

/// A token computed by an iteration, and the side that computed its attention.
#[derive(Debug, Clone, Copy)]
struct Token {
    sequence: QueuedSequence,
    by_host: bool,
}

struct SimulatedServer<'a> {
    arrivals: &'a [RequestArrival],
    arrived: usize,
    progress: Vec<RequestProgress>,
    now_ms: f64,
    waiting: VecDeque<QueuedSequence>,
    device: Vec<QueuedSequence>,
    host: Vec<QueuedSequence>,
    /// Remaining work of the host for deferred rows.
    attention_left_ms: f64,
    policy: SchedulingPolicy,
    limits: IterationLimits,
    decisions: Vec<HostDecision>,
    gaps_ms: [Vec<f64>; 2],
    results: ServingResults,
}

impl<'a> SimulatedServer<'a> {
    fn new(
        policy: SchedulingPolicy,
        arrivals: &'a [RequestArrival],
        limits: &IterationLimits,
    ) -> SimulatedServer<'a> {
        SimulatedServer {
            arrivals,
            arrived: 0,
            progress: vec![RequestProgress::default(); arrivals.len()],
            now_ms: arrivals.first().map_or(0.0, |first| first.at_ms),
            waiting: VecDeque::new(),
            device: Vec::new(),
            host: Vec::new(),
            attention_left_ms: 0.0,
            policy,
            limits: *limits,
            decisions: Vec::new(),
            gaps_ms: [Vec::new(), Vec::new()],
            results: ServingResults::default(),
        }
    }

    /// Admits requests that have arrived, and waits for the next one if there are none. Returns
    /// true if there are any.
    fn admit(&mut self) -> bool {
        loop {
            self.arrive();
            if !self.is_idle() {
                return true;
            }
            let Some(arrival) = self.arrivals.get(self.arrived) else { return false };
            self.now_ms = arrival.at_ms;
        }
    }

    /// Admits requests that have arrived.
    fn arrive(&mut self) {
        while let Some(arrival) = self.arrivals.get(self.arrived) {
            if arrival.at_ms > self.now_ms {
                break;
            }
            self.enqueue(arrival);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.device.is_empty() && self.host.is_empty()
    }

    fn enqueue(&mut self, arrival: &RequestArrival) {
        let id = self.arrived as u32;
        self.arrived += 1;
        let all = arrival.prompt_tokens + arrival.answer_tokens;
        if all > self.limits.rows || self.limits.pages(all) > self.max_pages() {
            self.results.rejected += 1;
            return;
        }
        self.waiting.push_back(QueuedSequence {
            id,
            tokens: arrival.prompt_tokens,
            layer: 0,
            idle_iterations: 0,
        });
        self.results.prompt_tokens += u64::from(arrival.prompt_tokens);
    }

    /// Returns the maximum number of pages that a single sequence may fill.
    fn max_pages(&self) -> u32 {
        let IterationLimits { device_pages, host_pages, .. } = self.limits;
        match self.policy {
            SchedulingPolicy::GpuOnly => device_pages,
            SchedulingPolicy::FastDecode => host_pages,
            SchedulingPolicy::Neo | SchedulingPolicy::Apex | SchedulingPolicy::Auto => {
                device_pages.max(host_pages.saturating_sub(device_pages))
            }
        }
    }

    fn step(
        &mut self,
        policy: SchedulingPolicy,
        limits: &IterationLimits,
        costs: &impl LayerCosts,
    ) {
        self.decisions.resize(self.device.len() + self.host.len(), HostDecision::Waits);
        let queues = Queues {
            waiting: self.waiting.make_contiguous(),
            device: &self.device,
            host: &self.host,
            is_late: self.attention_left_ms > 0.0,
        };
        let iteration = next_iteration(policy, &queues, limits, costs, &mut self.decisions);
        let work = IterationWork::compute(
            &iteration,
            &queues,
            limits.deferred_rows,
            &self.decisions,
            costs,
        );
        let mut times = IterationTimes::compute(&work, iteration.shape, costs);
        if work.partial.sequences > 0 {
            // The attention of deferred rows in their current layer is completed first.
            times.total_ms += std::mem::take(&mut self.attention_left_ms);
        }
        assert!(work.tokens > 0 || times.total_ms > 0.0, "an iteration of nothing");
        self.now_ms += times.total_ms;
        let host_continues = work.deferred.sequences > 0 && !work.waits_for_deferred;
        let begun_ms = if host_continues { times.host_ms } else { 0.0 };
        self.attention_left_ms = (self.attention_left_ms + begun_ms - times.total_ms).max(0.0);
        self.count(&iteration, &work, &times);
        self.apply(&iteration, costs.layers());
    }

    fn count(&mut self, iteration: &Iteration, work: &IterationWork, times: &IterationTimes) {
        let of_shape = &mut self.results.shapes[iteration.shape as usize];
        of_shape.iterations += 1;
        of_shape.ms += times.total_ms;
        let whole = work.rows[0] + work.rows[1] + work.partial.sequences;
        let rows = whole + work.deferred_finished.sequences;
        self.results.iterations.push(ExecutedIteration {
            shape: iteration.shape,
            rows,
            times: *times,
        });
        self.results.busy = self.results.busy.plus(*times);
        let count = self.device.len() + self.host.len();
        let moves_in =
            self.decisions[..count].iter().filter(|place| **place == HostDecision::MovesIn);
        self.results.moves_in += moves_in.count() as u64;
        self.results.moves_out += iteration.moves_out as u64;
        let lost = self.decisions[..count].iter().filter(|place| **place == HostDecision::Evicted);
        self.results.evictions += (iteration.evicted + lost.count()) as u64;
    }

    /// Updates the queues after an iteration.
    fn apply(&mut self, iteration: &Iteration, layers: u32) {
        let mut device = std::mem::take(&mut self.device);
        let moves_out = device.split_off(device.len() - iteration.moves_out);
        let mut evicted = device.split_off(iteration.decodes);
        for sequence in device {
            self.device_token(sequence);
        }
        let old_host = std::mem::take(&mut self.host);
        let with_host = moves_out.into_iter().chain(old_host);
        for (index, sequence) in with_host.enumerate() {
            let waits =
                QueuedSequence { idle_iterations: sequence.idle_iterations + 1, ..sequence };
            match self.decisions[index] {
                HostDecision::Waits => self.host.push(waits),
                HostDecision::Evicted => evicted.push(QueuedSequence { layer: 0, ..sequence }),
                HostDecision::MovesIn => self.device_token(sequence),
                HostDecision::FirstBatch | HostDecision::SecondBatch => self.host_token(sequence),
                HostDecision::Deferred if sequence.layer == layers => self.host_token(sequence),
                HostDecision::Deferred => {
                    let layer = sequence.layer + 1;
                    self.host.push(QueuedSequence { layer, idle_iterations: 0, ..sequence });
                }
            }
        }
        let prefills = iteration.device_prefills + iteration.host_prefills;
        for index in 0..prefills {
            let sequence = self.waiting.pop_front().expect("prompts that waited");
            match index < iteration.device_prefills {
                true => self.device_token(sequence),
                false => self.host_token(sequence),
            }
        }
        for sequence in evicted.into_iter().rev() {
            self.waiting.push_front(QueuedSequence {
                idle_iterations: sequence.idle_iterations + 1,
                ..sequence
            });
        }
    }

    fn device_token(&mut self, sequence: QueuedSequence) {
        if let Some(grown) = self.token(Token { sequence, by_host: false }) {
            self.device.push(grown);
        }
    }

    fn host_token(&mut self, sequence: QueuedSequence) {
        if let Some(grown) = self.token(Token { sequence, by_host: true }) {
            self.host.push(grown);
        }
    }

    /// Counts a token; returns its sequence, unless it was the last token.
    fn token(&mut self, Token { sequence, by_host }: Token) -> Option<QueuedSequence> {
        let progress = &mut self.progress[sequence.id as usize];
        let answer = self.arrivals[sequence.id as usize].answer_tokens;
        if progress.tokens == 0 {
            progress.first_ms = self.now_ms;
        } else {
            self.gaps_ms[usize::from(by_host)].push(self.now_ms - progress.last_ms);
            self.results.host_tokens += u64::from(by_host);
        }
        progress.tokens += 1;
        progress.last_ms = self.now_ms;
        self.results.answer_tokens += 1;
        let grown = QueuedSequence {
            tokens: sequence.tokens + 1,
            layer: 0,
            idle_iterations: 0,
            ..sequence
        };
        (progress.tokens < answer).then_some(grown)
    }

    fn into_results(self) -> ServingResults {
        let done: Vec<(&RequestArrival, &RequestProgress)> =
            self.arrivals.iter().zip(&self.progress).filter(|(_, one)| one.tokens > 0).collect();
        let each = |of: fn(&RequestArrival, &RequestProgress) -> f64| -> Vec<f64> {
            done.iter().map(|(arrival, progress)| of(arrival, progress)).collect()
        };
        let several = done.iter().filter(|(_, progress)| progress.tokens > 1);
        let per_token = several.map(|(_, progress)| {
            (progress.last_ms - progress.first_ms) / f64::from(progress.tokens - 1)
        });
        let latency = each(|arrival, progress| {
            (progress.last_ms - arrival.at_ms) / f64::from(progress.tokens)
        });
        let first_ms = self.arrivals.first().map_or(0.0, |first| first.at_ms);
        let [device_gaps, host_gaps] = self.gaps_ms;
        ServingResults {
            requests: done.len(),
            makespan_ms: self.now_ms - first_ms,
            window_requests_per_s: window_requests_per_s(each(|_, progress| progress.last_ms)),
            first_token: LatencyDistribution::from_samples(each(|arrival, one| {
                one.first_ms - arrival.at_ms
            })),
            per_token: LatencyDistribution::from_samples(per_token.collect()),
            device_gaps: LatencyDistribution::from_samples(device_gaps),
            host_gaps: LatencyDistribution::from_samples(host_gaps),
            latency_per_token_ms: latency.iter().sum::<f64>() / latency.len().max(1) as f64,
            ..self.results
        }
    }
}
