//! Leases of endpoints. Pure: callers pass `now`.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use fairmesh_model::EndpointState;
use tokio::time::Instant;

use crate::{InstanceClaim, InstanceRef};

/// Time for which a lost endpoint is retained, so that it can return.
pub(crate) const LOST_RETENTION: Duration = Duration::from_secs(600);

/// Time within which agents and servers return to a restarted control plane: each pauses up to 5 s between attempts.
/// Their pauses together may be as long as a lease, so that its term begins after them.
pub(crate) const RETURN_TIME: Duration = Duration::from_secs(10);

/// All leases, by holder and by expiry.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: HashMap<InstanceRef, Lease>,
    order: BTreeSet<(Instant, InstanceRef)>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// The process that holds the lease.
    incarnation: u64,
    term: Duration,
    renewed: Instant,
    due: Instant,
    /// Previous state of a lost endpoint; `None` if the endpoint is not lost.
    lost: Option<EndpointState>,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The lease had not expired, and its term starts anew.
    Renewed,
    /// The lease had expired. The caller must first restore the record, then grant the lease.
    WasLost,
    /// There is no lease, or another process holds it.
    Unknown,
}

impl Leases {
    /// Starts a full term. Returns whether the endpoint was lost before.
    pub(crate) fn grant(&mut self, holder: InstanceClaim, term: Duration, now: Instant) -> bool {
        let InstanceClaim { instance, incarnation } = holder;
        let before = self.remove(&instance);
        self.put(instance, Lease { incarnation, term, renewed: now, due: now + term, lost: None });
        before.is_some_and(|lease| lease.lost.is_some())
    }

    /// Adopts the lease of an endpoint when this control plane begins: a full term, once the holder had the time to return.
    pub(crate) fn adopt(&mut self, holder: InstanceClaim, term: Duration, now: Instant) {
        let InstanceClaim { instance, incarnation } = holder;
        // A holder that has renewed with this process already need not return to it.
        let has_returned = self.remove(&instance).is_some_and(|lease| lease.due > now);
        let pause = if has_returned { Duration::ZERO } else { RETURN_TIME };
        self.put(instance, Lease { incarnation, term, renewed: now, due: now + pause + term, lost: None });
    }

    /// Adds an endpoint whose record says that it is lost, and retains it from `now` on. Has no effect if the
    /// endpoint is already known to be lost.
    pub(crate) fn adopt_lost(&mut self, holder: InstanceClaim, term: Duration, now: Instant) {
        let InstanceClaim { instance, incarnation } = holder;
        if self.is_lost(&instance) {
            return;
        }
        self.remove(&instance);
        let lost = Some(EndpointState::Serving);
        self.put(instance, Lease { incarnation, term, renewed: now, due: now + LOST_RETENTION, lost });
    }

    /// Renews the lease for the process that holds it.
    pub(crate) fn renew(&mut self, holder: &InstanceClaim, now: Instant) -> Renewal {
        match self.leases.get(&holder.instance).copied() {
            Some(lease) if !holder.matches(lease.incarnation) => Renewal::Unknown,
            None => Renewal::Unknown,
            Some(lease) if lease.lost.is_some() => Renewal::WasLost,
            Some(Lease { incarnation, term, .. }) => {
                self.grant(InstanceClaim { incarnation, ..holder.clone() }, term, now);
                Renewal::Renewed
            }
        }
    }

    /// Whether the process holds the lease, even if its endpoint is lost.
    pub(crate) fn is_held_by(&self, holder: &InstanceClaim) -> bool {
        self.leases.get(&holder.instance).is_some_and(|lease| holder.matches(lease.incarnation))
    }

    /// Returns the number of leases, including those of lost endpoints.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether the instance has a lease, even if its endpoint is lost.
    pub(crate) fn is_known(&self, holder: &InstanceRef) -> bool {
        self.leases.contains_key(holder)
    }

    /// Returns when the lease was last renewed; `None` for a lost endpoint or one without a lease.
    pub(crate) fn renewed_at(&self, holder: &InstanceRef) -> Option<Instant> {
        self.leases.get(holder).filter(|lease| lease.lost.is_none()).map(|lease| lease.renewed)
    }

    /// Whether the lease term, or the retention of a lost endpoint, is over.
    pub(crate) fn is_due(&self, holder: &InstanceRef, now: Instant) -> bool {
        self.leases.get(holder).is_some_and(|lease| lease.due <= now)
    }

    /// Whether the endpoint is lost and only retained so that it can return.
    pub(crate) fn is_lost(&self, holder: &InstanceRef) -> bool {
        self.leases.get(holder).is_some_and(|lease| lease.lost.is_some())
    }

    /// Returns at most `most` holders of due leases, the longest due first.
    pub(crate) fn due(&self, now: Instant, most: usize) -> Vec<InstanceRef> {
        self.order
            .iter()
            .take_while(|(due, _)| *due <= now)
            .take(most)
            .map(|(_, holder)| holder.clone())
            .collect()
    }

