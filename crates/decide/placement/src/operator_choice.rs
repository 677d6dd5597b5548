//! Whether the backends that an operator chose for a service are allowed.

use std::{collections::BTreeSet, fmt};

use fairmesh_model::{Label, ServiceName, Zone};

use crate::input::{Backend, ELSEWHERE, HOME, MAX_BACKENDS, PlacedService};

/// Why backends cannot serve a service. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// There is no such backend.
    Unknown(Label),
    /// The backend is a sandbox, for services that the controller moves there.
    Sandbox(Label),
    /// The backend gets no further services.
    Closed(Label),
    /// The backend serves as many services as it may.
    Full {
        /// The backend.
        backend: Label,
        /// How many it may serve.
        capacity: u32,
    },
    /// There are more backends than a service may have.
    TooMany(usize),
    /// Too few of the backends are in the home zone.
    Home(Zone),
    /// All of the backends are in the home zone.
    Elsewhere(Zone),
    /// The backends all lie among those of another service.
    Within(ServiceName),
    /// The backends of another service all lie among these.
    Covers(ServiceName),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(backend) => {
                write!(f, "there is no backend {backend}; see `fairmesh get gateway-backends`")
            }
            Self::Sandbox(backend) => write!(
                f,
                "backend {backend} is a sandbox; choose another one, or move the service with --sandbox"
            ),
            Self::Closed(backend) => write!(f, "backend {backend} is closed; open it, or choose another one"),
            Self::Full { backend, capacity } => {
                write!(
                    f,
                    "backend {backend} serves {capacity} services already; raise its capacity, or choose another one"
                )
            }
            Self::TooMany(count) => {
                write!(
                    f,
                    "{count} backends are given, and a service has {MAX_BACKENDS} at most; choose fewer"
                )
            }
            Self::Home(zone) => {
                write!(
                    f,
                    "fewer than {HOME} of the backends are in the home zone {zone}; add one of that zone"
                )
            }
            Self::Elsewhere(zone) => write!(
                f,
                "fewer than {ELSEWHERE} of the backends is in a zone other than {zone}; add one, so that the service survives its home zone"
            ),
            Self::Within(other) => {
                write!(
                    f,
                    "all of these backends serve {other} too, which could take them down; replace one of them"
                )
            }
            Self::Covers(other) => {
                write!(
                    f,
                    "all backends of {other} are among these, and would go down with them; replace one of them"
                )
            }
        }
    }
}

/// Checks the backends that an operator chose for a service by the rules of plans. Its share of all backends and the quota of its tenant
/// do not bind an operator.
///
/// # Errors
/// The first rule that the backends break.
pub fn check_choice(
    backends: &[Backend],
    services: &[PlacedService],
    (service, chosen): (&PlacedService, &BTreeSet<Label>),
) -> Result<(), Unfit> {
    let others = || services.iter().filter(|other| other.name != service.name);
    if chosen.len() > MAX_BACKENDS {
        return Err(Unfit::TooMany(chosen.len()));
    }
    let mut at_home = 0;
    for name in chosen {
        let known = backends.iter().find(|backend| backend.name == *name);
        let backend = known.ok_or_else(|| Unfit::Unknown(name.clone()))?;
        if backend.is_sandbox {
            return Err(Unfit::Sandbox(name.clone()));
        }
        at_home += usize::from(backend.zone == service.home);
        // What it has already takes no further place.
        if service.present.contains(name) {
            continue;
        }
        let served = others().filter(|other| other.present.contains(name)).count();
        if !backend.is_open {
            return Err(Unfit::Closed(name.clone()));
        }
        if served >= backend.capacity as usize {
            return Err(Unfit::Full { backend: name.clone(), capacity: backend.capacity });
        }
    }
    if at_home < HOME {
        return Err(Unfit::Home(service.home.clone()));
    }
    if chosen.len() - at_home < ELSEWHERE {
        return Err(Unfit::Elsewhere(service.home.clone()));
    }
    for other in others().filter(|other| !other.present.is_empty()) {
        if chosen.is_subset(&other.present) {
            return Err(Unfit::Within(other.name.clone()));
        }
        if other.present.is_subset(chosen) {
            return Err(Unfit::Covers(other.name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(name: &str) -> Label {
        Label::new(name).unwrap()
    }

    fn labels(names: &[&str]) -> BTreeSet<Label> {
        names.iter().map(|name| label(name)).collect()
    }

    fn service(name: &str, present: &[&str]) -> PlacedService {
        PlacedService {
            name: ServiceName::new(name).unwrap(),
            home: Zone::new("a").unwrap(),
            count: 3,
            added: 0,
            present: labels(present),
            is_pinned: false,
            is_sandboxed: false,
        }
    }

    fn backend(name: &str, zone: &str) -> Backend {
        let zone = Zone::new(zone).unwrap();
        let is_sandbox = name.starts_with('s');
        Backend { name: label(name), zone, capacity: 2, is_open: true, is_sandbox, used_permille: None }
    }

    #[test]
    fn operator_may_not_break_the_rules_of_plans() {
        let zones =
            [("a1", "a"), ("a2", "a"), ("a3", "a"), ("a4", "a"), ("b1", "b"), ("b2", "b"), ("s1", "b")];
        let mut backends: Vec<Backend> = zones.iter().map(|(name, zone)| backend(name, zone)).collect();
        backends[2].capacity = 9;
        backends[3].is_open = false;
        backends[4].capacity = 1;
        let services = [
            service("red/web", &["a1", "a2", "b2"]),
            service("blue/web", &["a2", "a3", "b1"]),
            service("blue/api", &["a2", "a3", "b2"]),
        ];
        let check = |chosen: &[&str]| check_choice(&backends, &services, (&services[0], &labels(chosen)));
        let name = |name: &str| ServiceName::new(name).unwrap();
        let zone = || Zone::new("a").unwrap();
        for (chosen, unfit) in [
            (&["a1", "a3", "x1"][..], Unfit::Unknown(label("x1"))),
            (&["a1", "a4", "b2"], Unfit::Closed(label("a4"))),
            (&["a1", "a2", "s1"], Unfit::Sandbox(label("s1"))),
            (&["a1", "a3", "b1"], Unfit::Full { backend: label("b1"), capacity: 1 }),
            (&["a1", "b2"], Unfit::Home(zone())),
            (&["a1", "a3"], Unfit::Elsewhere(zone())),
        ] {
            assert_eq!(check(chosen), Err(unfit), "{chosen:?}");
        }
        assert_eq!(check(&["a1", "a2", "b2"]), Ok(()), "what it has");
        assert_eq!(check(&["a1", "a3", "b2"]), Ok(()));
        assert_eq!(check(&["a2", "a3", "b2"]), Err(Unfit::Within(name("blue/api"))));
        assert_eq!(check(&["a1", "a2", "a3", "b2"]), Err(Unfit::Covers(name("blue/api"))));
    }
}
