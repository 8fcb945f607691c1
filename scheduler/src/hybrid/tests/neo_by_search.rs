//! NEO's rules as in its paper (section 3.2), implemented by exhaustive search: steps 2 and 3 as
//! the largest number that fits, step 4 as the only assignment in which every decision follows the
//! rules, and step 5 as the smallest number of prompts that can be reached. All times are
//! recomputed from the paper's inequalities.

use super::super::{
    DeferredRows, HostDecision, IterationLimits, IterationShape, LayerCosts, QueuedSequence,
    Queues, SchedulingPolicy,
};
use super::{ExactCosts, Random, decided, queued};

/// Sequences of a schedule, by the side that computes their attention.
#[derive(Debug, Clone, Default)]
struct Schedule {
    device: Vec<u32>,
    prompts: Vec<u32>,
    /// The host's sequences in the two batches.
    host: [Vec<u32>; 2],
}

impl Schedule {
    fn rows(&self, batch: usize) -> u32 {
        let own = self.host[batch].len() as u32;
        if batch == 1 {
            return own;
        }
        own + self.device.len() as u32 + self.prompts.iter().sum::<u32>()
    }

    fn requests(&self) -> usize {
        self.device.len() + self.prompts.len() + self.host[0].len() + self.host[1].len()
    }

    /// Returns the time of the first batch's attention on the device.
    fn t_ga0(&self, costs: &ExactCosts) -> f64 {
        let prompts: f64 = self.prompts.iter().map(|one| costs.prefill_attention_ms(*one)).sum();
        let positions = self.device.iter().map(|one| u64::from(*one)).sum();
        prompts + costs.device_decode_ms(positions)
    }

    fn t_ca(&self, batch: usize, costs: &ExactCosts) -> f64 {
        let host = &self.host[batch];
        costs.host_decode_ms(host.len() as u32, host.iter().map(|one| u64::from(*one)).sum())
    }

    fn t_l(&self, batch: usize, costs: &ExactCosts) -> f64 {
        costs.linear_ms(self.rows(batch))
    }

    /// Returns the remaining time in the two inequalities.
    fn slack(&self, costs: &ExactCosts) -> [f64; 2] {
        let launch = costs.launch_ms();
        let first = self.t_l(1, costs) + self.t_ga0(costs) - self.t_ca(0, costs) - launch;
        let second = self.t_l(0, costs) - self.t_ca(1, costs) - launch;
        [first, second]
    }

    fn is_hidden(&self, costs: &ExactCosts) -> bool {
        self.slack(costs).iter().all(|left| *left >= 0.0)
    }

    fn device_ms(&self, costs: &ExactCosts) -> f64 {
        self.t_l(0, costs) + self.t_l(1, costs) + self.t_ga0(costs)
    }
}

/// Result in terms of an iteration.
#[derive(Debug, PartialEq)]
struct Answer {
    shape: IterationShape,
    decodes: usize,
    moves_out: usize,
    evicted: usize,
    device_prefills: usize,
    host_prefills: usize,
    places: Vec<HostDecision>,
}

struct Search<'a> {
    queues: Queues<'a>,
    limits: IterationLimits,
    costs: ExactCosts,
}

