//! Memory accounting for incomplete requests, and for large requests while they are handled.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use crate::connection::WakerSlot;

/// Bounds for the known peers of a process.
const BOUNDS: Bounds =
    Bounds { total: 64 << 20, per_user: 32 << 20, per_connection: 16 << 20, unclaimed: 1024 };
/// Bounds for unknown peers. Their only legitimate messages are those with which an agent joins.
const UNKNOWN_BOUNDS: Bounds =
    Bounds { total: 4 << 20, per_user: 2 << 20, per_connection: 128 << 10, unclaimed: 128 };
/// Minimum size of a claim, which bounds the number of claims.
pub(crate) const MIN_CLAIM: usize = 16 * 1024;
/// Minimum claim of a complete request that waits. It covers its stream, handler and timers.
const MIN_WAIT_CLAIM: usize = 4 * 1024;
/// Maximum number of requests that wait for memory: in total, per user, and per connection. Flow control bounds the
/// bytes that they have sent.
const MAX_WAITING: usize = 256;
const MAX_WAITING_PER_USER: usize = 128;
const MAX_WAITING_PER_CONNECTION: usize = 64;
/// Minimum age of a claim that is revoked in favour of a connection which would then hold as much.
const REVOCABLE_AGE: Duration = Duration::from_secs(5);

/// The memory for incomplete requests of a process. Cheap to clone.
///
/// When memory runs out, a new claim revokes a claim of the connection that holds the most, if it holds more than the
/// claimant; so a flooding connection loses to all others. All connections of one user of this machine count as one in
/// comparison with other users' connections. First come, first served was rejected: a peer that withholds the ends of a
/// few messages would block all others.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    shared: Arc<MemoryState>,
}

/// Bounds of a [`Memory`].
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Maximum bytes of all connections.
    total: usize,
    /// Maximum bytes of all connections of one user of this machine.
    per_user: usize,
    /// Maximum bytes of one connection.
    per_connection: usize,
    /// Number of pending bodies above which each body must claim memory at once.
    unclaimed: usize,
}

#[derive(Debug)]
struct MemoryState {
    bounds: Bounds,
    ledger: Mutex<Ledger>,
    /// Number of pending request bodies.
    pending: AtomicUsize,
    /// Bytes of unread responses.
    unread: AtomicUsize,
}

impl Default for MemoryState {
    fn default() -> Self {
        Self {
            bounds: BOUNDS,
            ledger: Mutex::default(),
            pending: AtomicUsize::new(0),
            unread: AtomicUsize::new(0),
        }
    }
}

/// A connection, with the user of this machine who opened it, if the kernel reports one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) connection: u64,
    pub(crate) user: Option<u32>,
}

#[derive(Debug, Default)]
struct Ledger {
    used: usize,
    next: u64,
    claims: HashMap<u64, Entry>,
    /// Connections that hold claims.
    connections: HashMap<u64, ConnectionClaims>,
    users: HashMap<u32, usize>,
    /// Waiting requests in order of arrival.
    waiting: BTreeMap<u64, WaitingRequest>,
}

/// Claims of one connection. Making room examines each connection only once. A scan of all claims took most of the
/// CPU time of a process whose peers left thousands of requests incomplete.
#[derive(Debug, Default)]
struct ConnectionClaims {
    user: Option<u32>,
    bytes: usize,
    /// Ids of incomplete requests' claims, in order of their grant.
    revocable: BTreeSet<u64>,
}

#[derive(Debug)]
struct WaitingRequest {
    holder: Holder,
    bytes: usize,
    waker: Waker,
}

#[derive(Debug)]
struct Entry {
    holder: Holder,
    bytes: usize,
    since: Instant,
    /// State of an incomplete request; `None` once the request is complete, because memory of a request being handled
    /// is not revoked.
    state: Option<Arc<ClaimState>>,
}

#[derive(Debug, Default)]
struct ClaimState {
    is_revoked: AtomicBool,
    waker: WakerSlot,
}

/// Error: no memory is available, and too many requests already wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Claimed bytes of one request. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Memory,
    id: u64,
    state: Arc<ClaimState>,
}

/// Registration of a request that waits for memory. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct WaitingClaim {
    memory: Memory,
    id: u64,
}

/// A body that its handler waits for, until this value is dropped.
#[derive(Debug)]
pub(crate) struct PendingBody(Memory);

impl Memory {
    /// Creates the separate memory for peers that have presented neither certificate nor token. It takes nothing from
    /// the memory of other peers.
    pub(crate) fn of_unknown_peers() -> Self {
        Self { shared: Arc::new(MemoryState { bounds: UNKNOWN_BOUNDS, ..MemoryState::default() }) }
    }

