use std::{net::SocketAddr, time::Duration};

use fairmesh_model::{CallPath, CallRates, HostType, InstanceId, Location, Traffic, TrafficPlanner, Zone};
use fairmesh_signals::ServiceSum;
use proptest::prelude::*;

use super::*;

fn service(number: usize) -> ServiceName {
    ServiceName::new(format!("shop/s{number}")).unwrap()
}

fn region(number: usize) -> Region {
    Region::new(format!("r{number}")).unwrap()
}

/// A writer's view of one endpoint: where it is, and whether it serves with which weight.
#[derive(Clone, Copy, Debug)]
struct Place {
    region: usize,
    zone: Option<usize>,
    weight: Option<u32>,
    is_fast: bool,
}

fn endpoint(instance: usize, place: Place) -> Endpoint {
    Endpoint {
        instance: InstanceId::new(format!("i{instance}")).unwrap(),
        address: SocketAddr::from(([10, 0, 0, 1], 80)),
        location: Location {
            zone: place.zone.map(|zone| Zone::new(format!("z{zone}")).unwrap()),
            host_type: place.is_fast.then(|| HostType::new("fast").unwrap()),
            ..Location::in_region(region(place.region))
        },
        state: if place.weight.is_some() { EndpointState::Serving } else { EndpointState::Draining },
        weight: place.weight.unwrap_or(1_000),
        lease: None,
        mtls: false,
        labels: BTreeMap::new(),
    }
}

fn hosts(speed: u32) -> Hosts {
    Hosts::new([(HostType::new("fast").unwrap(), speed)].into(), Vec::new()).unwrap()
}

fn planned() -> PolicyFacts {
    let traffic = Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() };
    PolicyFacts { traffic, ..PolicyFacts::default() }
}

/// The endpoints of all services, as an index has them.
fn endpoints(facts: &MeshFacts) -> BTreeMap<ServiceName, BTreeMap<Region, super::super::RegionEndpoints>> {
    facts.services.iter().map(|(name, facts)| (name.clone(), facts.endpoints.clone())).collect()
}

fn place() -> impl Strategy<Value = Place> {
    let zone = prop::option::of(0..2_usize);
    let weight = prop::option::of(1..5_000_u32);
    (0..3_usize, zone, weight, any::<bool>()).prop_map(|(region, zone, weight, is_fast)| Place {
        region,
        zone,
        weight,
        is_fast,
    })
}

proptest! {
    /// Against an index of what is left, made from scratch.
    #[test]
    fn incrementally_updated_facts_index_equals_rebuilt_index(
        changes in prop::collection::vec((0..2_usize, 0..4_usize, prop::option::of(place())), 1..60),
        speed in 100..9_000_u32,
        at in 0..60_usize,
    ) {
        let mut facts = MeshFacts::default();
        let mut present = BTreeMap::<(usize, usize), Endpoint>::new();
        for (number, (name, instance, place)) in changes.into_iter().enumerate() {
            if number == at {
                let of = |name: &ServiceName| {
                    let own = present.iter().filter(|((number, _), _)| service(*number) == *name);
                    own.map(|(_, endpoint)| endpoint.clone()).collect::<Vec<_>>()
                };
                facts.set_hosts(hosts(speed), of);
            }
            let after = place.map(|place| endpoint(instance, place));
            let before = present.get(&(name, instance)).cloned();
            facts.set_endpoint(&service(name), before.as_ref(), after.as_ref());
            match after {
                Some(after) => drop(present.insert((name, instance), after)),
                None => drop(present.remove(&(name, instance))),
            }
        }
        let mut scratch = MeshFacts::default();
        scratch.set_hosts(facts.topology().hosts.clone(), |_| Vec::new());
        for ((name, _), endpoint) in &present {
            scratch.set_endpoint(&service(*name), None, Some(endpoint));
        }
        prop_assert_eq!(endpoints(&facts), endpoints(&scratch));
        prop_assert_eq!(facts.by_region, scratch.by_region);
    }
}

