//! Shares of the bounded room for reports. A sender, or all senders of a tenant, cannot take the room of others.

use std::{collections::HashMap, sync::Arc};

use fairmesh_model::{ServiceName, Tenant, access::Reach};

/// The owner of the room that a report takes: a process of the mesh, or the tenants for which its senders report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReportOwner {
    /// Name of the owner. All senders for the same tenants share it: a tenant with more senders has no more room.
    pub name: Arc<str>,
    /// Whether the sender reports for some tenants only. Limited senders never mark services of others as incomplete.
    pub is_limited: bool,
}

/// The sender of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSource {
    /// The sender's identity. It stays the same when the sender's rights change, and with them the owner.
    pub sender: Arc<str>,
    /// The owner of the room that the report takes.
    pub owner: ReportOwner,
    /// The tenants of a limited sender. Only their services can be incomplete on its word.
    pub tenants: Reach,
}

impl ReportOwner {
    /// The owner of reports whose senders are not limited, because the mesh cannot tell them apart.
    pub fn of_mesh() -> Self {
        Self { name: "".into(), is_limited: false }
    }
}

impl ReportSource {
    /// The source of reports whose senders are not limited, because the mesh cannot tell them apart.
    pub fn of_mesh() -> Self {
        Self { sender: "".into(), owner: ReportOwner::of_mesh(), tenants: Reach::Everything }
    }

    /// The holder of the room that the sender's reports take.
    pub(crate) fn holder(&self) -> Holder<'_> {
        (&self.owner, &self.sender)
    }

    /// Whether a service is incomplete if this sender says so, or loses a report.
    ///
    /// A limited sender says so of its own tenants only, even if it calls services of others: otherwise a sender could
    /// keep each service that it may call from being planned. A sender that reports rows of the service was rejected as a
    /// condition, since it can invent one.
    pub(crate) fn speaks_for(&self, service: &ServiceName) -> bool {
        self.speaks_for_tenant(&service.tenant)
    }

    /// Whether any service of a tenant may be incomplete if this sender says so.
    pub(crate) fn speaks_for_tenant(&self, tenant: &Tenant) -> bool {
        !self.owner.is_limited || self.tenants.includes(tenant)
    }
}

/// Room of one kind, such as rows, and the part that each owner uses.
///
/// When a report lacks room, the owner that uses the most loses first, and of its senders the one that uses the most: a
/// hostile sender takes room from no other sender of its tenant either. A quota for each owner was rejected: it would
/// leave room unused, or refuse reports as soon as there are many owners.
#[derive(Debug)]
pub(crate) struct ReportShares {
    room: usize,
    /// Room that all limited owners together keep when an owner that is not limited needs room.
    limited_room: usize,
    used: usize,
    limited_used: usize,
    by_owner: HashMap<ReportOwner, OwnerRoom>,
}

/// An owner and one of its senders, which use room.
pub(crate) type Holder<'a> = (&'a ReportOwner, &'a Arc<str>);

/// The sender that has to lose a report first, and the owner of its room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loser {
    pub(crate) owner: ReportOwner,
    pub(crate) sender: Arc<str>,
}

/// Room that an owner uses, in total and by sender.
#[derive(Debug, Default)]
struct OwnerRoom {
    used: usize,
    by_sender: HashMap<Arc<str>, usize>,
}

impl Loser {
    fn of((owner, sender): Holder<'_>) -> Self {
        Self { owner: owner.clone(), sender: Arc::clone(sender) }
    }

    /// Whether room of this holder has to be freed.
    pub(crate) fn is(&self, (owner, sender): Holder<'_>) -> bool {
        self.owner == *owner && self.sender == *sender
    }
}

impl OwnerRoom {
    /// The sender that uses the most room, leaving one out, with this room.
    fn largest_except(&self, left_out: Option<&Arc<str>>) -> Option<(&Arc<str>, usize)> {
        let others = self.by_sender.iter().filter(|(sender, _)| Some(*sender) != left_out);
        others.map(|(sender, used)| (sender, *used)).max_by_key(|(_, used)| *used)
    }
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

