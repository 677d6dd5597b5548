//! How the requests of each second are shared out, against what would be fair.

use std::collections::VecDeque;

use crate::{directory::Directory, server::Server};

/// A share is judged only where this many requests would be fair.
const ENOUGH: f64 = 50.0;
/// A server has recovered once it gets this part of its fair share.
const RECOVERED: f64 = 0.8;

/// Requests of each second by server, against fair shares: those that follow from the power of the servers of a region.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Sent in the present second.
    sent: Vec<u32>,
    /// Since when each server has been listed as serving, while it is.
    serving_since: Vec<Option<u64>>,
    groups: Vec<(String, Vec<u32>)>,
    first_event: u64,
    /// After this time every caller has heard of a change.
    heard_after: u64,
    /// The worst second after the first event.
    pub(crate) worst: Option<Worst>,
    /// What each server got since the first event, and what would have been fair.
    got: Vec<(f64, f64)>,
    recovering: Vec<Recovering>,
    pub(crate) recoveries: Vec<Recovery>,
}

/// The greatest multiple of its fair share that a server got in one second.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Worst {
    /// The multiple.
    pub times: f64,
    /// The server.
    pub server: u32,
    /// The second.
    pub second: u64,
}

/// How long a server took to get its share again.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// The server.
    pub server: u32,
    /// When it came back, in seconds.
    pub from: f64,
    /// How long it took, in seconds; `None` when it did not come to that.
    pub took: Option<f64>,
}

#[derive(Debug)]
struct Recovering {
    server: u32,
    since: u64,
    /// Of the last seconds: what it got, and what was fair.
    seconds: VecDeque<(f64, f64)>,
}

impl Shares {
    pub(super) fn new(
        servers: usize,
        groups: Vec<(String, Vec<u32>)>,
        first_event: u64,
        heard_after: u64,
    ) -> Self {
        Self {
            sent: vec![0; servers],
            serving_since: vec![None; servers],
            groups,
            first_event,
            heard_after,
            worst: None,
            got: vec![(0.0, 0.0); servers],
            recovering: Vec::new(),
            recoveries: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn sent(&mut self, server: u32) {
        self.sent[server as usize] += 1;
    }

    pub(super) fn watch(&mut self, server: u32, since: u64) {
        self.recovering.retain(|one| one.server != server);
        self.recovering.push(Recovering { server, since, seconds: VecDeque::new() });
    }

    pub(super) fn second(&mut self, now: u64, servers: &[Server], directory: &Directory) {
        let fair = self.fair(now, servers, directory);
        if now > self.first_event {
            self.judge(now, &fair);
        }
        self.recover(now, &fair);
        self.sent.fill(0);
    }

    /// What would be fair for each server: its part of its region's requests by power, among those that every caller
    /// knows of and itself; `None` of one that should get none.
    fn fair(&mut self, now: u64, servers: &[Server], directory: &Directory) -> Vec<Option<f64>> {
        let regions = servers.iter().map(|server| server.region as usize + 1).max().unwrap_or(0);
        let mut settled = vec![0.0; regions];
        let mut total = vec![0.0; regions];
        for (place, server) in servers.iter().enumerate() {
            let since = &mut self.serving_since[place];
            *since = directory.serves(place as u32).then(|| since.unwrap_or(now));
            total[server.region as usize] += f64::from(self.sent[place]);
            if self.is_settled(place, now) {
                settled[server.region as usize] += server.capacity();
            }
        }
        let fair = |(place, server): (usize, &Server)| {
            self.serving_since[place]?;
            let region = server.region as usize;
            let own = if self.is_settled(place, now) { 0.0 } else { server.capacity() };
            Some(total[region] * server.capacity() / (settled[region] + own))
        };
        servers.iter().enumerate().map(fair).collect()
    }

    fn is_settled(&self, place: usize, now: u64) -> bool {
        // What served when the simulation began is known to all.
        self.serving_since[place]
            .is_some_and(|since| since <= 1_000_000_000 || now - since > self.heard_after)
    }

    fn judge(&mut self, now: u64, fair: &[Option<f64>]) {
        for (place, fair) in fair.iter().enumerate() {
            let Some(fair) = *fair else { continue };
            let sent = f64::from(self.sent[place]);
            self.got[place].0 += sent;
            self.got[place].1 += fair;
            let times = sent / fair.max(f64::MIN_POSITIVE);
            if fair >= ENOUGH && self.worst.is_none_or(|worst| times > worst.times) {
                let second = now / 1_000_000_000 - 1;
                self.worst = Some(Worst { times, server: place as u32, second });
            }
        }
    }

    fn recover(&mut self, now: u64, fair: &[Option<f64>]) {
        let (sent, recoveries) = (&self.sent, &mut self.recoveries);
        self.recovering.retain_mut(|one| {
            let place = one.server as usize;
            one.seconds.push_back((f64::from(sent[place]), fair[place].unwrap_or(0.0)));
            // The shortest time up to now in which enough requests would have been fair.
            let (mut got, mut due) = (0.0, 0.0);
            for &(sent, fair) in one.seconds.iter().rev() {
                got += sent;
                due += fair;
                if due >= ENOUGH {
                    break;
                }
            }
            let recovered = due >= ENOUGH && got >= RECOVERED * due;
            if recovered {
                let (from, took) = (seconds(one.since), Some(seconds(now - one.since)));
                recoveries.push(Recovery { server: one.server, from, took });
            }
            !recovered
        });
    }

    /// Each group with the multiple of its fair share that it got since the first event.
    pub(crate) fn of_groups(&self) -> Vec<(String, Option<f64>)> {
        let share = |members: &Vec<u32>| {
            let got: f64 = members.iter().map(|&place| self.got[place as usize].0).sum();
            let due: f64 = members.iter().map(|&place| self.got[place as usize].1).sum();
            (due > 0.0).then(|| got / due)
        };
        self.groups.iter().map(|(name, members)| (name.clone(), share(members))).collect()
    }

    /// All recoveries, those that did not happen included.
    pub(crate) fn recovered(&self) -> Vec<Recovery> {
        let open = self.recovering.iter();
        let open = open.map(|one| Recovery { server: one.server, from: seconds(one.since), took: None });
        self.recoveries.iter().copied().chain(open).collect()
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
