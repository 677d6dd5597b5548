//! The memory of requests that are not complete, or large and being handled.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

/// Bytes of all connections of a process.
const TOTAL: usize = 64 << 20;
/// Bytes of one connection.
const OF_ONE: usize = 16 << 20;
/// The least that is claimed, which bounds how many claims there are: making room looks at all of them.
pub(crate) const LEAST: usize = 16 * 1024;
/// The least that a request holds which is complete and waits for something else: its stream, its handler and timers.
const LEAST_OF_WAIT: usize = 4 * 1024;
/// Requests that wait for memory, of all connections and of one. What they have sent is bounded by their windows.
const WAITING: usize = 256;
const WAITING_OF_ONE: usize = 64;
/// How old a claim is, at least, that is taken back for one on a connection which holds no less.
const OLD: Duration = Duration::from_secs(5);
/// Bodies that are waited for before each has to claim memory at once.
const MANY_BODIES: usize = 4096;

/// What the incomplete requests of a process may hold. Cheap to clone.
///
/// Who needs memory that is not there takes it from the connection that holds the most, if that holds more; so one that floods
/// loses to all others. First come, first served was rejected: whoever withholds the ends of a few messages would shut out all.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    /// Bodies that are waited for.
    pending: AtomicUsize,
    /// Bytes of responses that were not taken.
    untaken: AtomicUsize,
}

#[derive(Debug, Default)]
struct Ledger {
    used: usize,
    next: u64,
    /// In the order in which they were granted.
    claims: BTreeMap<u64, Entry>,
    connections: HashMap<u64, usize>,
    waiting: HashMap<u64, (u64, Waker)>,
}

#[derive(Debug)]
struct Entry {
    connection: u64,
    bytes: usize,
    since: Instant,
    /// `None` once all of the request is here: what is being handled is not taken back.
    state: Option<Arc<ClaimState>>,
}

#[derive(Debug, Default)]
struct ClaimState {
    is_revoked: AtomicBool,
    waker: AtomicWaker,
}

/// There is no memory, and too many wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Bytes of one request, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Memory,
    id: u64,
    state: Arc<ClaimState>,
}

/// A request that waits for memory, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    memory: Memory,
    id: u64,
}

/// A body that is waited for, until this is dropped.
#[derive(Debug)]
pub(crate) struct PendingBody(Memory);