    /// Adds room that a holder uses.
    pub(crate) fn take(&mut self, (owner, sender): Holder<'_>, size: usize) {
        if size == 0 {
            return;
        }
        self.used += size;
        self.limited_used += if owner.is_limited { size } else { 0 };
        if !self.by_owner.contains_key(owner) {
            self.by_owner.insert(owner.clone(), OwnerRoom::default());
        }
        let Some(room) = self.by_owner.get_mut(owner) else { return };
        room.used += size;
        match room.by_sender.get_mut(sender) {
            Some(used) => *used += size,
            None => drop(room.by_sender.insert(Arc::clone(sender), size)),
        }
    }

    /// Frees room that a holder used.
    pub(crate) fn free(&mut self, (owner, sender): Holder<'_>, size: usize) {
        self.used = self.used.saturating_sub(size);
        self.limited_used = self.limited_used.saturating_sub(if owner.is_limited { size } else { 0 });
        let Some(room) = self.by_owner.get_mut(owner) else { return };
        room.used = room.used.saturating_sub(size);
        if let Some(used) = room.by_sender.get_mut(sender) {
            *used = used.saturating_sub(size);
            if *used == 0 {
                room.by_sender.remove(sender);
            }
        }
        if room.used == 0 {
            self.by_owner.remove(owner);
        }
    }

