//! Utilisation of servers over windows of time.

use crate::{registry::Registry, scenario::Scenario, server::Server};

/// Minimum requests per minute of the window for a server to count in the variation.
const MIN_REQUESTS_PER_MINUTE: f64 = 1000.0;
/// Approximate number of samples of the time series; more would show noise.
const MAX_SAMPLES: u64 = 100;

/// Utilisation in a window: busy time of cores as a share of the time, over the servers present for the whole window.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Start, in seconds.
    pub from: f64,
    /// Servers present.
    pub servers: usize,
    /// Coefficient of variation (standard deviation over mean) of servers with enough requests (1,000 a minute); `None`
    /// for fewer than two.
    pub cv: Option<f64>,
    /// Mean utilisation.
    pub mean: f64,
    /// Utilisation of the server at the 99th percentile.
    pub p99: f64,
    /// Utilisation of the most utilised server.
    pub max: f64,
    /// Cores idle because p99 utilisation determines the size of the fleet (Uber, imbalance indicator): (p99 − mean) ×
    /// cores.
    pub wasted_cores: f64,
    /// Cores in use.
    pub used_cores: f64,
}

/// Collects windows, and a finer time series for plots.
#[derive(Debug)]
pub(crate) struct Windows {
    from: u64,
    length: u64,
    min_requests: f64,
    window_start: u64,
    /// State of each server at the start of the window: busy time, requests, and whether it serves.
    starts: Vec<WindowStart>,
    pub(crate) all: Vec<Window>,
    sample_every: u64,
    last_sample: u64,
    last_busy: Vec<f64>,
    /// Samples: end in nanoseconds, and utilisation of each server (NaN while it was down).
    pub(crate) samples: Vec<(u64, Vec<f32>)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WindowStart {
    busy: f64,
    received: u64,
    present: bool,
}

impl Windows {
    pub(super) fn new(scenario: &Scenario, servers: usize) -> Self {
        let length = scenario.window.nanos();
        let seconds = scenario.duration.nanos() / 1_000_000_000;
        Self {
            from: scenario.warmup.nanos(),
            length,
            min_requests: MIN_REQUESTS_PER_MINUTE * length as f64 / 60e9,
            window_start: 0,
            starts: Vec::new(),
            all: Vec::new(),
            sample_every: seconds.div_ceil(MAX_SAMPLES).max(1) * 1_000_000_000,
            last_sample: 0,
            last_busy: vec![0.0; servers],
            samples: Vec::new(),
        }
    }

    pub(super) fn second(&mut self, now: u64, servers: &mut [Server], registry: &Registry) {
        if now - self.last_sample >= self.sample_every {
            self.sample(now, servers);
        }
        for (index, start) in self.starts.iter_mut().enumerate() {
            start.present &= servers[index].up && registry.serves(index as u32);
        }
        if !self.starts.is_empty() && now - self.window_start >= self.length {
            self.close(now, servers);
        }
        if self.starts.is_empty() && now >= self.from {
            self.open(now, servers, registry);
        }
    }

    fn open(&mut self, now: u64, servers: &mut [Server], registry: &Registry) {
        self.window_start = now;
        let start = |(index, server): (usize, &mut Server)| WindowStart {
            busy: server.busy(now),
            received: server.received,
            present: server.up && registry.serves(index as u32),
        };
        self.starts = servers.iter_mut().enumerate().map(start).collect();
    }

    fn close(&mut self, now: u64, servers: &mut [Server]) {
        let length = (now - self.window_start) as f64;
        let (mut all, mut loaded, mut cores, mut used) = (Vec::new(), Vec::new(), 0.0, 0.0);
        for (start, server) in self.starts.iter().zip(servers).filter(|(start, _)| start.present) {
            let busy = server.busy(now) - start.busy;
            let utilisation = busy / (length * server.cores);
            all.push(utilisation);
            cores += server.cores;
            used += busy / length;
            if (server.received - start.received) as f64 >= self.min_requests {
                loaded.push(utilisation);
            }
        }
        self.starts.clear();
        if all.is_empty() {
            return;
        }
        all.sort_by(f64::total_cmp);
        let mean = used / cores;
        // The smallest value that 99 of 100 do not exceed.
        let p99 = all[(all.len() * 99).div_ceil(100) - 1];
        self.all.push(Window {
            from: self.window_start as f64 / 1e9,
            servers: all.len(),
            cv: variation(&loaded),
            mean,
            p99,
            max: all[all.len() - 1],
            wasted_cores: (p99 - mean) * cores,
            used_cores: used,
        });
    }

    fn sample(&mut self, now: u64, servers: &mut [Server]) {
        let length = (now - self.last_sample) as f64;
        let mut sample = Vec::with_capacity(servers.len());
        for (before, server) in self.last_busy.iter_mut().zip(servers) {
            let busy = server.busy(now);
            let utilisation = ((busy - *before) / (length * server.cores)) as f32;
            *before = busy;
            sample.push(if server.up { utilisation } else { f32::NAN });
        }
        self.last_sample = now;
        self.samples.push((now, sample));
    }
}

/// The coefficient of variation of two or more values.
fn variation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / n;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficient_of_variation_is_standard_deviation_over_mean() {
        assert_eq!(variation(&[1.0, 3.0]), Some(0.5));
        assert_eq!(variation(&[2.0]), None);
        assert_eq!(variation(&[0.0, 0.0]), None);
    }
}