    /// Returns when the next lease is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Marks the endpoint as lost. Returns false if it renewed meanwhile; the caller must then restore its record.
    pub(crate) fn mark_lost(&mut self, holder: &InstanceRef, before: EndpointState, now: Instant) -> bool {
        let Some(lease) = self.leases.get(holder).copied().filter(|lease| lease.due <= now) else {
            return false;
        };
        self.remove(holder);
        self.put(holder.clone(), Lease { due: now + LOST_RETENTION, lost: Some(before), ..lease });
        true
    }

    /// Returns the endpoint's state before it was lost.
    pub(crate) fn state_before(&self, holder: &InstanceRef) -> EndpointState {
        self.leases.get(holder).and_then(|lease| lease.lost).unwrap_or_default()
    }

    /// Ends a lease.
    pub(crate) fn end(&mut self, holder: &InstanceRef) {
        self.remove(holder);
    }

    fn put(&mut self, holder: InstanceRef, lease: Lease) {
        self.order.insert((lease.due, holder.clone()));
        self.leases.insert(holder, lease);
    }

    fn remove(&mut self, holder: &InstanceRef) -> Option<Lease> {
        let lease = self.leases.remove(holder)?;
        self.order.remove(&(lease.due, holder.clone()));
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    fn instance_ref(instance: &str) -> InstanceRef {
        InstanceRef { service: "shop/cart".parse().unwrap(), instance: instance.parse().unwrap() }
    }

    fn claim(instance: &str) -> InstanceClaim {
        instance_ref(instance).into()
    }

    #[tokio::test(start_paused = true)]
    async fn only_lease_holder_can_renew() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let process = |incarnation| InstanceClaim { incarnation, ..claim("a") };
        leases.grant(process(2), TERM, start);
        assert_eq!(leases.renew(&process(1), start), Renewal::Unknown);
        assert_eq!(leases.renew(&process(2), start), Renewal::Renewed);
        assert_eq!(leases.renew(&claim("a"), start), Renewal::Renewed, "one that knows of no incarnations");
        assert_eq!(leases.renew(&process(1), start), Renewal::Unknown, "which changed nothing");
        assert!(leases.mark_lost(&instance_ref("a"), EndpointState::Serving, start + TERM));
        assert_eq!(leases.renew(&process(1), start + TERM), Renewal::Unknown);
        assert_eq!(leases.renew(&process(2), start + TERM), Renewal::WasLost);
    }

    #[tokio::test(start_paused = true)]
    async fn lease_expires_unless_renewed() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("a"), TERM, start);
        leases.grant(claim("b"), TERM, start);
        assert_eq!(leases.renew(&claim("a"), start + TERM / 2), Renewal::Renewed);
        assert_eq!(leases.due(start + TERM, 9), [instance_ref("b")]);
        assert_eq!(leases.next_due(), Some(start + TERM));
        assert!(leases.mark_lost(&instance_ref("b"), EndpointState::Starting, start + TERM));
        assert_eq!(leases.next_due(), Some(start + TERM / 2 + TERM), "a lost one is not due again at once");
        assert_eq!(leases.renew(&claim("c"), start), Renewal::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn adopted_lease_waits_for_holder_to_return() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("returned"), TERM, start);
        for instance in ["away", "returned"] {
            leases.adopt(claim(instance), TERM, start);
            assert_eq!(leases.renewed_at(&instance_ref(instance)), Some(start));
        }
        assert_eq!(leases.due(start + TERM, 9), [instance_ref("returned")]);
        assert!(!leases.is_due(&instance_ref("away"), start + RETURN_TIME + TERM - Duration::from_millis(1)));
        assert_eq!(leases.due(start + RETURN_TIME + TERM, 9).len(), 2);
        assert_eq!(leases.renew(&claim("away"), start + RETURN_TIME), Renewal::Renewed);
        assert!(leases.is_due(&instance_ref("away"), start + RETURN_TIME + TERM), "its own term from now on");
    }

    #[tokio::test(start_paused = true)]
    async fn lost_instance_can_renew_lease_until_retention_ends() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("a"), TERM, start);
        assert!(leases.mark_lost(&instance_ref("a"), EndpointState::Starting, start + TERM));
        assert_eq!(leases.renew(&claim("a"), start + TERM), Renewal::WasLost);
        assert_eq!(leases.state_before(&instance_ref("a")), EndpointState::Starting);
        assert!(leases.is_due(&instance_ref("a"), start + TERM + LOST_RETENTION));
        assert!(leases.grant(claim("a"), TERM, start + TERM), "it was lost");
        assert!(!leases.grant(claim("a"), TERM, start + TERM), "it is no more");
    }

    #[tokio::test(start_paused = true)]
    async fn lease_renewal_while_being_marked_lost_prevents_loss() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("a"), TERM, start);
        let now = start + TERM;
        assert_eq!(leases.due(now, 9), [instance_ref("a")]);
        leases.renew(&claim("a"), now);
        assert!(!leases.mark_lost(&instance_ref("a"), EndpointState::Serving, now));
        leases.end(&instance_ref("a"));
        assert!(!leases.mark_lost(&instance_ref("a"), EndpointState::Serving, now + TERM));
        assert_eq!(leases.next_due(), None);
    }
}