    /// Checks whether a holder can replace room of size `old` by `new`. Limited owners may use all room that no other
    /// owner needs.
    ///
    /// # Errors
    /// The sender that has to lose a report first, possibly that of `holder` itself: of the owner that would use the
    /// most, the sender that would. A limited owner takes no room from owners that are not limited, and limited owners
    /// lose first if they use more than their part.
    pub(crate) fn check(&self, holder: Holder<'_>, old: usize, new: usize) -> Result<(), Loser> {
        let after = |used: usize| (used + new).saturating_sub(old);
        if new <= old || after(self.used) <= self.room {
            return Ok(());
        }
        let (owner, sender) = holder;
        let takes_back = !owner.is_limited && self.limited_used > self.limited_room;
        let only_limited = owner.is_limited || takes_back;
        let own = self.by_owner.get(owner);
        let own_used = after(own.map_or(0, |room| room.used));
        let others =
            self.by_owner.iter().filter(|(other, _)| *other != owner && (other.is_limited || !only_limited));
        let largest = others.max_by_key(|(_, room)| room.used);
        let largest = largest.filter(|(_, room)| takes_back || room.used > own_used);
        let loser = match largest {
            Some((other, room)) => room.largest_except(None).map(|(sender, _)| (other, sender)),
            None => {
                let of_sender =
                    after(own.and_then(|room| room.by_sender.get(sender)).copied().unwrap_or_default());
                let other = own.and_then(|room| room.largest_except(Some(sender)));
                other.filter(|(_, used)| *used > of_sender).map(|(other, _)| (owner, other))
            }
        };
        Err(Loser::of(loser.unwrap_or(holder)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use fairmesh_model::{MAX_INCOMPLETE_SERVICES, Region, ServerRates, ServiceName, Tenant, TrafficReport};

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

    /// A sender for the tenants in a list such as `blue,red`.
    pub(crate) fn limited(name: &str) -> ReportSource {
        let owner = ReportOwner { name: name.into(), is_limited: true };
        let tenants = name.split(',').map(|tenant| Tenant::new(tenant).unwrap()).collect();
        ReportSource { sender: name.into(), owner, tenants: Reach::Tenants(tenants) }
    }

    /// The owner that has to lose a report before `source` can replace room of size `old` by `new`.
    fn loser(shares: &ReportShares, source: &ReportSource, old: usize, new: usize) -> Option<ReportOwner> {
        shares.check(source.holder(), old, new).err().map(|loser| loser.owner)
    }

    #[test]
    fn largest_owner_loses_first_and_limited_owners_give_back_room() {
        let mut shares = ReportShares::new(100, 50);
        let (red, blue, agent) = (limited("red"), limited("blue"), ReportSource::of_mesh());
        let of = |source: &ReportSource| Some(source.owner.clone());
        assert_eq!(loser(&shares, &red, 0, 80), None, "no other needs the room");
        shares.take(red.holder(), 80);
        shares.take(blue.holder(), 20);
        assert_eq!(loser(&shares, &red, 0, 1), of(&red), "it has the most itself");
        assert_eq!(loser(&shares, &red, 6, 6), None, "the same size always fits");
        assert_eq!(loser(&shares, &blue, 0, 1), of(&red));
        assert_eq!(loser(&shares, &agent, 0, 90), of(&red), "the agent gets back its part");
        shares.free(red.holder(), 50);
        shares.take(agent.holder(), 50);
        assert_eq!(loser(&shares, &agent, 0, 1), of(&agent), "it has the most itself");
        assert_eq!(loser(&shares, &blue, 0, 1), of(&red), "a limited one never displaces an agent");
        shares.free(red.holder(), 30);
        assert_eq!(loser(&shares, &blue, 0, 30), None);
        assert_eq!(loser(&shares, &blue, 0, 31), of(&blue));
        shares.free(blue.holder(), 20);
        shares.free(agent.holder(), 50);
        assert_eq!((shares.used(), shares.by_owner.len()), (0, 0));
    }

    #[test]
    fn hostile_sender_takes_no_room_of_other_senders_of_its_tenant() {
        let mut sums = ReportSums::new(LIMITS);
        let hostile = ReportSource { sender: "hostile".into(), ..limited("red") };
        let honest = ReportSource { sender: "honest".into(), ..limited("red") };
        for reporter in 0..40 {
            sums.record(&hostile, servers(reporter, "red", 200), 0);
        }
        assert_eq!(sums.record(&honest, servers(1, "red", 1_900), 0), Taken::Kept);
        assert_eq!(sums.record(&hostile, servers(50, "red", 2_000), 0), Taken::Full, "it has the most");
        assert_eq!(
            sums.record(&honest, servers(1, "red", 1_950), 0),
            Taken::Kept,
            "and none of its own is lost"
        );
        assert_eq!(
            sums.sum_of_all(0).servers.len(),
            1_950,
            "the rows of the other sender are of 200 of these services"
        );
        assert_eq!(sums.reporters(), 1 + 10);
    }

    #[test]
    fn limited_senders_alone_have_all_of_the_room() {
        let mut sums = ReportSums::new(LIMITS);
        for reporter in 0..20 {
            assert_eq!(sums.record(&limited("red"), servers(reporter, "red", 200), 0), Taken::Kept);
        }
        assert_eq!(sums.record(&ReportSource::of_mesh(), servers(1, "shop", 300), 0), Taken::Kept);
        let sum = sums.sum_of_all(0);
        assert!(sum.is_incomplete(&service("red", 5)) && !sum.is_incomplete(&service("shop", 5)));
    }

    #[test]
    fn flood_of_limited_sender_takes_no_room_of_other_tenants_and_agents() {
        let mut sums = ReportSums::new(LIMITS);
        let (red, blue, agent) = (limited("red"), limited("blue"), ReportSource::of_mesh());
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
        let (red, blue, agent) = (limited("red"), limited("blue"), ReportSource::of_mesh());
        let taken = (0..40).map(|reporter| sums.record(&red, servers(reporter, "red", 1), 0));
        assert_eq!(
            taken.filter(|taken| *taken == Taken::Kept).count(),
            20,
            "all places, as no other needs them"
        );
        for reporter in 0..5 {
            assert_eq!(sums.record(&blue, servers(reporter, "blue", 1), 0), Taken::Kept);
        }
        for reporter in 0..10 {
            assert_eq!(sums.record(&agent, servers(reporter, "shop", 1), 0), Taken::Kept);
        }
        assert_eq!(sums.reporters(), 20);
        assert!(!sums.sum_of_all(0).is_incomplete(&service("blue", 0)));
    }

    #[test]
    fn limited_sender_marks_only_services_that_it_names_incomplete() {
        let other = service("bank", 0);
        for (owner, is_all) in [(limited("red"), false), (ReportSource::of_mesh(), true)] {
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
    fn limited_sender_marks_no_called_services_of_other_tenants_incomplete() {
        let (own, other) = (service("red", 0), service("blue", 0));
        let named =
            TrafficReport { incomplete: [own.clone(), other.clone()].into(), ..servers(1, "blue", 1) };
        let mut sums = ReportSums::new(LIMITS);
        assert_eq!(sums.record(&limited("red"), named.clone(), 0), Taken::Kept);
        let sum = sums.sum_of_all(0);
        assert!(sum.is_incomplete(&own) && !sum.is_incomplete(&other), "though it reports rows of it");
        assert!(sum.servers.keys().any(|(name, _)| *name == other));
        // A report that has no room.
        let mut sums = ReportSums::new(SumLimits { rows: 0, ..LIMITS });
        assert_eq!(sums.record(&limited("red"), named, 0), Taken::Full);
        let sum = sums.sum_of_all(0);
        assert!(sum.is_incomplete(&own) && !sum.is_incomplete(&other));
    }

    #[test]
    fn many_losses_of_one_tenant_hide_none_of_any_tenant() {
        let mut sums = ReportSums::new(SumLimits { rows: 2, limited_percent: 100, ..LIMITS });
        // More services than have room for their names, then one of each tenant that still reports.
        for (reporter, tenant) in [(1, "red"), (2, "blue")] {
            let many = servers(reporter, tenant, MAX_INCOMPLETE_SERVICES + 9);
            assert_eq!(sums.record(&limited(tenant), many, 0), Taken::Full);
        }
        let last = service("red", MAX_INCOMPLETE_SERVICES + 8);
        let seen = TrafficReport {
            servers: [((last.clone(), Region::new("eu").unwrap()), ServerRates::default())].into(),
            ..incomplete(3, "red", 0)
        };
        assert_eq!(sums.record(&limited("red"), seen, 0), Taken::Kept);
        assert_eq!(sums.record(&limited("green"), servers(4, "green", 1), 0), Taken::Kept);
        let (blue, green) = (service("blue", 9_000), service("green", 0));
        let services = [last.clone(), blue.clone(), green.clone()].into();
        let found = sums.sums_by_service(&services, 0).map(|(name, sum)| (name.clone(), sum.is_incomplete));
        assert_eq!(found.collect::<Vec<_>>(), [(blue, true), (green.clone(), false), (last.clone(), true)]);
        let sum = sums.sum_of_all(0);
        assert!(sum.is_incomplete(&last) && !sum.is_incomplete(&green), "in the report of a relay too");
        // Receivers learn of services that no report of the relay names, but from a limited relay only of its tenants.
        for (relay, marks_blue) in [(ReportSource::of_mesh(), true), (limited("red"), false)] {
            let mut above = ReportSums::new(LIMITS);
            let passed_on = TrafficReport { reporter: 9, ..sum.clone() };
            assert_eq!(above.record(&relay, passed_on, 0), Taken::Kept);
            let unnamed = ["blue", "red", "green"].map(|tenant| service(tenant, 9_000));
            let incomplete = unnamed.map(|service| above.sum_of_all(0).is_incomplete(&service));
            assert_eq!(incomplete, [marks_blue, true, false]);
        }
        assert!(!sums.sums_by_service(&[last].into(), 60_500).any(|(_, sum)| sum.is_incomplete));
    }

    #[test]
    fn report_after_change_of_rights_replaces_the_one_before() {
        let mut sums = ReportSums::new(LIMITS);
        let before = limited("red");
        let after = ReportSource { sender: before.sender.clone(), ..limited("blue,red") };
        for source in [&before, &after, &before] {
            assert_eq!(sums.record(source, servers(1, "red", 3), 0), Taken::Kept);
            let sum = sums.sum_of_all(0);
            assert_eq!(sum.servers.values().map(|rates| rates.servers).sum::<u32>(), 3);
            assert_eq!(sums.reporters(), 1);
        }
        sums.record(&after, TrafficReport { reporter: 1, ..TrafficReport::default() }, 0);
        assert_eq!(sums.reporters(), 0);
    }

    #[test]
    fn limited_sender_cannot_replace_report_with_number_of_another() {
        let mut sums = ReportSums::new(LIMITS);
        sums.record(&limited("blue"), servers(7, "blue", 3), 0);
        sums.record(&limited("red"), TrafficReport { reporter: 7, ..TrafficReport::default() }, 0);
        assert_eq!(bound(sums.sum_of_all(0)).servers.len(), 3);
    }
}
