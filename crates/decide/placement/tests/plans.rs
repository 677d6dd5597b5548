//! Invariants of plans under any change of fleet and services.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{Label, ServiceName, Tenant, Zone};
use fairmesh_placement::{Backend, MIN_BACKENDS, Missing, PlacedService, Plan, PlanInput, plan};
use proptest::prelude::*;

/// A gateway and its services, over several plans.
#[derive(Clone, Debug)]
struct Gateway {
    backends: Vec<Backend>,
    services: Vec<PlacedService>,
    is_shared: bool,
    quotas: BTreeMap<Tenant, usize>,
}

fn zone(number: usize) -> Zone {
    Zone::new(format!("z{number}")).unwrap()
}

fn backend(number: usize, zones: usize, capacity: u32) -> Backend {
    let name = Label::new(format!("gw-{number}")).unwrap();
    let zone = zone(number % zones);
    Backend { name, zone, capacity, is_open: true, is_sandbox: false, used_permille: None }
}

fn service(number: usize, zones: usize, count: usize) -> PlacedService {
    let name = ServiceName::new(format!("t{}/s{number}", number % 7)).unwrap();
    let (present, home) = (BTreeSet::new(), zone(number % zones));
    PlacedService { name, home, count, added: 0, present, is_pinned: false, is_sandboxed: false }
}

impl Gateway {
    fn new((backends, zones, capacity): (usize, usize, u32), services: usize) -> Self {
        Self {
            backends: (0..backends).map(|number| backend(number, zones, capacity)).collect(),
            services: (0..services).map(|number| service(number, zones, MIN_BACKENDS)).collect(),
            is_shared: true,
            quotas: BTreeMap::new(),
        }
    }

    /// Computes a plan, and applies its changes.
    fn plan(&mut self) -> Plan {
        let Self { backends, services, is_shared, quotas } = &*self;
        let made = plan(PlanInput { backends, services, is_shared: *is_shared, quotas, seed: 7 });
        for service in &mut self.services {
            if let Some(names) = made.changes.get(&service.name) {
                service.present = names.clone();
            }
        }
        made
    }

    fn loads(&self) -> BTreeMap<&Label, usize> {
        let mut loads: BTreeMap<&Label, usize> = self.backends.iter().map(|one| (&one.name, 0)).collect();
        for name in self.services.iter().flat_map(|service| &service.present) {
            *loads.get_mut(name).unwrap() += 1;
        }
        loads
    }

    /// Backends of each service as a bit mask.
    fn bits(&self) -> Vec<u64> {
        let bit = |name: &Label| 1 << self.backends.iter().position(|one| one.name == *name).unwrap();
        self.services.iter().map(|service| service.present.iter().map(bit).sum()).collect()
    }

    fn in_zone(&self, service: &PlacedService) -> usize {
        let at_home =
            |name: &&Label| self.backends.iter().any(|one| one.name == **name && one.zone == service.home);
        service.present.iter().filter(at_home).count()
    }

    /// Asserts the invariants for all services that are placed as they ask.
    fn check(&self, made: &Plan) {
        let whole: Vec<bool> = self.services.iter().map(|one| self.is_spread(one)).collect();
        let bits = self.bits();
        for (i, service) in self.services.iter().enumerate() {
            let is_refused = made.refused.contains_key(&service.name);
            assert!(whole[i] || is_refused, "{service:?} is not spread");
            assert!(service.present.len() >= service.count || is_refused, "{service:?}");
            for (j, other) in self.services.iter().enumerate() {
                let is_within = i != j && whole[i] && whole[j] && bits[i] & !bits[j] == 0;
                // After a loss of backends there may be no combination for both services. Then one is refused, and
                // keeps its backends.
                let is_told = is_refused || made.refused.contains_key(&other.name);
                assert!(!is_within || is_told, "{service:?} lies within {other:?}");
            }
        }
        for one in &self.backends {
            assert!(self.loads()[&one.name] <= one.capacity as usize, "{one:?}");
        }
    }

    fn is_spread(&self, service: &PlacedService) -> bool {
        let at_home = self.in_zone(service);
        at_home >= 2 && service.present.len() > at_home
    }
}

/// A change of the fleet or the services.
#[derive(Clone, Debug)]
enum Change {
    Count(usize, usize),
    Home(usize, usize),
    Leaves(usize),
    Comes(usize),
    BackendLeaves(usize),
    BackendComes(usize),
    Closes(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..40_usize, 3..7_usize).prop_map(|(service, count)| Change::Count(service, count)),
        1 => (0..40_usize, 0..3_usize).prop_map(|(service, home)| Change::Home(service, home)),
        1 => (0..40_usize).prop_map(Change::Leaves),
        1 => (100..140_usize).prop_map(Change::Comes),
        1 => (0..20_usize).prop_map(Change::BackendLeaves),
        1 => (50..60_usize).prop_map(Change::BackendComes),
        1 => (0..20_usize).prop_map(Change::Closes),
    ]
}

