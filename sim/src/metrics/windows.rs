//! Utilisation of servers over windows of time.

use crate::{directory::Directory, scenario::Scenario, server::Server};

/// A server counts for the variation of a minute when it got this many requests in it; of shorter windows, in
/// proportion.
const REQUESTS_A_MINUTE: f64 = 1000.0;
/// Samples of the course of time that are kept, about: more show chance and not the course.
const SAMPLES: u64 = 100;

/// Utilisation is the time that cores worked, as a share of the time that there was, over the servers that were there
/// for the whole window.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// When it begins, in seconds.
    pub from: f64,
    /// Servers that were there.
    pub servers: usize,
    /// Standard deviation over mean, of servers with enough requests (1,000 a minute); `None` below two.
    pub cv: Option<f64>,
    /// Mean.
    pub mean: f64,
    /// Of the server at the 99th percentile.
    pub p99: f64,
    /// Of the most utilised one.
    pub max: f64,
    /// Cores that lie idle since the one at the 99th percentile sets the size of all (Uber, imbalance indicator): (p99 − mean) × cores.
    pub wasted_cores: f64,
    /// Cores in use.
    pub used_cores: f64,
}

/// Collects windows, and a finer course for plots.
#[derive(Debug)]
pub(crate) struct Windows {
    from: u64,
    length: u64,
    enough: f64,
    begun: u64,
    /// At the beginning of the window: busy time, requests, and whether the server serves; by server.
    marks: Vec<Mark>,
    pub(crate) all: Vec<Window>,
    sample_every: u64,
    sampled: u64,
    sampled_busy: Vec<f64>,
    /// By sample: when it ends in nanoseconds, and the utilisation of each server, not a number where it was away.
    pub(crate) samples: Vec<(u64, Vec<f32>)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
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
            enough: REQUESTS_A_MINUTE * length as f64 / 60e9,
            begun: 0,
            marks: Vec::new(),
            all: Vec::new(),
            sample_every: seconds.div_ceil(SAMPLES).max(1) * 1_000_000_000,
            sampled: 0,
            sampled_busy: vec![0.0; servers],
            samples: Vec::new(),
        }
    }

    pub(super) fn second(&mut self, now: u64, servers: &mut [Server], directory: &Directory) {
        if now - self.sampled >= self.sample_every {
            self.sample(now, servers);
        }
        for (place, mark) in self.marks.iter_mut().enumerate() {
            mark.present &= servers[place].up && directory.serves(place as u32);
        }
        if !self.marks.is_empty() && now - self.begun >= self.length {
            self.close(now, servers);
        }
        if self.marks.is_empty() && now >= self.from {
            self.open(now, servers, directory);
        }
    }

    fn open(&mut self, now: u64, servers: &mut [Server], directory: &Directory) {
        self.begun = now;
        let mark = |(place, server): (usize, &mut Server)| Mark {
            busy: server.busy(now),
            received: server.received,
            present: server.up && directory.serves(place as u32),
        };
        self.marks = servers.iter_mut().enumerate().map(mark).collect();
    }

    fn close(&mut self, now: u64, servers: &mut [Server]) {
        let length = (now - self.begun) as f64;
        let (mut all, mut loaded, mut cores, mut used) = (Vec::new(), Vec::new(), 0.0, 0.0);
        for (mark, server) in self.marks.iter().zip(servers).filter(|(mark, _)| mark.present) {
            let busy = server.busy(now) - mark.busy;
            let utilisation = busy / (length * server.cores);
            all.push(utilisation);
            cores += server.cores;
            used += busy / length;
            if (server.received - mark.received) as f64 >= self.enough {
                loaded.push(utilisation);
            }
        }
        self.marks.clear();
        if all.is_empty() {
            return;
        }
        all.sort_by(f64::total_cmp);
        let mean = used / cores;
        // The least that 99 of 100 do not exceed.
        let p99 = all[(all.len() * 99).div_ceil(100) - 1];
        self.all.push(Window {
            from: self.begun as f64 / 1e9,
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
        let length = (now - self.sampled) as f64;
        let mut sample = Vec::with_capacity(servers.len());
        for (before, server) in self.sampled_busy.iter_mut().zip(servers) {
            let busy = server.busy(now);
            let utilisation = ((busy - *before) / (length * server.cores)) as f32;
            *before = busy;
            sample.push(if server.up { utilisation } else { f32::NAN });
        }
        self.sampled = now;
        self.samples.push((now, sample));
    }
}

/// The coefficient of variation, of two or more.
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
    fn variation_is_deviation_over_mean() {
        assert_eq!(variation(&[1.0, 3.0]), Some(0.5));
        assert_eq!(variation(&[2.0]), None);
        assert_eq!(variation(&[0.0, 0.0]), None);
    }
}
