use std::time::Duration;

use fairmesh_model::{Endpoint, EndpointState, Prefix};
use fairmesh_wire::LogLimiter;
use tokio::time::Instant;

use super::{InstanceRef, states::with_state};
use crate::{InstanceClaim, Registry, RegistryError, leases::Leases, stored_records::StoredEndpoint};

static LOST: LogLimiter = LogLimiter::new();

/// Maximum number of endpoints marked in one batch. A batch of this size fits into a write regardless of the size of
/// the labels.
pub(super) const EXPIRY_BATCH: usize = 100;
/// Delay of a wake-up beyond which this process was suspended, so that renewals could not arrive either.
const STALL: Duration = Duration::from_secs(1);
/// Pause before the next attempt after the store refused writes.
const RETRY: Duration = Duration::from_secs(1);

impl Registry {
    /// Expires leases; never returns.
    pub(crate) async fn run_lease_expiry(&self) {
        // No renewal could arrive while no control plane ran.
        self.for_all_leases(|leases, holder, term| leases.adopt(holder, term, Instant::now()));
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
                    self.on_wake(due, wake).await;
                }
            }
        }
    }

    /// Expires due leases, unless this process woke long after `wake`: renewals are then still in its socket buffers.
    async fn on_wake(&self, due: Instant, wake: Instant) {
        let now = Instant::now();
        if now > wake + STALL {
            tracing::warn!(late = ?(now - wake), "this process was suspended; every lease gets a full term");
            self.for_all_leases(|leases, holder, term| {
                leases.grant(holder, term, now);
            });
        } else if now >= due {
            self.expire_due().await;
        }
    }

    /// Grants every lease anew; lost endpoints are retained from now on.
    fn for_all_leases(&self, grant: impl Fn(&mut Leases, InstanceClaim, Duration)) {
        for held in self.stored_endpoints(&Prefix::everything()) {
            let instance = held.claim();
            match (held.endpoint.lease, held.endpoint.state) {
                (None, _) => {}
                (Some(term), EndpointState::Lost) => {
                    self.leases().adopt_lost(instance, term, Instant::now());
                }
                (Some(term), _) => grant(&mut self.leases(), instance, term),
            }
        }
    }

    async fn expire_due(&self) {
        let now = Instant::now();
        let due = self.leases().due(now, EXPIRY_BATCH);
        if let Err(error) = self.expire(&due, now).await {
            tracing::warn!(%error, "expired leases cannot be marked; retrying");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Whether an endpoint of another service has registered the address since this endpoint last renewed its lease.
    fn is_displaced(&self, held: &StoredEndpoint) -> bool {
        let instance = held.instance_ref();
        let Some(renewed) = self.leases().renewed_at(&instance) else { return false };
        self.is_displaced_since(held, renewed)
    }

    /// Whether an endpoint of another service has registered the address since `renewed`, when this endpoint last
    /// renewed.
    fn is_displaced_since(&self, held: &StoredEndpoint, renewed: Instant) -> bool {
        let (address, instance) = (held.endpoint.address, held.instance_ref());
        let by = self.address_claims().displacing(address, &instance, renewed).cloned();
        by.is_some_and(|by| self.leases().renewed_at(&by).is_some())
    }

    /// Marks endpoints with an expired lease as lost. Removes endpoints that requested their drain themselves, and
    /// endpoints that have long been lost. Endpoints drained by an operator are retained like others, because a
    /// removal would forget the drain. Endpoints reported as lost are retained as long as those with an expired
    /// lease, because failed probes may only mean overload.
    async fn expire(&self, due: &[InstanceRef], now: Instant) -> Result<(), RegistryError> {
        let plan = || {
            let (mut marked, mut removed) = (Vec::new(), Vec::new());
            let (mut ops, mut displaced) = (Vec::new(), Vec::new());
            for held in self.find(due).into_iter().flatten() {
                let instance = held.instance_ref();
                if !self.leases().is_due(&instance, now) {
                    continue;
                }
                if self.is_displaced(&held) {
                    ops.push(held.delete());
                    displaced.push(held);
                    continue;
                }
                let is_drained = held.endpoint.labels.contains_key(Endpoint::DRAINED);
                match held.endpoint.state {
                    state @ (EndpointState::Starting | EndpointState::Serving) => {
                        marked.push((held.clone(), state));
                        ops.push(with_state(&held, EndpointState::Lost, Endpoint::EXPIRED));
                    }
                    EndpointState::Draining if is_drained && !self.leases().is_lost(&instance) => {
                        marked.push((held.clone(), EndpointState::Draining));
                        ops.push(with_state(&held, EndpointState::Lost, Endpoint::EXPIRED));
                    }
                    EndpointState::Lost if !self.leases().is_lost(&instance) => {
                        marked.push((held.clone(), EndpointState::Serving));
                    }
                    EndpointState::Draining | EndpointState::Lost => {
                        ops.push(held.delete());
                        removed.push(held);
                    }
                }
            }
            Ok((ops, (marked, removed, displaced)))
        };
        let (marked, removed, displaced) = self.change(plan).await?.output;
        displaced.iter().for_each(|held| self.forget_displaced(held));
        let (back, displaced) = self.note_lost(marked, now);
        self.remove_displaced(&displaced).await;
        // A lease that is still due no longer has a record.
        let gone: Vec<_> = due.iter().filter(|instance| self.leases().is_due(instance, now)).collect();
        for held in &removed {
            self.address_claims().note_gone(held.endpoint.address, &held.instance_ref());
            self.forget(&held.instance_ref());
        }
        gone.into_iter().for_each(|instance| self.forget(instance));
        if back.is_empty() { Ok(()) } else { self.restore_states(&back).await }
    }

    /// Records which endpoints were marked as lost, with their previous states. Returns the endpoints that renewed
    /// their leases meanwhile, and the endpoints whose addresses other services claimed meanwhile.
    fn note_lost(
        &self,
        marked: Vec<(StoredEndpoint, EndpointState)>,
        now: Instant,
    ) -> (Vec<(InstanceRef, EndpointState)>, Vec<InstanceRef>) {
        let (mut back, mut displaced) = (Vec::new(), Vec::new());
        for (held, before) in marked {
            let instance = held.instance_ref();
            if let Some(left_out) = LOST.next() {
                let InstanceRef { service, instance } = &instance;
                tracing::info!(%service, %instance, left_out, "lost: its lease expired");
            }
            let renewed = self.leases().renewed_at(&instance).unwrap_or(now);
            let address = held.endpoint.address;
            self.address_claims().note_lost(address, &instance, renewed);
            // The endpoint may have renewed while it was being marked.
            if !self.leases().mark_lost(&instance, before, now) {
                back.push((instance, before));
            } else if self.is_displaced_since(&held, renewed) {
                displaced.push(instance);
            }
        }
        (back, displaced)
    }
}
