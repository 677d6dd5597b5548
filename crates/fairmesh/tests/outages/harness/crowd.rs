use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fairmesh_model::Prefix;
use fairmesh_rib::{
    Update,
    upstream::{Backoff, Handle, Sink, Upstream, UpstreamConfig},
};
use fairmesh_wire::transport::Address;

use super::{network::Runtime, now};

/// Many agents that follow one upstream with the waits of production, all asking for the same few records.
pub(crate) struct Crowd {
    seen: Vec<Arc<Mutex<Seen>>>,
    _handles: Vec<Handle>,
    _runtime: Runtime,
}

/// What one of them saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) snapshots: usize,
    /// When it last carried on from where it was.
    pub(crate) last_back: Option<Instant>,
    pub(crate) keys: BTreeSet<Arc<str>>,
    revision: u64,
    pub(crate) backwards: bool,
}

struct Note(Arc<Mutex<Seen>>);

impl Crowd {
    pub(crate) fn start(runtime: Runtime, count: usize, upstream: &Address, prefix: &Prefix) -> Self {
        let seen: Vec<_> = (0..count).map(|_| Arc::<Mutex<Seen>>::default()).collect();
        let within = runtime.handle.enter();
        let follow = |(number, seen): (usize, &Arc<Mutex<Seen>>)| {
            let config = UpstreamConfig {
                addresses: vec![upstream.clone()],
                software: format!("agent {number}"),
                backoff: Backoff::default(),
                refuse_lagging: true,
            };
            let handle = Upstream::spawn(config, Note(seen.clone()));
            handle.subscribe(prefix.clone());
            handle
        };
        let handles = seen.iter().enumerate().map(follow).collect();
        drop(within);
        Self { seen, _handles: handles, _runtime: runtime }
    }

    /// What each saw so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.iter().map(|seen| seen.lock().unwrap().clone()).collect()
    }

    /// When each carried on last, after a moment, in order; and how many at most did so within a while.
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
        // Nothing here is ever deleted.
        seen.keys.extend(entries.chain(update.puts).map(|(key, _)| key));
        if !update.resumed.is_empty() {
            seen.last_back = Some(now());
        }
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        panic!("{prefix} was refused: {reason}");
    }
}
