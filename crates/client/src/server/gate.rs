//! Which calls are let in, and which are answered at once since there are too many.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_balancer::{Concurrency, ConcurrencyRule, Ended};
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::{layer::Shared, load::Outstanding};
use crate::{headers::GRPC_STATUS, send::has_erred};

/// How many calls may be under way at one time.
#[derive(Debug)]
pub(super) struct Gate {
    /// Calls and streams.
    most: u32,
    /// A limit for calls alone, which follows how long they take.
    adaptive: Option<Adaptive>,
}

#[derive(Debug)]
struct Adaptive {
    limit: AtomicU32,
    /// How many were refused since it last learnt.
    refused: AtomicU32,
    began: Instant,
    /// Only tried: whoever finds another call just ending here learns nothing from its own, so that none waits.
    learning: Mutex<Concurrency>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { most: u32::MAX, adaptive: None }
    }
}

impl Gate {
    /// Lets `most` in at one time; fewer where `adaptive`, a seed, is given and calls take too long.
    pub(super) fn new(most: Option<u32>, adaptive: Option<u64>) -> Self {
        let adaptive = adaptive.map(|seed| {
            let rule = ConcurrencyRule::default();
            let rule = ConcurrencyRule { most: most.unwrap_or(rule.most), ..rule };
            let learning = Concurrency::new(rule, seed);
            Adaptive {
                limit: learning.limit().into(),
                refused: AtomicU32::default(),
                began: Instant::now(),
                learning: learning.into(),
            }
        });
        Self { most: most.unwrap_or(u32::MAX), adaptive }
    }

    /// Whether there is a bound at all.
    pub(super) fn is_open(&self) -> bool {
        self.most == u32::MAX && self.adaptive.is_none()
    }

    /// How many calls may be under way now; `None` without a bound.
    pub(super) fn limit(&self) -> Option<u32> {
        let adaptive = self.adaptive.as_ref().map(|adaptive| adaptive.limit.load(Relaxed));
        adaptive.or(Some(self.most).filter(|most| *most < u32::MAX))
    }

    /// Whether another call may begin beside what is under way.
    pub(super) fn admits(&self, Outstanding { calls, streams }: Outstanding) -> bool {
        let adapted = self.adaptive.as_ref().is_none_or(|adaptive| calls < adaptive.limit.load(Relaxed));
        adapted && calls.saturating_add(streams) < self.most
    }

    /// A call was refused.
    pub(super) fn refused(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.refused.fetch_add(1, Relaxed);
        }
    }
}

/// The time that a call takes until the head of its answer, where anybody learns from it. Readers who take an answer
/// slowly are no load.
#[derive(Debug)]
pub(super) struct Timed {
    shared: Arc<Shared>,
    began: Instant,
    is_good: bool,
}

impl Timed {
    pub(super) fn begin(shared: &Arc<Shared>) -> Option<Self> {
        shared.gate.adaptive.as_ref()?;
        Some(Self { shared: Arc::clone(shared), began: Instant::now(), is_good: false })
    }

    /// The call is answered. A failure may have taken less than the work does.
    pub(super) fn answered(mut self, status: StatusCode, headers: &HeaderMap) {
        let erred = headers.get(GRPC_STATUS).is_some_and(|status| has_erred(status.as_bytes()));
        self.is_good = !status.is_server_error() && !erred;
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let Some(adaptive) = &self.shared.gate.adaptive else { return };
        let Ok(mut learning) = adaptive.learning.try_lock() else { return };
        let ended = Ended {
            took: nanos(self.began.elapsed()),
            under_way: self.shared.load.outstanding().calls,
            refused: adaptive.refused.swap(0, Relaxed),
            now: nanos(adaptive.began.elapsed()),
        };
        match self.is_good {
            true => learning.ended(ended),
            false => learning.gave_up(ended),
        }
        adaptive.limit.store(learning.limit(), Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
