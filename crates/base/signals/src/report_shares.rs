//! Shares of the bounded room for reports. A sender, or all senders of a tenant, cannot take the room of others.

use std::{collections::HashMap, sync::Arc};

/// The owner of the room that a report takes: a process of the mesh, or the tenants for which its senders report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReportOwner {
    /// Name of the owner. All senders for the same tenants share it: a tenant with more senders has no more room.
    pub name: Arc<str>,
    /// Whether the sender reports for some tenants only. Limited senders never mark services of others as incomplete.
    pub is_limited: bool,
}

impl ReportOwner {
    /// The owner of reports whose senders are not limited, because the mesh cannot tell them apart.
    pub fn of_mesh() -> Self {
        Self { name: "".into(), is_limited: false }
    }
}

/// Room of one kind, such as rows, and the part that each owner uses.
///
/// When a report lacks room, the owner that uses the most loses first. A quota for each owner was rejected: it would
/// leave room unused, or refuse reports as soon as there are many owners.
#[derive(Debug)]
pub(crate) struct ReportShares {
    room: usize,
    /// Room of all limited owners together.
    limited_room: usize,
    used: usize,
    limited_used: usize,
    by_owner: HashMap<ReportOwner, usize>,
}

impl ReportShares {
    pub(crate) fn new(room: usize, limited_room: usize) -> Self {
        Self { room, limited_room, used: 0, limited_used: 0, by_owner: HashMap::new() }
    }

    /// The room that all owners use.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Adds room that `owner` uses.
    pub(crate) fn take(&mut self, owner: &ReportOwner, size: usize) {
        if size == 0 {
            return;
        }
        self.used += size;
        self.limited_used += if owner.is_limited { size } else { 0 };
        match self.by_owner.get_mut(owner) {
            Some(used) => *used += size,
            None => drop(self.by_owner.insert(owner.clone(), size)),
        }
    }

    /// Frees room that `owner` used.
    pub(crate) fn free(&mut self, owner: &ReportOwner, size: usize) {
        self.used = self.used.saturating_sub(size);
        self.limited_used = self.limited_used.saturating_sub(if owner.is_limited { size } else { 0 });
        if let Some(used) = self.by_owner.get_mut(owner) {
            *used = used.saturating_sub(size);
            if *used == 0 {
                self.by_owner.remove(owner);
            }
        }
    }

