//! Decides whether this control plane may still serve linearizable reads, or another one may have written
//! meanwhile.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

/// Time that a read waits for the writer lease to be renewed: as long as a write waits for etcd.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum reported age of data that may be stale.
const MIN_AGE: Duration = Duration::from_millis(1);

/// Decides whether reads are valid, by the writer lease of a store with standby control planes.
#[derive(Clone, Debug)]
pub(crate) struct ReadLease {
    /// Time until which no other process can write.
    expiry: watch::Receiver<Instant>,
    /// Notified when the lease expires, and when it is renewed after that.
    ticks: watch::Sender<u64>,
}

/// Error: the writer lease is not held. Callers get the message.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "this control plane cannot reach its store in etcd, and another one may have taken over; read there, or read possibly stale \
     data from a replica"
)]
pub(crate) struct LeaseNotHeld;

impl ReadLease {
    pub(crate) fn new(expiry: watch::Receiver<Instant>) -> Self {
        Self { expiry, ticks: watch::Sender::new(0) }
    }

    /// Maximum age of the data served; zero while the lease is held.
    pub(crate) fn age(&self) -> Duration {
        let (now, expiry) = (Instant::now(), *self.expiry.borrow());
        if now < expiry { Duration::ZERO } else { (now - expiry).max(MIN_AGE) }
    }

    /// Returns a receiver that is notified when the age becomes zero or nonzero, while
    /// [`watch_expiry`](Self::watch_expiry) runs.
    pub(crate) fn ages(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    /// Waits until the lease is held, so that no other process can have written.
    ///
    /// # Errors
    /// The lease is not held within [`READ_TIMEOUT`].
    pub(crate) async fn wait_held(&self) -> Result<(), LeaseNotHeld> {
        let mut expiry = self.expiry.clone();
        let held = expiry.wait_for(|expiry| Instant::now() < *expiry);
        match timeout(READ_TIMEOUT, held).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(LeaseNotHeld),
        }
    }

    /// Sends the notifications of [`ages`](Self::ages) until the store is dropped.
    pub(crate) async fn watch_expiry(self) {
        let mut expiry = self.expiry.clone();
        let mut known = true;
        loop {
            let end = *expiry.borrow_and_update();
            let held = Instant::now() < end;
            if held != known {
                known = held;
                self.ticks.send_modify(|ticks| *ticks += 1);
                if held {
                    tracing::info!("writer lease renewed and no other process wrote; reads are current");
                } else {
                    tracing::warn!("writer lease expired; reads may be stale, and are marked as such");
                }
            }
            tokio::select! {
                () = sleep_until(end), if held => {}
                changed = expiry.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn data_age_grows_from_read_lease_expiry_until_renewal() {
        let (renewal, expiry) = watch::channel(Instant::now() + 5 * SECOND);
        let read_lease = ReadLease::new(expiry);
        let mut ages = read_lease.ages();
        tokio::spawn(read_lease.clone().watch_expiry());
        let begun = Instant::now();
        assert_eq!(read_lease.age(), Duration::ZERO);
        renewal.send_replace(begun + 7 * SECOND);
        ages.changed().await.unwrap();
        assert!(begun.elapsed() >= 7 * SECOND, "a renewal in time is no expiry");
        tokio::time::sleep_until(begun + 9 * SECOND).await;
        assert_eq!(read_lease.age(), 2 * SECOND);
        renewal.send_replace(begun + 14 * SECOND);
        ages.changed().await.unwrap();
        assert_eq!((read_lease.age(), Instant::now()), (Duration::ZERO, begun + 9 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn linearizable_read_waits_for_lease_up_to_timeout() {
        let (renewal, expiry) = watch::channel(Instant::now());
        let read_lease = ReadLease::new(expiry);
        let began = Instant::now();
        let refusal = read_lease.wait_held().await.unwrap_err();
        assert_eq!(began.elapsed(), READ_TIMEOUT);
        assert!(refusal.to_string().contains("another one may have taken over"), "{refusal}");
        let waiting = tokio::spawn({
            let read_lease = read_lease.clone();
            async move { read_lease.wait_held().await }
        });
        tokio::time::sleep(SECOND).await;
        assert!(!waiting.is_finished());
        renewal.send_replace(Instant::now() + SECOND);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
