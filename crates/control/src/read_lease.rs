//! Whether what is served here is all there is, or another control plane may have written since.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

/// How long a read waits for the store to be held again: as long as a write waits for etcd.
const PATIENCE: Duration = Duration::from_secs(10);
/// The least age of what may be old.
const LEAST: Duration = Duration::from_millis(1);

/// The hold of a store that others wait for.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// Until when nobody else can write.
    until: watch::Receiver<Instant>,
    /// Ticks when that time is over, and when it goes on.
    ticks: watch::Sender<u64>,
}

impl Hold {
    pub(crate) fn new(until: watch::Receiver<Instant>) -> Self {
        Self { until, ticks: watch::Sender::new(0) }
    }

    /// How old what is served may be; zero while nobody else can write.
    pub(crate) fn age(&self) -> Duration {
        let (now, until) = (Instant::now(), *self.until.borrow());
        if now < until { Duration::ZERO } else { (now - until).max(LEAST) }
    }

    /// Ticks when the age ceased or began to be zero, if it is [kept](Self::keep).
    pub(crate) fn ages(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    /// Returns at a moment at which nobody else could have written.
    ///
    /// # Errors
    /// Whom to ask instead, where that does not come.
    pub(crate) async fn certain(&self) -> Result<(), String> {
        let mut until = self.until.clone();
        let held = until.wait_for(|until| Instant::now() < *until);
        match timeout(PATIENCE, held).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err("this control plane cannot reach its store in etcd, and another may have taken over and written; \
                      ask that one, or read what was known at a replica"
                .into()),
        }
    }

    /// Tells when the age begins and ceases to be zero, until the store is dropped.
    pub(crate) async fn keep(self) {
        let mut until = self.until.clone();
        let mut known = true;
        loop {
            let end = *until.borrow_and_update();
            let held = Instant::now() < end;
            if held != known {
                known = held;
                self.ticks.send_modify(|ticks| *ticks += 1);
                if held {
                    tracing::info!(
                        "the store is held again, and nobody else wrote: what is served is current"
                    );
                } else {
                    tracing::warn!(
                        "the hold of the store is not renewed: what is served may be old, and is said to be"
                    );
                }
            }
            tokio::select! {
                () = sleep_until(end), if held => {}
                changed = until.changed() => {
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
    async fn what_is_served_ages_from_the_end_of_the_hold_until_it_is_renewed() {
        let (renewal, until) = watch::channel(Instant::now() + 5 * SECOND);
        let hold = Hold::new(until);
        let mut ages = hold.ages();
        tokio::spawn(hold.clone().keep());
        let begun = Instant::now();
        assert_eq!(hold.age(), Duration::ZERO);
        renewal.send_replace(begun + 7 * SECOND);
        ages.changed().await.unwrap();
        assert!(begun.elapsed() >= 7 * SECOND, "a renewal is not the end");
        tokio::time::sleep_until(begun + 9 * SECOND).await;
        assert_eq!(hold.age(), 2 * SECOND);
        renewal.send_replace(begun + 14 * SECOND);
        ages.changed().await.unwrap();
        assert_eq!((hold.age(), Instant::now()), (Duration::ZERO, begun + 9 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_waits_for_the_hold_and_not_for_ever() {
        let (renewal, until) = watch::channel(Instant::now());
        let hold = Hold::new(until);
        let asked = Instant::now();
        let refusal = hold.certain().await.unwrap_err();
        assert_eq!(asked.elapsed(), PATIENCE);
        assert!(refusal.contains("another may have taken over"), "{refusal}");
        let reading = tokio::spawn({
            let hold = hold.clone();
            async move { hold.certain().await }
        });
        tokio::time::sleep(SECOND).await;
        assert!(!reading.is_finished());
        renewal.send_replace(Instant::now() + SECOND);
        assert_eq!(reading.await.unwrap(), Ok(()));
    }
}
