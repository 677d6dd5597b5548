use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use fairmesh_balancer::poll::PollLimiter;
use fairmesh_model::ServiceName;
use fairmesh_router::{EndpointRef, EndpointStats, ServiceTable};
use hazarc::{ArcBorrow, AtomicArc};
use tokio::sync::Notify;

use super::Budget;

/// What a transport keeps for one endpoint: a handle to its connections, usually. `()` is the transport of those that
/// only decide.
pub trait Lane: Clone + Send + Sync + 'static {
    /// What all lanes of one mesh share.
    type Shared: Clone + Send + Sync + 'static;

    /// Makes the lane to an endpoint; called on the request path, once an endpoint.
    fn open(shared: &Self::Shared, endpoint: EndpointRef) -> Self;

    /// The endpoint was removed, moved to another address or left this client's subset: what is idle goes now, what is
    /// in use when it is done.
    fn retire(&self);

    /// Called now and then: drop what was idle for too long.
    fn tidy(&self);
}

impl Lane for () {
    type Shared = ();

    fn open(_: &(), _: EndpointRef) -> Self {}

    fn retire(&self) {}

    fn tidy(&self) {}
}

/// What is known of one service; one for all handles of a mesh. Readers never wait for the task that writes it.
///
/// What a call needs comes first, so that it lies in one cache line.
#[repr(C, align(64))]
pub struct Subscription<L> {
    /// Borrowed by every call. `hazarc` does what `arc-swap` does, and inlined: 2 to 3 ns of the 50 of a whole decision. An
    /// epoch for all subscriptions would need a fence all the same, and a copy in each thread would keep old snapshots.
    view: AtomicArc<View<L>>,
    pub(super) budget: Budget,
    /// Of all snapshots, so that a try needs none of them to end.
    endpoint_stats: Arc<EndpointStats>,
    /// When servers are asked for their load.
    pub(crate) poll_limiter: PollLimiter,
    /// Whether a server ever refused a call unseen since it had too many: from then on copies are kept to send elsewhere.
    pub(super) refuses: AtomicBool,
    name: ServiceName,
    published: Notify,
}

/// What is known of a service at one moment.
#[derive(Debug)]
// There is one a service, behind an Arc; a box would cost every call another step through memory.
#[allow(clippy::large_enum_variant)]
pub enum View<L> {
    /// Not everything that a decision needs has arrived.
    Waiting,
    /// Nobody declared the service.
    Unknown,
    /// It cannot be learned; says why and what to do.
    Unavailable(String),
    /// Calls can be decided.
    Ready(Ready<L>),
}

/// A compiled snapshot and what hangs on it.
pub struct Ready<L> {
    /// What decides.
    pub upstream: ServiceTable,
    /// The other services that the policy's routes send calls to.
    splits: Vec<Arc<Subscription<L>>>,
    /// By index of the endpoint.
    lanes: Box<[OnceLock<L>]>,
    /// The RIB revision that this snapshot rests on.
    pub revision: u64,
    /// The version of its shard map; 0 without one.
    pub map_version: u64,
    /// Who is asked for the pick instead, where the policy names a lookaside.
    pub lookaside: Option<Arc<str>>,
}

impl<L> Subscription<L> {
    /// A service of which nothing is known yet. A [`Resolver`](super::Resolver) makes those that it follows; whoever
    /// learns records in another way makes and [publishes](Self::publish) its own.
    pub fn new(name: ServiceName) -> Self {
        Self {
            name,
            view: AtomicArc::from(View::Waiting),
            published: Notify::new(),
            budget: Budget::default(),
            endpoint_stats: Arc::default(),
            poll_limiter: PollLimiter::default(),
            refuses: AtomicBool::default(),
        }
    }

    /// The service.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// What its endpoints did and said. Every snapshot that is [published](Self::publish) is compiled with these.
    #[inline]
    pub fn endpoint_stats(&self) -> &Arc<EndpointStats> {
        &self.endpoint_stats
    }

    /// What is known now.
    pub fn view(&self) -> Arc<View<L>> {
        self.view.load_owned()
    }

    /// What is known now, for a moment: cheaper, as long as a thread holds few of them.
    #[inline]
    pub(super) fn look(&self) -> ArcBorrow<View<L>> {
        self.view.load()
    }

    /// Waits until something newer than `seen` is known.
    pub async fn newer(&self, seen: &Arc<View<L>>) {
        let published = self.published.notified();
        // Made first, so that nothing published in between is missed.
        if Arc::ptr_eq(&self.view.load(), seen) {
            published.await;
        }
    }

    /// Waits until the shard map has reached `version`.
    pub async fn map_reaches(&self, version: u64) {
        loop {
            let view = self.view();
            if matches!(&*view, View::Ready(ready) if ready.map_version >= version) {
                return;
            }
            self.newer(&view).await;
        }
    }

