use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fairmesh_model::Prefix;
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::transport::Address;

use super::{network::Runtime, now};

/// Many agents that follow one upstream with the backoff of production, all subscribed to the same few records.
pub(crate) struct Crowd {
    upstream: Address,
    prefix: Prefix,
    seen: Vec<Arc<Mutex<Seen>>>,
    handles: Vec<FollowerHandle>,
    runtime: Runtime,
}

/// Observations of one agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) snapshots: usize,
    /// When the agent last resumed without a snapshot.
    pub(crate) last_back: Option<Instant>,
    pub(crate) keys: BTreeSet<Arc<str>>,
    revision: u64,
    pub(crate) backwards: bool,
}

struct Note(Arc<Mutex<Seen>>);

impl Crowd {
    /// An empty crowd.
    pub(crate) fn new(runtime: Runtime, upstream: Address, prefix: Prefix) -> Self {
        Self { upstream, prefix, seen: Vec::new(), handles: Vec::new(), runtime }
    }

    /// Adds `count` agents, which start to follow.
    pub(crate) fn grow(&mut self, count: usize) {
        let _within = self.runtime.handle.enter();
        for _ in 0..count {
            let config = FollowerConfig {
                transport: Default::default(),
                addresses: vec![self.upstream.clone()],
                software: format!("agent {}", self.seen.len()),
                backoff: Backoff::default(),
                refuse_lagging: true,
            };
            let seen = Arc::<Mutex<Seen>>::default();
            let handle = Follower::spawn(config, Note(seen.clone()));
            handle.subscribe(self.prefix.clone());
            self.handles.push(handle);
            self.seen.push(seen);
        }
    }

    /// Observations of each agent so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.iter().map(|seen| seen.lock().unwrap().clone()).collect()
    }

    /// Sorted delays after `since` at which agents last resumed, and the largest number that resumed within a window of
    /// `within`.
    pub(crate) fn returns(&self, since: Instant, within: Duration) -> (Vec<Duration>, usize) {
        let returned = self.seen().into_iter().filter_map(|seen| seen.last_back);
        let mut returned: Vec<_> = returned.map(|at| at.saturating_duration_since(since)).collect();
        returned.sort_unstable();
        let together = |from: usize| returned[from..].partition_point(|at| *at < returned[from] + within);
        let most = (0..returned.len()).map(together).max().unwrap_or_default();
        (returned, most)
    }
}

impl Sink for Note {
    fn update(&mut self, update: Update) {
        let mut seen = self.0.lock().unwrap();
        seen.backwards |= update.revision.number < seen.revision;
        seen.revision = update.revision.number;
        seen.snapshots += update.snapshots.len();
        let entries = update.snapshots.into_iter().flat_map(|snapshot| snapshot.entries);
        // Keys are never deleted in this test.
        seen.keys.extend(entries.chain(update.puts).map(|(key, _)| key));
        if !update.resumed.is_empty() {
            seen.last_back = Some(now());
        }
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}