impl Search<'_> {
    fn needed(&self, all: &[QueuedSequence]) -> u32 {
        all.iter().map(|one| one.tokens.div_ceil(self.limits.page_positions)).sum()
    }

    fn held(&self, all: &[QueuedSequence]) -> u32 {
        all.iter().map(|one| (one.tokens - 1).div_ceil(self.limits.page_positions)).sum()
    }

    /// Returns the largest number up to `most` for which `holds` returns true.
    fn greatest(most: usize, holds: impl Fn(usize) -> bool) -> usize {
        (0..=most).rev().find(|count| holds(*count)).unwrap_or(0)
    }

    fn answer(&self) -> Answer {
        let Search { queues, limits, .. } = self;
        let (device, host) = (queues.device, queues.host);
        let kept = Self::greatest(device.len(), |kept| {
            kept <= limits.rows as usize && self.needed(&device[..kept]) <= limits.device_pages
        });
        let moves_out = Self::greatest(device.len() - kept, |out| {
            self.held(&device[device.len() - out..]) + self.held(host) <= limits.host_pages
        });
        let used = self.needed(&device[..kept]);
        let moves_in = Self::greatest(if kept == device.len() { host.len() } else { 0 }, |count| {
            let pages = used + self.needed(&host[..count]);
            let is_first = used == 0 && count == 1 && pages <= limits.device_pages;
            let rows = kept + count <= limits.rows as usize;
            rows && (count == 0 || is_first || pages * 100 <= limits.device_pages * 95)
        });
        let with_host: Vec<QueuedSequence> =
            device[device.len() - moves_out..].iter().chain(host).copied().collect();
        let stays = &with_host[moves_in..];
        let decodes = device[..kept].iter().chain(&with_host[..moves_in]);
        let device_tokens: Vec<u32> = decodes.map(|one| one.tokens).collect();
        let used = used + self.needed(&with_host[..moves_in]);
        let (on_device, to_host) = self.prompts(&device_tokens, used, self.held(stays));
        let two = self.two_batches(&device_tokens, on_device, to_host, stays);
        let (assigned, host_prefills) = (two.1, two.2);
        let alone = Schedule { host: Default::default(), ..two.0.clone() };
        let (schedule, assigned) = match self.is_better(&two.0, &alone) {
            true => (two.0, assigned),
            false => (alone, vec![HostDecision::Waits; stays.len()]),
        };
        let mut places = vec![HostDecision::MovesIn; moves_in];
        places.extend(assigned);
        let has_host = !schedule.host[0].is_empty() || !schedule.host[1].is_empty();
        Answer {
            shape: if has_host { IterationShape::Pipelined } else { IterationShape::Gpu },
            decodes: kept,
            moves_out,
            evicted: device.len() - kept - moves_out,
            device_prefills: on_device,
            host_prefills,
            places,
        }
    }

    /// Returns true if the first schedule has the higher throughput (requests over time). The paper
    /// has "T_tr/x" here, but means the higher throughput.
    fn is_better(&self, two: &Schedule, one: &Schedule) -> bool {
        let rate = |schedule: &Schedule| match schedule.requests() {
            0 => 0.0,
            requests => requests as f64 / schedule.device_ms(&self.costs),
        };
        rate(two) > rate(one)
    }

    /// Implements step 3: returns the number of prompts that stay with the device, and of the
    /// following ones that go to the host.
    fn prompts(&self, decodes: &[u32], used: u32, held: u32) -> (usize, usize) {
        let limits = &self.limits;
        let waiting = self.queues.waiting;
        let fit_rows = |count: usize| {
            let tokens: u32 = waiting[..count].iter().map(|one| one.tokens).sum();
            tokens + decodes.len() as u32 <= limits.rows
        };
        let on_device = Self::greatest(waiting.len(), |count| {
            fit_rows(count) && used + self.needed(&waiting[..count]) <= limits.device_pages
        });
        let most = limits.host_pages.saturating_sub(limits.device_pages);
        let to_host = Self::greatest(waiting.len() - on_device, |count| {
            let leaving = &waiting[on_device..on_device + count];
            count == 0 || fit_rows(on_device + count) && held + self.needed(leaving) <= most
        });
        (on_device, to_host)
    }

    /// Implements steps 4 and 5: returns the schedule, the place of each sequence, and the number
    /// of prompts that go to the host.
    fn two_batches(
        &self,
        device: &[u32],
        on_device: usize,
        to_host: usize,
        stays: &[QueuedSequence],
    ) -> (Schedule, Vec<HostDecision>, usize) {
        let waiting = self.queues.waiting;
        let with = |prompts: usize, places: &[HostDecision]| {
            let prompts = waiting[..on_device + prompts].iter().map(|one| one.tokens).collect();
            let mut schedule =
                Schedule { device: device.to_vec(), prompts, host: Default::default() };
            for (one, place) in stays.iter().zip(places) {
                match place {
                    HostDecision::FirstBatch => schedule.host[0].push(one.tokens),
                    HostDecision::SecondBatch => schedule.host[1].push(one.tokens),
                    _ => {}
                }
            }
            schedule
        };
        let leaving = self.needed(&waiting[on_device..on_device + to_host]);
        let pages = leaving + self.held(stays);
        let all = assignments(stays.len());
        let mut right = all.into_iter().filter(|places| {
            (0..stays.len()).all(|index| {
                let before = with(to_host, &places[..index]);
                self.right_place(&before, stays, places, index, pages) == places[index]
            })
        });
        let places = right.next().expect("an assignment");
        assert!(right.next().is_none(), "one assignment only");
        let is_fine = |prompts: usize| {
            let schedule = with(prompts, &places);
            schedule.rows(0) >= 128 && schedule.is_hidden(&self.costs)
        };
        let least =
            (0..=to_host).find(|least| (*least..to_host).all(is_fine)).expect("none is dropped");
        (with(least, &places), places, least)
    }

    /// Returns the place that step 4 assigns to a sequence, given those of the previous ones.
    fn right_place(
        &self,
        before: &Schedule,
        stays: &[QueuedSequence],
        places: &[HostDecision],
        index: usize,
        pages: u32,
    ) -> HostDecision {
        let one = stays[index].tokens;
        // Limits of rows and pages never exclude a sequence that is shorter than those they
        // excluded before.
        let is_passed = |at: usize| places[at] == HostDecision::Waits;
        let is_as_long = (0..index).any(|at| is_passed(at) && one >= stays[at].tokens);
        let rows = before.rows(0) + before.rows(1);
        let grown: u32 = (0..index)
            .filter(|at| places[*at] != HostDecision::Waits)
            .map(|at| self.needed(&stays[at..=at]) - self.held(&stays[at..=at]))
            .sum();
        let grows = self.needed(&stays[index..=index]) - self.held(&stays[index..=index]);
        let has_room = pages + grown + grows <= self.limits.host_pages;
        if is_as_long || rows >= self.limits.rows || !has_room {
            return HostDecision::Waits;
        }
        let batch = if before.host == <[Vec<u32>; 2]>::default() {
            1
        } else {
            let [first, second] = before.slack(&self.costs);
            usize::from(second > first)
        };
        let mut after = before.clone();
        after.host[batch].push(one);
        match (after.is_hidden(&self.costs), batch) {
            (false, _) => HostDecision::Waits,
            (true, 0) => HostDecision::FirstBatch,
            (true, _) => HostDecision::SecondBatch,
        }
    }
}