    /// Number of claimed bytes.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn used(&self) -> usize {
        self.ledger().used
    }

    /// Maximum number of claimed bytes.
    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn total(&self) -> usize {
        self.shared.bounds.total
    }

    /// Bytes of responses that peers have not yet read.
    pub(crate) fn unread(&self) -> &AtomicUsize {
        &self.shared.unread
    }

    /// Wakes all waiting requests, since claims become revocable over time.
    pub(crate) fn wake_all(&self) {
        let waiting: Vec<_> = self.ledger().waiting.values().map(|request| request.waker.clone()).collect();
        waiting.iter().for_each(Waker::wake_by_ref);
    }

    /// Wakes the waiting requests that fit into free memory. Waking all of them was rejected: each would search for
    /// claims to revoke.
    fn wake_fitting(&self) {
        let fitting = self.ledger().fitting(&self.shared.bounds);
        fitting.iter().for_each(Waker::wake_by_ref);
    }

    /// Counts a body as pending. Also returns whether there are so many that each must claim memory at once.
    pub(crate) fn pending_body(&self) -> (PendingBody, bool) {
        let others = self.shared.pending.fetch_add(1, Relaxed);
        (PendingBody(self.clone()), others >= self.shared.bounds.unclaimed)
    }

    /// Claims bytes for a request of a connection. If the claim must wait, it is registered in `waiting`.
    pub(crate) fn poll_claim(
        &self,
        holder: Holder,
        bytes: usize,
        waiting: &mut Option<WaitingClaim>,
        cx: &Context<'_>,
    ) -> Poll<Result<Claim, Exhausted>> {
        let bytes = bytes.max(MIN_CLAIM);
        if bytes > self.shared.bounds.per_connection {
            return Poll::Ready(Err(Exhausted));
        }
        let mut ledger = self.ledger();
        if ledger.make_room(&self.shared.bounds, holder, bytes) {
            let claim = self.grant(&mut ledger, holder, bytes);
            drop(ledger);
            *waiting = None;
            return Poll::Ready(Ok(claim));
        }
        let request = WaitingRequest { holder, bytes, waker: cx.waker().clone() };
        if let Some(WaitingClaim { id, .. }) = waiting {
            ledger.waiting.insert(*id, request);
            return Poll::Pending;
        }
        if !ledger.may_wait(holder) {
            return Poll::Ready(Err(Exhausted));
        }
        ledger.next += 1;
        let id = ledger.next;
        ledger.waiting.insert(id, request);
        *waiting = Some(WaitingClaim { memory: self.clone(), id });
        Poll::Pending
    }

    /// Claims bytes for a complete request that waits. Returns `None` if none are available now.
    pub(crate) fn claim_wait(&self, holder: Holder, bytes: usize) -> Option<Claim> {
        let bytes = bytes.max(MIN_WAIT_CLAIM);
        let mut ledger = self.ledger();
        ledger.make_room(&self.shared.bounds, holder, bytes).then(|| self.grant(&mut ledger, holder, bytes))
    }

    fn grant(&self, ledger: &mut Ledger, holder: Holder, bytes: usize) -> Claim {
        let state = Arc::<ClaimState>::default();
        let entry = Entry { holder, bytes, since: Instant::now(), state: Some(Arc::clone(&state)) };
        ledger.next += 1;
        ledger.used += bytes;
        let id = ledger.next;
        let connection = ledger.connections.entry(holder.connection).or_default();
        connection.user = holder.user;
        connection.bytes += bytes;
        connection.revocable.insert(id);
        if let Some(user) = holder.user {
            *ledger.users.entry(user).or_default() += bytes;
        }
        ledger.claims.insert(id, entry);
        Claim { memory: self.clone(), id, state }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // No code that holds the lock panics.
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Whether another request of this holder may wait for memory.
    fn may_wait(&self, holder: Holder) -> bool {
        let waiting = |is_counted: fn(&Holder, &Holder) -> bool| {
            self.waiting.values().filter(|other| is_counted(&other.holder, &holder)).count()
        };
        self.waiting.len() < MAX_WAITING
            && waiting(|other, holder| other.connection == holder.connection) < MAX_WAITING_PER_CONNECTION
            && waiting(Holder::is_of_same_user) < MAX_WAITING_PER_USER
    }

    /// Returns the wakers of waiting requests that fit without revoking a claim. If not all fit, the first ones are
    /// returned.
    fn fitting(&self, bounds: &Bounds) -> Vec<Waker> {
        let mut free = bounds.total.saturating_sub(self.used);
        let fits = |request: &&WaitingRequest| {
            let WaitingRequest { holder, bytes, .. } = request;
            let is_within = self.of_connection(*holder) + bytes <= bounds.per_connection
                && holder.user.is_none_or(|user| self.of_user(user) + bytes <= bounds.per_user);
            let fits = is_within && *bytes <= free;
            if fits {
                free -= bytes;
            }
            fits
        };
        self.waiting.values().filter(fits).map(|request| request.waker.clone()).collect()
    }

    /// Makes room for `bytes`, by revoking claims if necessary. Returns whether they fit.
    fn make_room(&mut self, bounds: &Bounds, holder: Holder, bytes: usize) -> bool {
        if self.of_connection(holder) + bytes > bounds.per_connection {
            return false;
        }
        // A program's stuck connections must not block the user's other programs.
        while holder.user.is_some_and(|user| self.of_user(user) + bytes > bounds.per_user) {
            if !self.revoke(holder, bytes, |other| other.is_of_same_user(&holder)) {
                return false;
            }
        }
        while self.used + bytes > bounds.total {
            if !self.revoke(holder, bytes, |_| true) {
                return false;
            }
        }
        true
    }

    /// Revokes a claim of a candidate. Returns `false` if none may be revoked.
    fn revoke(&mut self, claimant: Holder, bytes: usize, is_candidate: impl Fn(&Holder) -> bool) -> bool {
        let Some(id) = self.victim(claimant, bytes, is_candidate) else { return false };
        if let Some(Entry { state: Some(state), .. }) = self.release(id) {
            state.is_revoked.store(true, SeqCst);
            state.waker.wake();
        }
        true
    }

    /// Returns the claim to revoke: the oldest claim of the largest connection of the largest user. A connection that
    /// holds no more than the claimant qualifies only if the claim has reached [`REVOCABLE_AGE`].
    fn victim(&self, claimant: Holder, bytes: usize, is_candidate: impl Fn(&Holder) -> bool) -> Option<u64> {
        let now = Instant::now();
        let takable = self.connections.iter().filter_map(|(&connection, claims)| {
            let holder = Holder { connection, user: claims.user };
            let oldest = *claims.revocable.first()?;
            let is_other = connection != claimant.connection && is_candidate(&holder);
            let is_takable = is_other
                && (self.holds_more(holder, claimant, bytes) || self.age(oldest, now) >= REVOCABLE_AGE);
            is_takable.then(|| (self.held(holder), claims.bytes, Reverse(oldest)))
        });
        takable.max().map(|(_, _, Reverse(oldest))| oldest)
    }

    /// Time since the grant of a claim.
    fn age(&self, id: u64, now: Instant) -> Duration {
        self.claims.get(&id).map_or(Duration::ZERO, |entry| now.duration_since(entry.since))
    }

    /// Whether `other` holds more than the claimant would hold with `bytes` more. Compares connections if both belong
    /// to the same user, otherwise users.
    fn holds_more(&self, other: Holder, claimant: Holder, bytes: usize) -> bool {
        match other.is_of_same_user(&claimant) {
            true => self.of_connection(other) > self.of_connection(claimant) + bytes,
            false => self.held(other) > self.held(claimant) + bytes,
        }
    }

    /// Bytes held by all connections of the holder's user; without a user, by the connection.
    fn held(&self, holder: Holder) -> usize {
        holder.user.map_or_else(|| self.of_connection(holder), |user| self.of_user(user))
    }

    fn of_connection(&self, holder: Holder) -> usize {
        self.connections.get(&holder.connection).map_or(0, |claims| claims.bytes)
    }

    fn of_user(&self, user: u32) -> usize {
        self.users.get(&user).copied().unwrap_or_default()
    }

    fn release(&mut self, id: u64) -> Option<Entry> {
        let entry = self.claims.remove(&id)?;
        self.used -= entry.bytes;
        if let Some(claims) = self.connections.get_mut(&entry.holder.connection) {
            claims.bytes -= entry.bytes;
            claims.revocable.remove(&id);
            if claims.bytes == 0 {
                self.connections.remove(&entry.holder.connection);
            }
        }
        if let Some(user) = entry.holder.user
            && let Some(rest) = self.users.get_mut(&user)
        {
            *rest -= entry.bytes;
            if *rest == 0 {
                self.users.remove(&user);
            }
        }
        Some(entry)
    }

    /// Makes a claim irrevocable.
    fn complete(&mut self, id: u64) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        entry.state = None;
        if let Some(claims) = self.connections.get_mut(&entry.holder.connection) {
            claims.revocable.remove(&id);
        }
    }
}

impl Holder {
    fn is_of_same_user(&self, other: &Self) -> bool {
        self.user.is_some() && self.user == other.user
    }
}

impl Claim {
    /// Whether the claim was revoked. If not, the current task is woken once it is.
    pub(crate) fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        self.state.waker.register(cx.waker());
        self.state.is_revoked.load(SeqCst)
    }

    /// Marks the request as complete, so that its claim can no longer be revoked.
    pub(crate) fn complete(&self) {
        self.memory.ledger().complete(self.id);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let released = self.memory.ledger().release(self.id);
        if released.is_some() {
            self.memory.wake_fitting();
        }
    }
}

impl Drop for WaitingClaim {
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