impl Memory {
    /// Bytes that are claimed.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn used(&self) -> usize {
        self.ledger().used
    }

    /// Bytes that may be claimed.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) const fn total(&self) -> usize {
        TOTAL
    }

    /// Bytes of responses that their peers have not taken.
    pub(crate) fn untaken(&self) -> &AtomicUsize {
        &self.shared.untaken
    }

    /// Has those who wait look again.
    pub(crate) fn wake(&self) {
        let waiting: Vec<_> = self.ledger().waiting.values().map(|(_, waker)| waker.clone()).collect();
        waiting.iter().for_each(Waker::wake_by_ref);
    }

    /// A body is waited for. Also says whether there are so many that each has to claim memory at once.
    pub(crate) fn pending_body(&self) -> (PendingBody, bool) {
        let others = self.shared.pending.fetch_add(1, Relaxed);
        (PendingBody(self.clone()), others >= MANY_BODIES)
    }

    /// Claims so many bytes for a request on a connection. Who waits for them keeps its place in `waiting`.
    pub(crate) fn poll_claim(
        &self,
        connection: u64,
        bytes: usize,
        waiting: &mut Option<Waiting>,
        cx: &Context<'_>,
    ) -> Poll<Result<Claim, Exhausted>> {
        let bytes = bytes.clamp(LEAST, OF_ONE);
        let mut ledger = self.ledger();
        if ledger.make_room(connection, bytes, Instant::now()) {
            let claim = self.grant(&mut ledger, connection, bytes);
            drop(ledger);
            *waiting = None;
            return Poll::Ready(Ok(claim));
        }
        if let Some(Waiting { id, .. }) = waiting {
            ledger.waiting.insert(*id, (connection, cx.waker().clone()));
            return Poll::Pending;
        }
        let of_one = ledger.waiting.values().filter(|(other, _)| *other == connection).count();
        if ledger.waiting.len() >= WAITING || of_one >= WAITING_OF_ONE {
            return Poll::Ready(Err(Exhausted));
        }
        ledger.next += 1;
        let id = ledger.next;
        ledger.waiting.insert(id, (connection, cx.waker().clone()));
        *waiting = Some(Waiting { memory: self.clone(), id });
        Poll::Pending
    }

    /// Claims so many bytes for a request that is complete and waits for something else; `None` where there is no room now.
    pub(crate) fn claim_wait(&self, connection: u64, bytes: usize) -> Option<Claim> {
        let bytes = bytes.clamp(LEAST_OF_WAIT, OF_ONE);
        let mut ledger = self.ledger();
        ledger
            .make_room(connection, bytes, Instant::now())
            .then(|| self.grant(&mut ledger, connection, bytes))
    }

    fn grant(&self, ledger: &mut Ledger, connection: u64, bytes: usize) -> Claim {
        let state = Arc::<ClaimState>::default();
        let entry = Entry { connection, bytes, since: Instant::now(), state: Some(Arc::clone(&state)) };
        ledger.next += 1;
        ledger.used += bytes;
        *ledger.connections.entry(connection).or_default() += bytes;
        ledger.claims.insert(ledger.next, entry);
        Claim { memory: self.clone(), id: ledger.next, state }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing that runs under the lock panics.
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Whether there is room, if need be after taking some back.
    fn make_room(&mut self, connection: u64, bytes: usize, now: Instant) -> bool {
        let held = self.connections.get(&connection).copied().unwrap_or_default();
        if held + bytes > OF_ONE {
            return false;
        }
        while self.used + bytes > TOTAL {
            let Some(id) = self.victim(connection, held + bytes, now) else { return false };
            if let Some(Entry { state: Some(state), .. }) = self.release(id) {
                state.is_revoked.store(true, SeqCst);
                state.waker.wake();
            }
        }
        true
    }

    /// The oldest claim of the connection that holds the most; of one that holds no more than is asked for, an old one only.
    fn victim(&self, connection: u64, held: usize, now: Instant) -> Option<u64> {
        let of_others = self.claims.iter().filter(|(_, entry)| entry.connection != connection);
        let takable = of_others.filter(|(_, entry)| {
            entry.state.is_some() && (self.held(entry) > held || now.duration_since(entry.since) >= OLD)
        });
        takable.max_by_key(|(id, entry)| (self.held(entry), std::cmp::Reverse(**id))).map(|(id, _)| *id)
    }

    fn held(&self, entry: &Entry) -> usize {
        self.connections.get(&entry.connection).copied().unwrap_or_default()
    }

    fn release(&mut self, id: u64) -> Option<Entry> {
        let entry = self.claims.remove(&id)?;
        self.used -= entry.bytes;
        if let Some(held) = self.connections.get_mut(&entry.connection) {
            *held -= entry.bytes;
            if *held == 0 {
                self.connections.remove(&entry.connection);
            }
        }
        Some(entry)
    }
}

impl Claim {
    /// Whether it was taken back; if not, the task that asks is woken once it is.
    pub(crate) fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        self.state.waker.register(cx.waker());
        self.state.is_revoked.load(SeqCst)
    }

    /// All of the request is here: it is not taken back any more.
    pub(crate) fn complete(&self) {
        if let Some(entry) = self.memory.ledger().claims.get_mut(&self.id) {
            entry.state = None;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let released = self.memory.ledger().release(self.id);
        if released.is_some() {
            self.memory.wake();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.memory.ledger().waiting.remove(&self.id);
    }
}

impl Drop for PendingBody {
    fn drop(&mut self) {
        self.0.shared.pending.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