/// Returns all ways to assign `count` sequences to either batch or none.
fn assignments(count: usize) -> Vec<Vec<HostDecision>> {
    let mut all = vec![Vec::new()];
    for _ in 0..count {
        let each = all.into_iter().flat_map(|places: Vec<HostDecision>| {
            [HostDecision::Waits, HostDecision::FirstBatch, HostDecision::SecondBatch]
                .map(|place| places.iter().copied().chain([place]).collect())
        });
        all = each.collect();
    }
    all
}

/// Returns a random queue of at most `most` sequences.
fn queue(random: &mut Random, most: u32, tokens: (u32, u32), id: &mut u32) -> Vec<QueuedSequence> {
    let count = random.between(0, most);
    let one = |_| {
        *id += 1;
        queued(*id, random.between(tokens.0, tokens.1))
    };
    (0..count).map(one).collect()
}

#[test]
fn neo_is_what_a_search_of_all_schedules_finds() {
    let mut shapes = [0; 3];
    let (mut out, mut moved_in, mut leaving) = (0, 0, 0);
    for seed in 0..6000 {
        let mut random = Random::new(seed);
        let mut id = 0;
        let waiting = queue(&mut random, 4, (1, 70), &mut id);
        let device = queue(&mut random, 4, (2, 40), &mut id);
        let host = queue(&mut random, 4, (2, 40), &mut id);
        let queues = Queues { waiting: &waiting, device: &device, host: &host, is_late: false };
        // Rows and the host's pages are either ample or scarce enough to exclude prompts, but never
        // exclude a decode of the host, a case that the paper does not define.
        let limits = IterationLimits {
            rows: [300, 160, 90][random.between(0, 2) as usize],
            page_positions: [1, 4, 16][random.between(0, 2) as usize],
            device_pages: random.between(12, 60),
            host_pages: [2000, 340][random.between(0, 1) as usize],
            patience: u32::MAX,
            deferred_rows: DeferredRows::SameLayer,
        };
        let costs = ExactCosts {
            weights_ms: [1.0, 4.0, 16.0][random.between(0, 2) as usize],
            host_position_ms: [0.015_625, 0.125, 0.5][random.between(0, 2) as usize],
            launch_ms: [0.0, 0.5, 2.0][random.between(0, 2) as usize],
            ..ExactCosts::PLAIN
        };
        let (iteration, places) = decided(SchedulingPolicy::Neo, &queues, &limits, &costs);
        let expected = Search { queues, limits, costs }.answer();
        let computes = iteration.decodes + iteration.prefills(&queues).len();
        if computes == 0 && !places.contains(&HostDecision::MovesIn) {
            // The device has no work. The paper does not define this case, which has a separate
            // test.
            continue;
        }
        let found = Answer {
            shape: iteration.shape,
            decodes: iteration.decodes,
            moves_out: iteration.moves_out,
            evicted: iteration.evicted,
            device_prefills: iteration.device_prefills,
            host_prefills: iteration.host_prefills,
            places,
        };
        assert_eq!(found, expected, "seed {seed}: {queues:?} {limits:?} {costs:?}");
        shapes[found.shape as usize] += 1;
        out += usize::from(found.moves_out > 0);
        moved_in += usize::from(found.places.contains(&HostDecision::MovesIn));
        leaving += usize::from(found.host_prefills > 0);
    }
    let seen = [shapes[0], shapes[1], out, moved_in, leaving];
    assert!(seen.iter().all(|count| *count > 300), "{seen:?}");
}
