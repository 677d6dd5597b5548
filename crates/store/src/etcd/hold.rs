//! Who alone may write a store, of several processes that have it open.
//!
//! A key that goes with a lease says so, and every write compares the revision that created it: whoever was away for
//! longer than the lease, and does not know yet that another took over, writes nothing. Trusting the clock instead, as in
//! "my lease cannot have run out yet", was rejected: a process can be stopped between the look and the write.
//!
//! For reads the clock is enough, as for the leases of leaders in Raft (Ongaro 2014, 6.4.1): what was all there was at the
//! look, after the question came, is a right answer however long the process stops before it gives it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{client::Again, failure::Failure, layout::number, shared::Shared, write};

/// How often one that waits for the store looks whether it is free.
const LOOK: Duration = Duration::from_millis(500);

/// A lease that keeps the store in one process's hands.
#[derive(Debug)]
pub(super) struct Hold {
    id: i64,
    seconds: u64,
    who: String,
}

impl Hold {
    /// The lease.
    pub(super) fn lease(&self) -> i64 {
        self.id
    }

    /// Waits until nobody else holds the store, and takes it for `term` at a time, rounded up to seconds.
    pub(super) async fn take(shared: &Shared, who: &str, term: Duration) -> Result<Self, Failure> {
        let seconds = term.as_millis().div_ceil(1000).max(1) as u64;
        let mut told = None;
        loop {
            let state = shared.state().await?;
            if state.mark.as_ref() != Some(&shared.mark) {
                return Err(Failure::Replaced);
            }
            if let Some((fence, other)) = state.holder {
                if told != Some(fence) {
                    tracing::info!(place = %shared.client.place, other, "waiting: another process holds the store");
                    told = Some(fence);
                }
            } else if let Some(hold) = Self::claim(shared, (who, seconds), None).await? {
                tracing::info!(place = %shared.client.place, "this process holds the store");
                return Ok(hold);
            }
            sleep(LOOK).await;
        }
    }

    /// Takes the store if it is free and, where `last` is given, nobody wrote since that revision.
    async fn claim(
        shared: &Shared,
        (who, seconds): (&str, u64),
        last: Option<u64>,
    ) -> Result<Option<Self>, Failure> {
        let begun = Instant::now();
        let id = shared.client.grant(seconds as i64).await?;
        let claim = write::claim(shared, last, (id, who));
        // One whose answer is lost finds the store taken when it is made again; the lease, which nobody renews, frees it.
        let answer = shared.client.txn(Again::Always, claim).await?;
        if !answer.succeeded {
            // It would run out by itself; nobody waits for that.
            let _ = shared.client.revoke(id).await;
            return Ok(None);
        }
        shared.fence(answer.header.map_or(0, |header| number(header.revision)));
        let hold = Self { id, seconds, who: who.to_owned() };
        hold.renewed(shared, begun);
        Ok(Some(hold))
    }

    /// Nobody else can take the store before the lease is over, which runs since `since` or later. A tenth less, for clocks
    /// that do not run alike.
    fn renewed(&self, shared: &Shared, since: Instant) {
        let term = Duration::from_secs(self.seconds);
        shared.until.send_replace(since + (term - term / 10));
    }

    /// Renews until the store is lost to somebody else. While etcd is away, nobody can take it. `current` is told of a new
    /// lease.
    pub(super) async fn keep(mut self, shared: Arc<Shared>, current: Arc<AtomicI64>) {
        loop {
            sleep(Duration::from_secs(self.seconds) / 3).await;
            match shared.client.renew(self.id).await {
                Ok(Some(since)) => self.renewed(&shared, since),
                Ok(None) => match self.retake(&shared).await {
                    Ok(Some(hold)) => {
                        current.store(hold.id, Relaxed);
                        self = hold;
                    }
                    Ok(None) => {
                        return shared.broke(
                            "its hold in etcd ran out, and another process took over or wrote since; start the \
                             process again"
                                .into(),
                        );
                    }
                    Err(failure) => {
                        tracing::warn!(place = %shared.client.place, problem = failure.words(), "the store cannot be taken again");
                    }
                },
                Err(failure) => {
                    let problem = failure.words();
                    tracing::warn!(place = %shared.client.place, problem, "the hold of the store cannot be renewed");
                }
            }
        }
    }

    /// Takes the store again after the lease ran out, if nobody wrote since.
    async fn retake(&self, shared: &Shared) -> Result<Option<Self>, Failure> {
        Self::claim(shared, (&self.who, self.seconds), Some(shared.known())).await
    }
}
