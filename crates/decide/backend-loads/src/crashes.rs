//! Which service takes its backends down: a query of death (Canal Mesh, section 4.2).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{Label, Placement, ServiceName, Zone};

/// How long a backend counts as crashed after a replica of it has ended without a word.
pub const CRASHED_FOR: Duration = Duration::from_mins(2);

/// Backends that have crashed lately, each with the services whose calls had reached every replica of it that crashed, just before.
pub type Crashed = BTreeMap<Label, BTreeSet<ServiceName>>;

type Placed<'a> = (&'a ServiceName, &'a Placement);

/// The service that takes its backends down, if the crashes name one.
///
/// `crashed` has the backends that have crashed lately, each with the services whose calls had reached every replica of it that crashed,
/// just before. `zones` has the backends of each zone. A service is the cause if it is the only one all of whose backends have crashed, or,
/// while there is none of these, the only one all of whose backends in the home zone have, and that had calls at each of these crashes. No
/// two services have the same backends, so that a query of death names its service at the latest when all of them are down. Where a
/// whole zone and nothing else has crashed, that is a failure of the zone.
///
/// A request that takes a replica down is never reported. So a service all of whose backends are down needs no reported calls, unless
/// another service has all of these backends too: each of the two may be the cause then.
pub fn crashing_service<'a>(
    crashed: &Crashed,
    zones: &BTreeMap<&Zone, BTreeSet<&Label>>,
    placed: impl Iterator<Item = Placed<'a>>,
) -> Option<Placed<'a>> {
    let is_down = |name: &Label| crashed.contains_key(name);
    let is_failure_of = |zone: &Zone| {
        zones.get(zone).is_some_and(|all| all.len() == crashed.len() && all.iter().all(|name| is_down(name)))
    };
    let is_down_at_home = |(_, placement): &Placed<'_>| {
        let home = placement.zones.get(&placement.home_zone);
        home.is_some_and(|home| home.len() > 1 && home.iter().all(is_down))
            && !is_failure_of(&placement.home_zone)
    };
    let had_calls = |(service, placement): &Placed<'_>| {
        let mut callers = placement.backends().filter_map(|name| crashed.get(name));
        callers.all(|callers| callers.contains(*service))
    };
    let all: Vec<_> = placed.collect();
    let at_home: Vec<_> = all.iter().copied().filter(is_down_at_home).collect();
    let whole = at_home.iter().copied().filter(|(_, placement)| placement.backends().all(is_down));
    let whole: Vec<_> = whole.collect();
    if whole.is_empty() {
        return only(at_home.into_iter().filter(had_calls));
    }
    match only(whole.iter().copied().filter(had_calls)) {
        Some(caller) => (!is_within_another(caller, &whole)).then_some(caller),
        None if whole.iter().any(had_calls) => None,
        None => {
            let widest = whole.iter().find(|one| whole.iter().all(|other| has_backends_of(one, other)));
            widest.copied().filter(|one| !is_within_another(*one, &all))
        }
    }
}

/// The item of an iterator with exactly one.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    items.next().filter(|_| items.next().is_none())
}

/// Whether a service has all backends of another.
fn has_backends_of((_, one): &Placed<'_>, (_, other): &Placed<'_>) -> bool {
    other.backends().all(|name| one.has(name))
}