    /// Checks whether `owner` can replace room of size `old` by `new`.
    ///
    /// # Errors
    /// The owner that has to lose a report first, possibly `owner` itself: the one that would use the most. A limited
    /// owner takes no room from owners that are not limited.
    pub(crate) fn check(&self, owner: &ReportOwner, old: usize, new: usize) -> Result<(), ReportOwner> {
        let after = |used: usize| (used + new).saturating_sub(old);
        let exceeds_limited = owner.is_limited && after(self.limited_used) > self.limited_room;
        if new <= old || (!exceeds_limited && after(self.used) <= self.room) {
            return Ok(());
        }
        let own = after(self.by_owner.get(owner).copied().unwrap_or_default());
        let others = self
            .by_owner
            .iter()
            .filter(|(other, _)| *other != owner && (other.is_limited || !owner.is_limited));
        match others.max_by_key(|(_, used)| **used) {
            Some((largest, used)) if *used > own => Err(largest.clone()),
            _ => Err(owner.clone()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use fairmesh_model::{MAX_INCOMPLETE_SERVICES, Region, ServerRates, ServiceName, TrafficReport};

    use super::*;
    use crate::{ReportSums, SumLimits, Taken, bound};

    const LIMITS: SumLimits = SumLimits { reporters: 20, rows: 4_000, served: 0, limited_percent: 50 };

    fn service(tenant: &str, number: usize) -> ServiceName {
        ServiceName::new(format!("{tenant}/s{number}")).unwrap()
    }

    /// A report that names so many services of a tenant as incomplete.
    fn incomplete(reporter: u64, tenant: &str, services: usize) -> TrafficReport {
        TrafficReport {
            reporter,
            interval: Duration::from_secs(1),
            incomplete: (0..services).map(|number| service(tenant, number)).collect(),
            all_incomplete: services >= MAX_INCOMPLETE_SERVICES,
            ..TrafficReport::default()
        }
    }

    /// A report of a server of each of so many services.
    fn servers(reporter: u64, tenant: &str, services: usize) -> TrafficReport {
        let region = Region::new("eu").unwrap();
        let server = |number| {
            ((service(tenant, number), region.clone()), ServerRates { servers: 1, ..ServerRates::default() })
        };
        TrafficReport { servers: (0..services).map(server).collect(), ..incomplete(reporter, tenant, 0) }
    }

    pub(crate) fn limited(name: &str) -> ReportOwner {
        ReportOwner { name: name.into(), is_limited: true }
    }

    #[test]
    fn largest_owner_loses_first_and_limited_owners_take_at_most_their_part() {
        let mut shares = ReportShares::new(100, 50);
        let (red, blue, agent) = (limited("red"), limited("blue"), ReportOwner::of_mesh());
        shares.take(&red, 40);
        shares.take(&blue, 5);
        assert_eq!(shares.check(&red, 0, 6), Err(red.clone()), "it has the most itself");
        assert_eq!(shares.check(&red, 6, 6), Ok(()), "the same size always fits");
        assert_eq!(shares.check(&blue, 0, 6), Err(red.clone()));
        assert_eq!(shares.check(&agent, 0, 55), Ok(()), "the other half");
        shares.take(&agent, 60);
        assert_eq!(shares.used(), 105);
        assert_eq!(shares.check(&blue, 0, 1), Err(red.clone()), "a limited one never displaces an agent");
        shares.free(&red, 40);
        assert_eq!(shares.check(&blue, 0, 35), Ok(()));
        assert_eq!(shares.check(&blue, 0, 36), Err(blue.clone()));
        shares.free(&blue, 5);
        shares.free(&agent, 60);
        assert_eq!((shares.used(), shares.by_owner.len()), (0, 0));
    }

    #[test]
    fn flood_of_limited_sender_takes_no_room_of_other_tenants_and_agents() {
        let mut sums = ReportSums::new(LIMITS);
        let (red, blue, agent) = (limited("red"), limited("blue"), ReportOwner::of_mesh());
        for reporter in 0..40 {
            sums.record(&red, incomplete(reporter, "red", 1_000), 0);
        }
        let owners = [(&blue, servers(1, "blue", 900)), (&agent, servers(2, "shop", 1_900))];
        for (owner, report) in owners {
            assert_eq!(sums.record(owner, report, 0), Taken::Kept);
        }
        assert_eq!(sums.record(&red, incomplete(7, "red", 2_000), 0), Taken::Full, "it has the most");
        let sum = sums.sum_of_all(0);
        assert_eq!(sum.servers.len(), 900 + 1_900);
        assert!(!sum.all_incomplete && sum.incomplete.iter().all(|name| name.tenant.as_str() == "red"));
    }

    #[test]
    fn flood_of_reporters_leaves_places_to_other_owners() {
        let mut sums = ReportSums::new(LIMITS);
        let (red, blue, agent) = (limited("red"), limited("blue"), ReportOwner::of_mesh());
        let taken = (0..40).map(|reporter| sums.record(&red, servers(reporter, "red", 1), 0));
        assert_eq!(taken.filter(|taken| *taken == Taken::Kept).count(), 10, "half of the places");
        for reporter in 0..5 {
            assert_eq!(sums.record(&blue, servers(reporter, "blue", 1), 0), Taken::Kept);
        }
        for reporter in 0..10 {
            assert_eq!(sums.record(&agent, servers(reporter, "shop", 1), 0), Taken::Kept);
        }
        assert_eq!(sums.reporters(), 20);
    }

    #[test]
    fn limited_sender_marks_only_services_that_it_names_incomplete() {
        let other = service("bank", 0);
        for (owner, is_all) in [(limited("red"), false), (ReportOwner::of_mesh(), true)] {
            let mut sums = ReportSums::new(LIMITS);
            sums.record(&owner, incomplete(1, "red", MAX_INCOMPLETE_SERVICES), 0);
            let sum = sums.sum_of_all(0);
            assert_eq!((sum.is_incomplete(&other), sum.is_incomplete(&service("red", 5))), (is_all, true));
            // As many names in reports that have no room.
            let mut sums = ReportSums::new(LIMITS);
            assert_eq!(sums.record(&owner, incomplete(1, "red", 4_001), 0), Taken::Full);
            let services = [other.clone(), service("red", 0)].into();
            let found: Vec<_> =
                sums.sums_by_service(&services, 0).map(|(_, sum)| sum.is_incomplete).collect();
            assert_eq!(found, [is_all, true]);
        }
    }

    #[test]
    fn limited_sender_cannot_replace_report_with_number_of_another() {
        let mut sums = ReportSums::new(LIMITS);
        sums.record(&limited("blue"), servers(7, "blue", 3), 0);
        sums.record(&limited("red"), TrafficReport { reporter: 7, ..TrafficReport::default() }, 0);
        assert_eq!(bound(sums.sum_of_all(0)).servers.len(), 3);
    }
}
