//! Who is believed to run, and until when. Pure: callers pass `now`.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use fairmesh_model::EndpointState;
use tokio::time::Instant;

use crate::{Claim, InstanceRef};

/// How long a lost endpoint is kept, so that it is found again when it returns.
pub(crate) const KEPT_LOST: Duration = Duration::from_secs(600);

/// Every lease, and the order in which they fall due.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: HashMap<InstanceRef, Lease>,
    order: BTreeSet<(Instant, InstanceRef)>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// The process that holds it.
    incarnation: u64,
    term: Duration,
    due: Instant,
    /// The state before it was lost, when it is.
    lost: Option<EndpointState>,
}

/// What a renewal met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// A lease that had not run out; it runs anew.
    Kept,
    /// One that ran out: the record has to be mended first, then the lease granted.
    WasLost,
    /// No lease, or another process's.
    Unknown,
}

impl Leases {
    /// Starts a full term; says whether the holder counted as lost.
    pub(crate) fn grant(&mut self, who: Claim, term: Duration, now: Instant) -> bool {
        let Claim { instance, incarnation } = who;
        let before = self.forget(&instance);
        self.put(instance, Lease { incarnation, term, due: now + term, lost: None });
        before.is_some_and(|lease| lease.lost.is_some())
    }

    /// Takes in one that was found lost: it is kept a while longer. One that is known as lost stays as it is.
    pub(crate) fn adopt_lost(&mut self, who: Claim, term: Duration, now: Instant) {
        let Claim { instance, incarnation } = who;
        if self.is_lost(&instance) {
            return;
        }
        self.forget(&instance);
        let lost = Some(EndpointState::Serving);
        self.put(instance, Lease { incarnation, term, due: now + KEPT_LOST, lost });
    }

    /// Renews a lease that is held, by who holds it.
    pub(crate) fn renew(&mut self, who: &Claim, now: Instant) -> Renewal {
        match self.leases.get(&who.instance).copied() {
            Some(lease) if !who.fits(lease.incarnation) => Renewal::Unknown,
            None => Renewal::Unknown,
            Some(lease) if lease.lost.is_some() => Renewal::WasLost,
            Some(Lease { incarnation, term, .. }) => {
                self.grant(Claim { incarnation, ..who.clone() }, term, now);
                Renewal::Kept
            }
        }
    }

    /// Whether the speaker holds a lease, lost or not.
    pub(crate) fn is_held_by(&self, who: &Claim) -> bool {
        self.leases.get(&who.instance).is_some_and(|lease| who.fits(lease.incarnation))
    }

    /// Whether its term, or its time as lost, is over.
    pub(crate) fn is_due(&self, who: &InstanceRef, now: Instant) -> bool {
        self.leases.get(who).is_some_and(|lease| lease.due <= now)
    }

    /// Whether its lease ran out, and it is kept only so that it is found again.
    pub(crate) fn is_lost(&self, who: &InstanceRef) -> bool {
        self.leases.get(who).is_some_and(|lease| lease.lost.is_some())
    }

    /// At most `most` of those that are due, the longest due first.
    pub(crate) fn due(&self, now: Instant, most: usize) -> Vec<InstanceRef> {
        self.order.iter().take_while(|(due, _)| *due <= now).take(most).map(|(_, who)| who.clone()).collect()
    }

    /// When the next one falls due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Counts it as lost, unless it renewed meanwhile: then false, and its record has to be mended.
    pub(crate) fn lose(&mut self, who: &InstanceRef, before: EndpointState, now: Instant) -> bool {
        let Some(lease) = self.leases.get(who).copied().filter(|lease| lease.due <= now) else {
            return false;
        };
        self.forget(who);
        self.put(who.clone(), Lease { due: now + KEPT_LOST, lost: Some(before), ..lease });
        true
    }

    /// The state that it had before it was lost.
    pub(crate) fn state_before(&self, who: &InstanceRef) -> EndpointState {
        self.leases.get(who).and_then(|lease| lease.lost).unwrap_or_default()
    }

    /// Ends a lease.
    pub(crate) fn end(&mut self, who: &InstanceRef) {
        self.forget(who);
    }

    fn put(&mut self, who: InstanceRef, lease: Lease) {
        self.order.insert((lease.due, who.clone()));
        self.leases.insert(who, lease);
    }

    fn forget(&mut self, who: &InstanceRef) -> Option<Lease> {
        let lease = self.leases.remove(who)?;
        self.order.remove(&(lease.due, who.clone()));
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    fn who(instance: &str) -> InstanceRef {
        InstanceRef { service: "shop/cart".parse().unwrap(), instance: instance.parse().unwrap() }
    }

    fn claim(instance: &str) -> Claim {
        who(instance).into()
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_process_that_holds_a_lease_renews_it() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let process = |incarnation| Claim { incarnation, ..claim("a") };
        leases.grant(process(2), TERM, start);
        assert_eq!(leases.renew(&process(1), start), Renewal::Unknown);
        assert_eq!(leases.renew(&process(2), start), Renewal::Kept);
        assert_eq!(leases.renew(&claim("a"), start), Renewal::Kept, "one that knows of no incarnations");
        assert_eq!(leases.renew(&process(1), start), Renewal::Unknown, "which changed nothing");
        assert!(leases.lose(&who("a"), EndpointState::Serving, start + TERM));
        assert_eq!(leases.renew(&process(1), start + TERM), Renewal::Unknown);
        assert_eq!(leases.renew(&process(2), start + TERM), Renewal::WasLost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_runs_out_unless_it_is_renewed() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("a"), TERM, start);
        leases.grant(claim("b"), TERM, start);
        assert_eq!(leases.renew(&claim("a"), start + TERM / 2), Renewal::Kept);
        assert_eq!(leases.due(start + TERM, 9), [who("b")]);
        assert_eq!(leases.next_due(), Some(start + TERM));
        assert!(leases.lose(&who("b"), EndpointState::Starting, start + TERM));
        assert_eq!(leases.next_due(), Some(start + TERM / 2 + TERM), "a lost one is not due again at once");
        assert_eq!(leases.renew(&claim("c"), start), Renewal::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_one_may_return_and_is_given_up_in_the_end() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("a"), TERM, start);
        assert!(leases.lose(&who("a"), EndpointState::Starting, start + TERM));
        assert_eq!(leases.renew(&claim("a"), start + TERM), Renewal::WasLost);
        assert_eq!(leases.state_before(&who("a")), EndpointState::Starting);
        assert!(leases.is_due(&who("a"), start + TERM + KEPT_LOST));
        assert!(leases.grant(claim("a"), TERM, start + TERM), "it was lost");
        assert!(!leases.grant(claim("a"), TERM, start + TERM), "it is no more");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_renewed_while_it_was_being_marked_is_not_lost() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        leases.grant(claim("a"), TERM, start);
        let now = start + TERM;
        assert_eq!(leases.due(now, 9), [who("a")]);
        leases.renew(&claim("a"), now);
        assert!(!leases.lose(&who("a"), EndpointState::Serving, now));
        leases.end(&who("a"));
        assert!(!leases.lose(&who("a"), EndpointState::Serving, now + TERM));
        assert_eq!(leases.next_due(), None);
    }
}
