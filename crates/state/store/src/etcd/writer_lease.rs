//! The lease with which exactly one of several processes writes to a store.
//!
//! The `holder` key is attached to the lease, and every write compares the revision that created the key (a fence). A
//! process that was paused for longer than the lease, and does not know yet that another process acquired it,
//! therefore writes nothing. Relying on the clock for writes was rejected: a process can be paused between check and
//! write.
//!
//! For reads the clock suffices, as for leader leases in Raft (Ongaro 2014, 6.4.1). The lease is checked after the
//! request arrived, so the state at the check is a linearizable result, however long the process pauses before it
//! responds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{call_error::CallError, client::RetryPolicy, key_layout::number, state::EtcdState, txn};

/// Interval at which a waiting process checks whether the lease is free.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A lease held by this process.
#[derive(Debug)]
pub(super) struct WriterLease {
    id: i64,
    seconds: u64,
    holder: String,
}

impl WriterLease {
    /// Returns the id of the lease.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// Returns the lease of a process that has not acquired it yet.
    pub(super) fn unheld(holder: &str, ttl: Duration) -> Self {
        Self { id: 0, seconds: seconds(ttl), holder: holder.to_owned() }
    }

    /// Waits until no other process holds the lease, and acquires it with this TTL, rounded up to whole seconds.
    pub(super) async fn acquire(shared: &EtcdState, holder: &str, ttl: Duration) -> Result<Self, CallError> {
        let seconds = seconds(ttl);
        let mut reported = None;
        loop {
            let meta = shared.meta().await?;
            if meta.identity.as_ref() != Some(&shared.identity) {
                return Err(CallError::StoreReplaced);
            }
            if let Some((fence, other)) = meta.holder {
                if reported != Some(fence) {
                    tracing::info!(location = %shared.client.location, holder = other, "standing by: another process holds the writer lease of the store");
                    reported = Some(fence);
                }
            } else if let Some(lease) = Self::try_acquire(shared, (holder, seconds), None).await? {
                tracing::info!(location = %shared.client.location, "this process holds the writer lease of the store");
                return Ok(lease);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Acquires the lease if it is free. With `last`, also requires that nothing was written since that revision.
    async fn try_acquire(
        shared: &EtcdState,
        (holder, seconds): (&str, u64),
        last: Option<u64>,
    ) -> Result<Option<Self>, CallError> {
        let started = Instant::now();
        let id = shared.client.grant(seconds as i64).await?;
        let txn = txn::acquire_lease(shared, last, (id, holder));
        // If the response is lost, the retry finds the lease taken. This lease expires, because nothing renews it.
        let response = shared.client.txn(RetryPolicy::Repeatable, txn).await?;
        if !response.succeeded {
            // Revokes the unused lease, which would otherwise expire by itself.
            let _ = shared.client.revoke(id).await;
            return Ok(None);
        }
        shared.set_fence(response.header.map_or(0, |header| number(header.revision)));
        let lease = Self { id, seconds, holder: holder.to_owned() };
        lease.extend(shared, started);
        Ok(Some(lease))
    }

    /// Records until when no other process can acquire the lease. This is its TTL after `since`, minus a tenth for
    /// clock drift.
    fn extend(&self, shared: &EtcdState, since: Instant) {
        let ttl = Duration::from_secs(self.seconds);
        shared.lease_expiry.send_replace(since + (ttl - ttl / 10));
    }

    /// Renews the lease until another process acquires it, which cannot happen while etcd is unavailable. If the
    /// lease expired and was reacquired, sets `current` to the new id.
    pub(super) async fn keep_alive(mut self, shared: Arc<EtcdState>, current: Arc<AtomicI64>) {
        loop {
            sleep(Duration::from_secs(self.seconds) / 3).await;
            match shared.client.renew(self.id).await {
                Ok(Some(since)) => self.extend(&shared, since),
                Ok(None) => match self.reacquire(&shared).await {
                    Ok(Some(lease)) => {
                        current.store(lease.id, Relaxed);
                        self = lease;
                    }
                    Ok(None) => {
                        return shared.fail(
                            "its writer lease expired, and another process took over since; start again"
                                .into(),
                        );
                    }
                    Err(failure) => {
                        tracing::warn!(location = %shared.client.location, problem = failure.message(), "the writer lease of the store cannot be reacquired");
                    }
                },
                Err(failure) => {
                    let problem = failure.message();
                    tracing::warn!(location = %shared.client.location, problem, "the writer lease of the store cannot be renewed");
                }
            }
        }
    }

    /// Acquires the lease once etcd accepts writes again, then renews it. Sets `current` to the lease's id.
    pub(super) async fn acquire_later(self, shared: Arc<EtcdState>, current: Arc<AtomicI64>) {
        loop {
            sleep(POLL_INTERVAL).await;
            match self.reacquire(&shared).await {
                Ok(Some(lease)) => {
                    tracing::info!(location = %shared.client.location, "the store takes writes; this process holds its writer lease");
                    current.store(lease.id, Relaxed);
                    return lease.keep_alive(shared, current).await;
                }
                Ok(None) => {
                    let reason = "another process took over while it took no writes; start again";
                    return shared.fail(reason.into());
                }
                // The full etcd has already been logged.
                Err(failure) => tracing::debug!(problem = failure.message(), "no writer lease yet"),
            }
        }
    }

    /// Acquires the lease again after it expired, if nothing was written meanwhile.
    async fn reacquire(&self, shared: &EtcdState) -> Result<Option<Self>, CallError> {
        Self::try_acquire(shared, (&self.holder, self.seconds), Some(shared.newest_known())).await
    }
}

/// Converts a TTL to whole seconds, rounded up.
fn seconds(ttl: Duration) -> u64 {
    ttl.as_millis().div_ceil(1000).max(1) as u64
}