/// Whether another one of the services has all backends of `one`.
fn is_within_another(one: Placed<'_>, services: &[Placed<'_>]) -> bool {
    services.iter().any(|other| other.0 != one.0 && has_backends_of(other, &one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(name: &str) -> Label {
        Label::new(name).unwrap()
    }

    /// The service that is found when these backends have crashed, to which all services had calls.
    fn found(crashed: &[&str], services: &[(&str, &[&str])]) -> Option<String> {
        let all: BTreeSet<_> = services.iter().map(|(name, _)| ServiceName::new(*name).unwrap()).collect();
        found_among(&crashed.iter().map(|name| (label(name), all.clone())).collect(), services)
    }

    /// The service that is found after these crashes; the first letter of a backend's name is its zone.
    fn found_among(crashed: &Crashed, services: &[(&str, &[&str])]) -> Option<String> {
        let all: Vec<Label> = ["a1", "a2", "a3", "b1", "b2", "c1", "c2"].into_iter().map(label).collect();
        let [a, b, c] = ["a", "b", "c"].map(|zone| Zone::new(zone).unwrap());
        let of = |zone: &Zone| all.iter().filter(|name| name.as_str().starts_with(zone.as_str())).collect();
        let zones = [(&a, of(&a)), (&b, of(&b)), (&c, of(&c))].into();
        let placed: Vec<(ServiceName, Placement)> = services
            .iter()
            .map(|(name, backends)| {
                let mut zones = BTreeMap::<Zone, BTreeSet<Label>>::new();
                for backend in *backends {
                    zones.entry(Zone::new(&backend[..1]).unwrap()).or_default().insert(label(backend));
                }
                let home_zone = Zone::new(&backends[0][..1]).unwrap();
                let (pinned, connection_limit) = (None, None);
                let placement = Placement { home_zone, zones, added: 0, pinned, connection_limit };
                (ServiceName::new(*name).unwrap(), placement)
            })
            .collect();
        let found = crashing_service(crashed, &zones, placed.iter().map(|(name, placed)| (name, placed)));
        found.map(|(service, _)| service.to_string())
    }

    const SERVICES: &[(&str, &[&str])] = &[
        ("red/web", &["a1", "a2", "b1"]),
        ("blue/web", &["a1", "a2", "b2"]),
        ("blue/api", &["a2", "a3", "b1"]),
        ("red/elsewhere", &["c1", "c2", "a1"]),
    ];

    #[test]
    fn service_whose_backends_all_crash_is_found() {
        assert_eq!(found(&["a2", "a3"], SERVICES).as_deref(), Some("blue/api"), "its home zone");
        assert_eq!(found(&["a1", "a2"], SERVICES), None, "one of two");
        assert_eq!(found(&["a1", "a2", "b1"], SERVICES).as_deref(), Some("red/web"));
        assert_eq!(
            found(&["a1", "a2", "b2", "c1"], SERVICES).as_deref(),
            Some("blue/web"),
            "beside another crash"
        );
    }

    #[test]
    fn service_without_calls_at_a_crash_is_not_found() {
        let crashed = |callers: [&[&str]; 2]| {
            let callers =
                callers.map(|names| names.iter().map(|name| ServiceName::new(*name).unwrap()).collect());
            ["a2", "a3"].map(label).into_iter().zip(callers).collect::<Crashed>()
        };
        let found = |callers| found_among(&crashed(callers), SERVICES);
        assert_eq!(found([&["blue/api", "red/web"], &["blue/api"]]).as_deref(), Some("blue/api"));
        // Two other services have each taken one of its backends down.
        assert_eq!(found([&["red/web"], &["red/elsewhere"]]), None);
        assert_eq!(found([&["blue/api"], &["red/elsewhere"]]), None);
    }

    #[test]
    fn service_without_reported_requests_is_found_once_all_backends_are_down() {
        let silent = |names: &[&str]| -> Crashed {
            names.iter().map(|name| (label(name), [ServiceName::new("blue/web").unwrap()].into())).collect()
        };
        let found = |names: &[&str], services: &[(&str, &[&str])]| found_among(&silent(names), services);
        assert_eq!(found(&["a1", "a2"], SERVICES).as_deref(), Some("blue/web"), "by its calls");
        assert_eq!(found(&["a1", "a2", "b1"], SERVICES).as_deref(), Some("red/web"));
        // One that has all of its backends, and more, may be the cause as well.
        let small: &[(&str, &[&str])] = &[("red/small", &["a2", "a3"])];
        let small = [SERVICES, small].concat();
        assert_eq!(found(&["a2", "a3"], &small), None);
        assert_eq!(found(&["a2", "a3", "b1"], &small).as_deref(), Some("blue/api"), "now it is known");
        let caller: [(&str, &[&str]); 2] = [SERVICES[2], ("blue/web", &["a2", "a3"])];
        assert_eq!(found(&["a2", "a3", "b1"], &caller), None, "one had calls, the other is wider");
    }

    #[test]
    fn single_backends_and_zones_that_fail_name_no_service() {
        assert_eq!(found(&[], SERVICES), None);
        assert_eq!(found(&["a2"], SERVICES), None);
        assert_eq!(found(&["a1", "a2", "a3"], SERVICES), None, "zone a is cut off");
        assert_eq!(found(&["c1", "c2"], SERVICES), None, "zone c is cut off, and has one service at home");
        assert_eq!(found(&["a1", "c1", "c2"], SERVICES).as_deref(), Some("red/elsewhere"));
        assert_eq!(found(&["a1", "a2", "a3", "b1", "b2"], SERVICES), None, "all is down");
    }
}
