//! Distribution of each second's requests over servers, compared with fair shares.

use std::collections::VecDeque;

use crate::{registry::Registry, server::Server};

/// Minimum number of fair requests for which a share counts.
const MIN_FAIR_REQUESTS: f64 = 50.0;
/// A server has recovered once it gets this part of its fair share.
const RECOVERED_SHARE: f64 = 0.8;

/// Requests of each second by server, compared with fair shares, which are proportional to the capacity of the servers
/// in a region.
#[derive(Debug)]
pub(crate) struct LoadShares {
    /// Attempts sent in the current second.
    sent: Vec<u32>,
    /// Time since which each server has been listed as serving, if it is.
    serving_since: Vec<Option<u64>>,
    groups: Vec<(String, Vec<u32>)>,
    first_event: u64,
    /// Time after which all callers know of a change.
    propagation: u64,
    /// The worst second after the first event.
    pub(crate) worst: Option<WorstSecond>,
    /// Requests of each server since the first event, and its fair share of them.
    received: Vec<(f64, f64)>,
    recovering: Vec<Recovering>,
    pub(crate) recoveries: Vec<Recovery>,
}

/// The greatest multiple of its fair share that a server got within one second.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorstSecond {
    /// The multiple.
    pub times: f64,
    /// Number of the server.
    pub server: u32,
    /// The second.
    pub second: u64,
}

/// Time in which a server regained its share.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// The server.
    pub server: u32,
    /// Time of its return, in seconds.
    pub from: f64,
    /// Duration in seconds; `None` if it did not recover.
    pub took: Option<f64>,
}

#[derive(Debug)]
struct Recovering {
    server: u32,
    since: u64,
    /// Received requests and fair share of the last seconds.
    seconds: VecDeque<(f64, f64)>,
}

impl LoadShares {
    pub(super) fn new(
        servers: usize,
        groups: Vec<(String, Vec<u32>)>,
        first_event: u64,
        propagation: u64,
    ) -> Self {
        Self {
            sent: vec![0; servers],
            serving_since: vec![None; servers],
            groups,
            first_event,
            propagation,
            worst: None,
            received: vec![(0.0, 0.0); servers],
            recovering: Vec::new(),
            recoveries: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn record_sent(&mut self, server: u32) {
        self.sent[server as usize] += 1;
    }

    pub(super) fn watch(&mut self, server: u32, since: u64) {
        self.recovering.retain(|entry| entry.server != server);
        self.recovering.push(Recovering { server, since, seconds: VecDeque::new() });
    }

    pub(super) fn second(&mut self, now: u64, servers: &[Server], registry: &Registry) {
        let fair = self.fair(now, servers, registry);
        if now > self.first_event {
            self.update_worst(now, &fair);
        }
        self.update_recoveries(now, &fair);
        self.sent.fill(0);
    }

    /// Fair share of each server: its part of its region's requests by capacity, among itself and the servers that
    /// every caller knows. `None` for a server that should get none.
    fn fair(&mut self, now: u64, servers: &[Server], registry: &Registry) -> Vec<Option<f64>> {
        let regions = servers.iter().map(|server| server.region as usize + 1).max().unwrap_or(0);
        let mut settled = vec![0.0; regions];
        let mut total = vec![0.0; regions];
        for (index, server) in servers.iter().enumerate() {
            let since = &mut self.serving_since[index];
            *since = registry.serves(index as u32).then(|| since.unwrap_or(now));
            total[server.region as usize] += f64::from(self.sent[index]);
            if self.is_settled(index, now) {
                settled[server.region as usize] += server.capacity();
            }
        }
        let fair = |(index, server): (usize, &Server)| {
            self.serving_since[index]?;
            let region = server.region as usize;
            let own = if self.is_settled(index, now) { 0.0 } else { server.capacity() };
            Some(total[region] * server.capacity() / (settled[region] + own))
        };
        servers.iter().enumerate().map(fair).collect()
    }

    fn is_settled(&self, index: usize, now: u64) -> bool {
        // Servers that serve from the start are known to all callers.
        self.serving_since[index]
            .is_some_and(|since| since <= 1_000_000_000 || now - since > self.propagation)
    }

    fn update_worst(&mut self, now: u64, fair: &[Option<f64>]) {
        for (index, fair) in fair.iter().enumerate() {
            let Some(fair) = *fair else { continue };
            let sent = f64::from(self.sent[index]);
            self.received[index].0 += sent;
            self.received[index].1 += fair;
            let times = sent / fair.max(f64::MIN_POSITIVE);
            if fair >= MIN_FAIR_REQUESTS && self.worst.is_none_or(|worst| times > worst.times) {
                let second = now / 1_000_000_000 - 1;
                self.worst = Some(WorstSecond { times, server: index as u32, second });
            }
        }
    }

    fn update_recoveries(&mut self, now: u64, fair: &[Option<f64>]) {
        let (sent, recoveries) = (&self.sent, &mut self.recoveries);
        self.recovering.retain_mut(|entry| {
            let index = entry.server as usize;
            entry.seconds.push_back((f64::from(sent[index]), fair[index].unwrap_or(0.0)));
            // Looks back over the shortest time with enough requests.
            let (mut received, mut fair_sum) = (0.0, 0.0);
            for &(sent, fair) in entry.seconds.iter().rev() {
                received += sent;
                fair_sum += fair;
                if fair_sum >= MIN_FAIR_REQUESTS {
                    break;
                }
            }
            let recovered = fair_sum >= MIN_FAIR_REQUESTS && received >= RECOVERED_SHARE * fair_sum;
            if recovered {
                let (from, took) = (seconds(entry.since), Some(seconds(now - entry.since)));
                recoveries.push(Recovery { server: entry.server, from, took });
            }
            !recovered
        });
    }

    /// Each group with the multiple of its fair share that it got since the first event.
    pub(crate) fn group_shares(&self) -> Vec<(String, Option<f64>)> {
        let share = |members: &Vec<u32>| {
            let received: f64 = members.iter().map(|&index| self.received[index as usize].0).sum();
            let fair_sum: f64 = members.iter().map(|&index| self.received[index as usize].1).sum();
            (fair_sum > 0.0).then(|| received / fair_sum)
        };
        self.groups.iter().map(|(name, members)| (name.clone(), share(members))).collect()
    }

    /// All recoveries, including incomplete ones.
    pub(crate) fn recoveries_and_open(&self) -> Vec<Recovery> {
        let open = self.recovering.iter();
        let open =
            open.map(|entry| Recovery { server: entry.server, from: seconds(entry.since), took: None });
        self.recoveries.iter().copied().chain(open).collect()
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
