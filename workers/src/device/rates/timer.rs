//! Duration of work on a stream, measured between two events.

use cuda::{Context, CudaError, Event, Stream};

/// Number of repetitions from which the median is taken.
const SAMPLES: usize = 7;

pub(super) struct Timer<'a> {
    pub(super) stream: &'a Stream,
    events: [Event; 2],
}

impl<'a> Timer<'a> {
    pub(super) fn new(context: &Context, stream: &'a Stream) -> Result<Timer<'a>, CudaError> {
        Ok(Timer { stream, events: [Event::new(context)?, Event::new(context)?] })
    }

    /// Returns the median seconds of `work` on the stream, after one warm-up run.
    pub(super) fn median_s(
        &self,
        mut work: impl FnMut() -> Result<(), CudaError>,
    ) -> Result<f64, CudaError> {
        work()?;
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            self.events[0].record(self.stream)?;
            work()?;
            self.events[1].record(self.stream)?;
            self.stream.synchronize()?;
            samples.push(self.events[1].elapsed_ns(&self.events[0])? as f64 / 1e9);
        }
        samples.sort_by(f64::total_cmp);
        // A clock that is too coarse for such a short duration returns 0.
        Ok(samples[SAMPLES / 2].max(1e-9))
    }
}