    /// Replaces what is known. Calls that began by what was known before end by it.
    pub fn publish(&self, view: View<L>) {
        if let View::Ready(ready) = &view {
            self.budget.rule(&ready.upstream.policy().retries);
        }
        self.view.store(Arc::new(view));
        self.published.notify_waiters();
    }
}

impl<L: Lane> Ready<L> {
    /// A snapshot that takes over the lanes of the one `before` it, and retires those that it has no use for.
    ///
    /// `splits` are the other services that its routes send calls to; `revision` is that of the RIB that it rests on, 0
    /// where there is none.
    pub fn new(
        upstream: ServiceTable,
        splits: Vec<Arc<Subscription<L>>>,
        revision: u64,
        before: Option<&Self>,
    ) -> Self {
        let lanes = Self::lanes_for(&upstream, before);
        let map_version = upstream.shards().map_or(0, |shards| shards.version());
        let lookaside = upstream.policy().lookaside.as_deref().map(Into::into);
        Self { upstream, splits, lanes, revision, map_version, lookaside }
    }

    /// The lane to an endpoint of this snapshot, made when it is first asked for.
    #[inline]
    pub fn lane(&self, index: u32, shared: &L::Shared) -> L {
        let open = || L::open(shared, self.upstream.endpoint_ref(index));
        match self.lanes.get(index as usize) {
            Some(lane) => lane.get_or_init(open).clone(),
            // Unreachable, since there is a place for every candidate; a lane of its own is right all the same.
            None => open(),
        }
    }

    /// Another service that a route of this one sends calls to.
    pub fn split(&self, name: &ServiceName) -> Option<&Arc<Subscription<L>>> {
        self.splits.iter().find(|split| split.name() == name)
    }

    /// The lane to an endpoint of this snapshot, where it was made.
    pub(crate) fn open_lane(&self, index: u32) -> Option<&L> {
        self.lanes.get(index as usize)?.get()
    }

    /// Every lane that was made.
    pub fn open_lanes(&self) -> impl Iterator<Item = &L> {
        self.lanes.iter().filter_map(OnceLock::get)
    }

    fn lanes_for(upstream: &ServiceTable, before: Option<&Self>) -> Box<[OnceLock<L>]> {
        let mut lanes: Vec<OnceLock<L>> = Vec::new();
        for candidate in upstream.candidates() {
            let index = candidate.index as usize;
            if lanes.len() <= index {
                lanes.resize_with(index + 1, OnceLock::new);
            }
            let Some((before, lane)) = before.and_then(|b| Some((b, b.lanes.get(index)?.get()?))) else {
                continue;
            };
            let was = before.upstream.target(candidate.index);
            let same = (was.address, was.protocol) == (candidate.target.address, candidate.target.protocol)
                && was.instance == candidate.target.instance
                && was.metric == candidate.target.metric
                && was.by_latency == candidate.target.by_latency;
            if same && candidate.in_subset {
                let _ = lanes[index].set(lane.clone());
            }
        }
        let kept = |index: usize| lanes.get(index).is_some_and(|lane| lane.get().is_some());
        for (index, lane) in before.into_iter().flat_map(|b| b.lanes.iter().enumerate()) {
            if let (false, Some(lane)) = (kept(index), lane.get()) {
                lane.retire();
            }
        }
        lanes.into()
    }
}

impl<L> fmt::Debug for Ready<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for Subscription<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, sync::Weak, thread};

    use super::*;

    #[test]
    fn a_snapshot_stays_while_somebody_looks_at_it_and_goes_afterwards() {
        const SNAPSHOTS: usize = 20_000;
        let subscription = Subscription::<()>::new(ServiceName::new("shop/cart").unwrap());
        let last = SNAPSHOTS.to_string().repeat(9);
        let look = || loop {
            // More than a thread may borrow at once, let go in the order in which they came.
            let mut held = VecDeque::new();
            for _ in 0..12 {
                held.push_back(subscription.look());
            }
            for view in held {
                let View::Unavailable(text) = &**view else { continue };
                let (number, rest) = text.split_at(text.len() / 9);
                assert_eq!(number.repeat(8), rest, "half of another snapshot");
                if *text == last {
                    return;
                }
            }
        };
        let published: Vec<Weak<_>> = thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(look)));
            let publish = |number: usize| {
                subscription.publish(View::Unavailable(number.to_string().repeat(9)));
                Arc::downgrade(&subscription.view())
            };
            (1..=SNAPSHOTS).map(publish).collect()
        });
        let alive = published.iter().filter(|snapshot| snapshot.strong_count() > 0).count();
        assert_eq!(alive, 1, "only the newest is left");
    }
}