impl Gateway {
    /// Applies a change, and returns the affected services.
    fn make(&mut self, change: &Change) {
        let (services, backends) = (self.services.len(), self.backends.len());
        match *change {
            Change::Count(at, count) => self.services[at % services].count = count,
            Change::Home(at, home) => self.services[at % services].home = zone(home),
            Change::Leaves(at) if services > 1 => drop(self.services.remove(at % services)),
            Change::Comes(number)
                if self.services.iter().all(|one| one.name != service(number, 3, 3).name) =>
            {
                self.services.push(service(number, 3, MIN_BACKENDS));
            }
            Change::BackendLeaves(at) if backends > 4 => {
                let gone = self.backends.remove(at % backends).name;
                for service in &mut self.services {
                    service.present.remove(&gone);
                }
            }
            Change::BackendComes(number) => {
                let new = backend(number, 3, 40);
                if self.backends.iter().all(|one| one.name != new.name) {
                    self.backends.push(new);
                }
            }
            Change::Closes(at) => self.backends[at % backends].is_open ^= true,
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn placement_invariants_hold_and_plans_settle_after_random_changes(
        (backends, zones, services) in (6..20_usize, 1..4_usize, 1..40_usize),
        capacity in 8..40_u32,
        changes in proptest::collection::vec(change(), 0..12),
    ) {
        let mut gateway = Gateway::new((backends, zones, capacity), services);
        let made = gateway.plan();
        gateway.check(&made);
        for change in changes {
            gateway.make(&change);
            let made = gateway.plan();
            gateway.check(&made);
            // A refused change may become possible after other changes. Eventually a plan changes nothing.
            let is_settled = (0..6).any(|_| {
                let again = gateway.plan();
                gateway.check(&again);
                again.changes.is_empty()
            });
            prop_assert!(is_settled, "plans go on changing");
        }
    }

    #[test]
    fn placement_change_replaces_at_most_one_backend_per_other_service(
        services in 10..60_usize, grown in 0..60_usize, count in 4..7_usize, gone in 0..18_usize,
    ) {
        let mut gateway = Gateway::new((18, 3, 100), services);
        gateway.plan();
        let before = gateway.clone();
        let grown = grown % services;
        gateway.services[grown].count = count;
        gateway.plan();
        for (number, (old, new)) in before.services.iter().zip(&gateway.services).enumerate() {
            let lost = old.present.difference(&new.present).count();
            prop_assert!(lost <= usize::from(number != grown), "{old:?} {new:?}");
            prop_assert!(new.present.len() >= old.present.len() && gateway.is_spread(new), "{old:?} {new:?}");
        }
        let before = gateway.clone();
        let gone = gateway.backends.remove(gone).name;
        gateway.plan();
        for (old, new) in before.services.iter().zip(&gateway.services) {
            let lost = old.present.iter().filter(|name| **name != gone && !new.present.contains(*name)).count();
            prop_assert!(lost <= 1, "{old:?} {new:?}");
        }
    }
}

/// Asserts that if all backends of any one service are dead, every other service has a live backend.
fn assert_others_survive(bits: &[u64]) {
    for (number, dead) in bits.iter().enumerate() {
        let up = bits.iter().enumerate().all(|(other, backends)| other == number || backends & !dead != 0);
        assert!(up, "{number} takes another service down");
    }
}

#[test]
fn ten_thousand_services_survive_loss_of_all_backends_of_any_one() {
    let (services, grown) = (10_000, 10);
    let mut gateway = Gateway::new((60, 3, 1_000), services);
    let made = gateway.plan();
    assert!(made.refused.is_empty());
    assert_others_survive(&gateway.bits());
    // Bounds the running time: 10,000 of 22,800 combinations are taken, so a draw succeeds with a probability above one
    // half.
    assert!(made.effort.combinations < 2 * services as u64, "{:?}", made.effort);
    assert_eq!(made.effort.comparisons, 0, "sets of one length are found by their value");
    let loads = gateway.loads();
    assert!(loads.values().all(|load| (450..=550).contains(load)), "500 each: {loads:?}");

    for service in gateway.services.iter_mut().step_by(services / grown) {
        service.count = 10;
    }
    let made = gateway.plan();
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    assert_others_survive(&gateway.bits());
    assert!(gateway.services.iter().step_by(services / grown).all(|service| service.present.len() == 10));
    // One growth moves a few services, and compares with the services on 57 backends for each of seven places.
    assert!(made.changes.len() <= grown * 16, "{} services changed", made.changes.len());
    assert!(made.effort.comparisons < (grown * 7 * 57 * 600 * 2) as u64, "{:?}", made.effort);

    for service in gateway.services.iter_mut().step_by(services / grown) {
        service.count = MIN_BACKENDS;
    }
    let made = gateway.plan();
    assert!(made.refused.is_empty() && made.changes.len() <= grown, "{:?}", made.refused);
    assert_eq!(gateway.plan().changes, BTreeMap::new());
}

fn refusal(gateway: &mut Gateway, service: usize) -> Option<Missing> {
    let made = gateway.plan();
    made.refused.get(&gateway.services[service].name).cloned()
}

#[test]
fn refused_placement_reports_missing_capacity() {
    // z0 has two backends, z1 and z2 one each.
    let small = || Gateway::new((4, 3, 10), 1);
    assert_eq!(refusal(&mut small(), 0), None);
    let mut gateway = small();
    gateway.services[0].home = zone(1);
    assert_eq!(refusal(&mut gateway, 0), Some(Missing::HomeBackends(zone(1))));
    let mut gateway = small();
    gateway.backends.retain(|one| one.zone == zone(0));
    assert_eq!(refusal(&mut gateway, 0), Some(Missing::OtherBackends(zone(0))));
    let mut gateway = small();
    gateway.services[0].count = 6;
    assert_eq!(refusal(&mut gateway, 0), Some(Missing::Backends { wanted: 6, found: 4 }));
    assert_eq!(gateway.services[0].present.len(), MIN_BACKENDS, "it has the least number");
    let mut gateway = Gateway::new((4, 3, 1), 1);
    let tenant = Tenant::new("t0").unwrap();
    assert_eq!(refusal(&mut gateway, 0), Some(Missing::Quota { tenant: tenant.clone(), quota: 2 }));
    gateway.quotas.insert(tenant, MIN_BACKENDS);
    assert_eq!(refusal(&mut gateway, 0), None, "a quota of the tenant's own comes first");
    // One home pair and two other backends: two combinations.
    let mut gateway = Gateway { is_shared: false, ..Gateway::new((4, 3, 10), 9) };
    gateway.services.iter_mut().for_each(|service| service.home = zone(0));
    let made = gateway.plan();
    assert_eq!(made.refused.len(), 7);
    assert!(made.refused.values().all(|missing| *missing == Missing::Combination(zone(0))), "{made:?}");
    let text = made.refused.values().next().unwrap().to_string();
    assert!(text.ends_with("add a backend in zone z0"), "{text}");
}

#[test]
fn service_that_wants_more_than_half_of_backends_is_refused() {
    let mut gateway = Gateway::new((8, 2, 10), 1);
    gateway.services[0].count = 8;
    assert_eq!(refusal(&mut gateway, 0), Some(Missing::Share { wanted: 8, most: 4 }));
    gateway.services[0].count = 4;
    gateway.services.extend((1..7).map(|number| service(number, 2, MIN_BACKENDS)));
    assert!(gateway.plan().refused.is_empty());
    assert_others_survive(&gateway.bits());
}

#[test]
fn tenant_gets_at_most_half_of_backend_combinations_unless_alone() {
    // Three backends at home and one elsewhere: three combinations.
    let of_tenants = |tenants: [usize; 4]| {
        let mut gateway = Gateway::new((4, 2, 100), 0);
        gateway.backends[1].zone = zone(0);
        let services = tenants.iter().enumerate().map(|(number, tenant)| {
            let name = ServiceName::new(format!("t{tenant}/s{number}")).unwrap();
            PlacedService { name, ..service(0, 2, MIN_BACKENDS) }
        });
        gateway.services = services.collect();
        gateway
    };
    let mut gateway = of_tenants([0, 0, 0, 1]);
    let made = gateway.plan();
    let (tenant, zone) = (Tenant::new("t0").unwrap(), zone(0));
    let refused: Vec<_> = made.refused.into_values().collect();
    assert_eq!(refused, [Missing::TenantCombinations { tenant, zone }]);
    assert!(gateway.services[3].present.len() == MIN_BACKENDS && gateway.plan().changes.is_empty());
    let mut alone = of_tenants([0, 0, 0, 0]);
    alone.is_shared = false;
    assert_eq!(alone.plan().refused.len(), 1, "the fourth finds no combination");
}

#[test]
fn placement_repair_may_exceed_tenants_half_of_combinations() {
    // The tenant has three of the six combinations. After the loss, three are left, and it has all of them.
    let mut gateway = Gateway::new((5, 1, 100), 3);
    gateway.backends[4].zone = zone(1);
    gateway.services.iter_mut().for_each(|one| one.name.tenant = Tenant::new("t0").unwrap());
    assert!(gateway.plan().refused.is_empty());
    let gone = gateway.services[0].present.first().unwrap().clone();
    gateway.backends.retain(|one| one.name != gone);
    let made = gateway.plan();
    let is_bounded = |missing: &Missing| matches!(missing, Missing::TenantCombinations { .. });
    assert!(!made.refused.values().any(is_bounded), "{made:?}");
}

#[test]
fn service_growth_that_moves_many_services_of_other_tenants_is_refused() {
    // Half of the 3,968 combinations (two of 32 backends, one of eight) are taken.
    let mut gateway = Gateway { is_shared: false, ..Gateway::new((40, 5, 1_000), 2_000) };
    gateway.backends.iter_mut().filter(|one| one.zone != zone(1)).for_each(|one| one.zone = zone(0));
    gateway.services.iter_mut().for_each(|one| one.home = zone(0));
    assert!(gateway.plan().refused.is_empty());
    let grown = |tenant: fn(usize) -> String, count| {
        let mut gateway = gateway.clone();
        for (number, service) in gateway.services.iter_mut().enumerate() {
            service.name.tenant = Tenant::new(tenant(number)).unwrap();
        }
        gateway.services[0].count = count;
        gateway.plan()
    };
    let mut is_bounded = false;
    for count in [10, 13, 14, 15, 16] {
        let (of_many, of_one) = (grown(|number| format!("t{number}"), count), grown(|_| "t0".into(), count));
        match of_many.refused.is_empty() {
            true => assert!(of_many.changes.len() <= 17, "{count}: {of_many:?}"),
            false => {
                assert!(of_many.changes.is_empty(), "{count}: {of_many:?}");
                is_bounded |= of_one.refused.is_empty();
            }
        }
    }
    assert!(is_bounded, "a growth moves more services of its own tenant than of others");
}

#[test]
fn closed_and_full_gateway_backends_get_no_services() {
    let mut gateway = Gateway::new((9, 3, 2), 2);
    gateway.plan();
    let closed = gateway.services[0].present.first().unwrap().clone();
    gateway.backends.iter_mut().filter(|one| one.name == closed).for_each(|one| one.is_open = false);
    let before = gateway.services.clone();
    assert!(gateway.plan().changes.is_empty(), "what is in force stays");
    gateway.services.extend((2..30).map(|number| service(number, 3, MIN_BACKENDS)));
    gateway.plan();
    assert_eq!(gateway.services[..2], before[..], "nothing moves");
    assert!(gateway.loads()[&closed] <= 2 && gateway.loads().values().all(|load| *load <= 2));
    assert!(gateway.services[2..].iter().all(|service| !service.present.contains(&closed)));
}

#[test]
fn backends_added_for_growth_are_in_home_zone_with_spare_cpu() {
    let mut gateway = Gateway::new((12, 2, 100), 6);
    gateway.plan();
    let present = gateway.services[0].present.clone();
    let home = gateway.services[0].home.clone();
    let is_new = |gateway: &Gateway, one: &Backend| {
        one.zone == home && !present.contains(&one.name) && gateway.services[0].present.contains(&one.name)
    };
    gateway.services[0].added = 1;
    gateway.services[0].count += 1;
    // No backend's CPU utilisation is known.
    let made = gateway.plan();
    assert_eq!(made.refused.get(&gateway.services[0].name), Some(&Missing::Relief(home.clone())));
    assert_eq!(gateway.services[0].present, present);
    // All home backends but one are busy.
    let idle =
        gateway.backends.iter().position(|one| one.zone == home && !present.contains(&one.name)).unwrap();
    for (number, backend) in gateway.backends.iter_mut().enumerate() {
        backend.used_permille = Some(if number == idle { 400 } else { 401 });
    }
    let made = gateway.plan();
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    let added: Vec<usize> =
        (0..gateway.backends.len()).filter(|at| is_new(&gateway, &gateway.backends[*at])).collect();
    assert_eq!(added, [idle]);
    // The added backend is given back.
    gateway.services[0].added = 0;
    gateway.services[0].count -= 1;
    gateway.plan();
    assert_eq!(gateway.services[0].present.len(), MIN_BACKENDS);
}

#[test]
fn pinned_service_keeps_its_backends_and_others_make_room() {
    let mut gateway = Gateway::new((12, 2, 100), 8);
    gateway.plan();
    let names = |numbers: &[usize]| -> BTreeSet<Label> {
        numbers.iter().map(|number| Label::new(format!("gw-{number}")).unwrap()).collect()
    };
    // An operator gives one service what another one has, and more than it asks for.
    let of_other = gateway.services[1].present.clone();
    gateway.services[0].is_pinned = true;
    gateway.services[0].present = of_other.union(&names(&[0, 2])).cloned().collect();
    let pinned = gateway.services[0].present.clone();
    let made = gateway.plan();
    assert!(made.refused.is_empty(), "{made:?}");
    assert_eq!(gateway.services[0].present, pinned);
    assert!(gateway.services[1..].iter().all(|other| !other.present.is_subset(&pinned)));
    // Neither the growth of others nor its own moves it.
    gateway.services[0].count = 6;
    for service in &mut gateway.services[1..] {
        service.count = 6;
    }
    gateway.plan();
    assert_eq!(gateway.services[0].present, pinned);
    gateway.services[0].is_pinned = false;
    gateway.services[0].count = MIN_BACKENDS;
    gateway.plan();
    assert_eq!(gateway.services[0].present.len(), MIN_BACKENDS, "it is placed as it asks again");
    // One whose backends are all gone is placed anew.
    gateway.services[0].is_pinned = true;
    let gone = gateway.services[0].present.clone();
    gateway.backends.retain(|backend| !gone.contains(&backend.name));
    gateway.plan();
    assert_eq!(gateway.services[0].present.len(), MIN_BACKENDS);
}

#[test]
fn sandboxed_service_gets_sandboxes_alone_and_others_get_none() {
    let mut gateway = Gateway::new((12, 2, 100), 8);
    for number in [20, 21, 22, 24] {
        gateway.backends.push(Backend { is_sandbox: true, ..backend(number, 2, 2) });
    }
    gateway.plan();
    let sandboxes: BTreeSet<Label> = [20, 21, 22, 24].map(|number| backend(number, 2, 2).name).into();
    let before = gateway.bits();
    assert!(gateway.services.iter().all(|service| service.present.is_disjoint(&sandboxes)));
    for service in &mut gateway.services[..2] {
        service.is_sandboxed = true;
    }
    let made = gateway.plan();
    assert!(made.refused.is_empty() && made.changes.len() == 2, "{made:?}");
    for (number, service) in gateway.services[..2].iter().enumerate() {
        let (at_home, all) = (gateway.in_zone(service), service.present.len());
        assert!(service.present.is_subset(&sandboxes) && all == at_home + 1, "{number}: {service:?}");
    }
    assert_eq!(gateway.bits()[2..], before[2..], "others stay");
    assert_eq!(gateway.plan().changes, BTreeMap::new(), "it stays");
    // Its sandboxes are full.
    gateway.services[2].is_sandboxed = true;
    gateway.services[4].is_sandboxed = true;
    let made = gateway.plan();
    assert!(made.refused.values().all(|missing| *missing == Missing::Sandbox), "{made:?}");
    assert!(gateway.loads().iter().all(|(name, load)| !sandboxes.contains(*name) || *load <= 2));
    // It comes back from the sandbox.
    gateway.services[0].is_sandboxed = false;
    gateway.plan();
    assert!(gateway.services[0].present.is_disjoint(&sandboxes) && gateway.is_spread(&gateway.services[0]));
}

#[test]
fn service_without_sandbox_stays_where_it_is_whatever_is_gone() {
    let mut gateway = Gateway::new((12, 2, 100), 8);
    gateway.plan();
    let present = gateway.services[0].present.clone();
    gateway.services[0].is_sandboxed = true;
    let made = gateway.plan();
    assert_eq!(
        made.refused.into_iter().collect::<Vec<_>>(),
        [(gateway.services[0].name.clone(), Missing::Sandbox)]
    );
    assert_eq!((&gateway.services[0].present, made.changes.len()), (&present, 0));
    let spare = gateway.services.clone();
    // Its sandbox is deleted: no other backend gets it.
    let sandbox = Backend { is_sandbox: true, ..backend(20, 2, 2) };
    gateway.backends.push(sandbox.clone());
    gateway.plan();
    assert_eq!(gateway.services[0].present, [sandbox.name].into(), "one sandbox is enough");
    gateway.backends.pop();
    let made = gateway.plan();
    assert!(made.changes.is_empty() && made.refused.len() == 1, "{made:?}");
    assert_eq!(gateway.services[1..], spare[1..]);
}