#[test]
fn region_is_known_while_it_has_endpoints_and_serving_while_one_serves() {
    let mut facts = MeshFacts::default();
    let serving = endpoint(1, Place { region: 1, zone: None, weight: Some(1_000), is_fast: false });
    let draining = Endpoint { state: EndpointState::Draining, ..serving.clone() };
    let serves = |facts: &MeshFacts| facts.serving_in(&region(1)).count();
    facts.set_endpoint(&service(1), None, Some(&serving));
    assert_eq!((facts.regions(), serves(&facts)), ([region(1)].into(), 1));
    facts.set_endpoint(&service(1), Some(&serving), Some(&draining));
    assert_eq!((facts.regions(), serves(&facts)), ([region(1)].into(), 0));
    facts.set_endpoint(&service(1), Some(&draining), None);
    assert_eq!((facts.regions(), serves(&facts)), (BTreeSet::new(), 0));
    assert!(facts.services.is_empty(), "nothing is kept of a service that is gone");
}

#[test]
fn changed_fact_increments_version_of_its_service_only() {
    let mut facts = MeshFacts::default();
    let own = endpoint(1, Place { region: 1, zone: None, weight: Some(1_000), is_fast: false });
    for number in 0..2 {
        facts.set_policy(&service(number), Some(planned()));
        facts.set_endpoint(&service(number), None, Some(&own));
    }
    let versions = |facts: &MeshFacts| [0, 1].map(|number| facts.service(&service(number)).unwrap().version);
    let before = versions(&facts);
    let renewed = Endpoint { lease: Some(Duration::from_secs(9)), ..own.clone() };
    facts.set_endpoint(&service(1), Some(&own), Some(&renewed));
    assert_eq!(versions(&facts), before, "a lease is none of the planner's");
    facts.set_endpoint(&service(1), Some(&own), None);
    let after = versions(&facts);
    assert!(after[0] == before[0] && after[1] > before[1], "{before:?} {after:?}");
    facts.clear();
    facts.set_policy(&service(1), Some(planned()));
    assert!(facts.service(&service(1)).unwrap().version > after[1], "an index that is loaded again is new");
}

#[test]
fn aged_traffic_reports_keep_version_of_service_facts() {
    let mut facts = MeshFacts::default();
    facts.set_policy(&service(1), Some(planned()));
    let path = |to| CallPath {
        service: service(1),
        from: region(1),
        to: Some(region(to)),
        class: None,
        caller: None,
        from_zone: None,
        to_zone: None,
        parent: None,
    };
    let report = |offered, age_ms| {
        let mut rates = CallRates { offered, attempts: offered, ..CallRates::default() };
        rates.grow_older(Duration::from_millis(age_ms));
        let calls = vec![(path(1), rates), (path(2), rates)];
        ServiceSum { calls, ..ServiceSum::default() }
    };
    let mut version_after = |report, at_ms| {
        facts.set_reports(&service(1), ServiceReports::new(report, [region(1)].into(), at_ms));
        let facts = facts.service(&service(1)).unwrap();
        (facts.version, facts.reports.at_ms)
    };
    let (first, _) = version_after(report(7_000, 200), 10_000);
    assert_eq!(version_after(report(7_000, 1_200), 11_000), (first, 11_000), "the same data");
    let (second, _) = version_after(report(7_000, 200), 12_000);
    assert!(second > first, "new data of the same rate");
    assert!(version_after(report(7_001, 1_200), 13_000).0 > second, "another rate");
    facts.set_policy(&service(1), None);
    assert!(facts.service(&service(1)).is_none() && facts.planned().is_empty());
}

#[test]
fn declared_shards_are_known_until_their_service_is_removed() {
    let mut facts = MeshFacts::default();
    facts.set_kind(&service(0), ServiceKind::Replicated);
    assert_eq!((facts.version(), facts.service(&service(0))), (0, None), "nothing has changed");
    facts.set_kind(&service(0), ServiceKind::Sharded);
    assert_eq!(facts.service(&service(0)).unwrap().kind, ServiceKind::Sharded);
    facts.set_kind(&service(0), ServiceKind::Replicated);
    assert_eq!(facts.service(&service(0)), None);
}
