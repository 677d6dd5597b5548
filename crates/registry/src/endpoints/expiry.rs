use std::time::Duration;

use fairmesh_model::{EndpointState, Prefix};
use fairmesh_wire::LogLimiter;
use tokio::time::Instant;

use super::{InstanceRef, states::with_state};
use crate::{Registry, RegistryError};

static LOST: LogLimiter = LogLimiter::new();

/// How many are marked in one batch: so many fit, however large their labels are.
pub(super) const MARKED_AT_ONCE: usize = 100;
/// By how much a wake-up may be late before it shows that this process stood still: then nobody could renew either.
const STALL: Duration = Duration::from_secs(1);
/// How long to wait before the next try when the store did not take the writes.
const RETRY: Duration = Duration::from_secs(1);

impl Registry {
    /// Lets leases run out, for ever.
    pub(crate) async fn watch_leases(&self) {
        self.grant_everybody(Instant::now());
        loop {
            let next = self.leases().next_due();
            let granted = self.shared.lease_granted.notified();
            match next {
                None => granted.await,
                Some(due) => {
                    let wake = due.max(Instant::now());
                    tokio::select! {
                        () = tokio::time::sleep_until(due) => {}
                        () = granted => {}
                    }
                    self.woken(due, wake).await;
                }
            }
        }
    }

    /// Lets run out what is due, unless this process slept well past `wake`: renewals then wait in its sockets.
    async fn woken(&self, due: Instant, wake: Instant) {
        let now = Instant::now();
        if now > wake + STALL {
            tracing::warn!(late = ?(now - wake), "this process stood still; every lease gets a full term");
            self.grant_everybody(now);
        } else if now >= due {
            self.let_run_out().await;
        }
    }

    /// A full term for everybody who has a lease: nobody could renew while no control plane ran.
    fn grant_everybody(&self, now: Instant) {
        for held in self.held(&Prefix::everything()) {
            let who = held.claim();
            match (held.endpoint.lease, held.endpoint.state) {
                (None, _) => {}
                (Some(term), EndpointState::Lost) => self.leases().adopt_lost(who, term, now),
                (Some(term), _) => {
                    self.leases().grant(who, term, now);
                }
            }
        }
    }

    async fn let_run_out(&self) {
        let now = Instant::now();
        let due = self.leases().due(now, MARKED_AT_ONCE);
        if let Err(error) = self.expire(&due, now).await {
            tracing::warn!(%error, "leases ran out and cannot be marked; trying again");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Marks those as lost whose lease ran out. A draining one has left, and one that was lost for long is given up: they
    /// are removed. One that was reported as lost is kept as long as one whose lease ran out, since a server whose probes
    /// fail may only be overloaded.
    async fn expire(&self, due: &[InstanceRef], now: Instant) -> Result<(), RegistryError> {
        let plan = || {
            let (mut marked, mut removed) = (Vec::new(), Vec::new());
            let mut ops = Vec::new();
            for held in self.find(due).into_iter().flatten() {
                let who = held.who();
                if !self.leases().is_due(&who, now) {
                    continue;
                }
                match held.endpoint.state {
                    state @ (EndpointState::Starting | EndpointState::Serving) => {
                        marked.push((who, state));
                        ops.push(with_state(&held, EndpointState::Lost));
                    }
                    EndpointState::Lost if !self.leases().is_lost(&who) => {
                        marked.push((who, EndpointState::Serving));
                    }
                    EndpointState::Draining | EndpointState::Lost => {
                        removed.push(who);
                        ops.push(held.delete());
                    }
                }
            }
            Ok((ops, (marked, removed)))
        };
        let (marked, removed) = self.change(plan).await?.told;
        let mut back = Vec::new();
        for (who, before) in marked {
            if let Some(left_out) = LOST.next() {
                tracing::info!(service = %who.service, instance = %who.instance, left_out, "lost: its lease ran out");
            }
            // It may have renewed while it was being marked.
            if !self.leases().lose(&who, before, now) {
                back.push((who, before));
            }
        }
        // What is still due now has no record any more.
        let gone: Vec<_> = due.iter().filter(|who| self.leases().is_due(who, now)).collect();
        removed.iter().chain(gone).for_each(|who| self.forget(who));
        if back.is_empty() { Ok(()) } else { self.mend(&back).await }
    }
}
