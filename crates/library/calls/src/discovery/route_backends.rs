use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{Label, ServiceName};
use fairmesh_router::ServiceTable;

/// Maximum number of route and backend pairs per service that metrics distinguish, so that no policy can make metrics
/// grow without bound.
const MAX_ROUTE_BACKENDS: u8 = 32;
/// Name used for all pairs beyond the maximum. It is not a valid name of a route or service.
const OVERFLOW: &str = "(other)";
const NO_ROUTE: &str = "(none)";

/// Number of a service's route and backend pair; counters use it instead of names. A number keeps its meaning as long
/// as the service is followed, even if the policy changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteBackendIndex(u8);

/// Names that a [`RouteBackendIndex`] stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteBackend {
    /// The route; `(none)` for calls without a route, `(other)` beyond the maximum.
    pub route: String,
    /// The service that receives the calls; `(other)` beyond the maximum.
    pub backend: String,
}

/// Numbers of one service's route and backend pairs, assigned when its policy is compiled.
#[derive(Debug, Default)]
pub(super) struct RouteBackends(Mutex<KnownRouteBackends>);

#[derive(Debug, Default)]
struct KnownRouteBackends {
    numbers: HashMap<(Label, ServiceName), RouteBackendIndex>,
    /// The pairs by number, from number 1 on.
    names: Vec<(Label, ServiceName)>,
}

impl RouteBackend {
    /// Names used for pairs beyond the maximum.
    pub fn overflow() -> Self {
        Self { route: OVERFLOW.to_owned(), backend: OVERFLOW.to_owned() }
    }
}

impl RouteBackendIndex {
    /// Number used for pairs beyond the maximum.
    pub const OTHER: Self = Self(MAX_ROUTE_BACKENDS + 1);
    /// How many numbers there are.
    pub const COUNT: usize = MAX_ROUTE_BACKENDS as usize + 2;

    /// All numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::OTHER.0).map(Self)
    }

    /// The number as an array index, less than [`COUNT`](Self::COUNT).
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }

    pub(crate) fn to_byte(self) -> u8 {
        self.0
    }

    pub(crate) fn from_byte(byte: u8) -> Self {
        Self(byte.min(Self::OTHER.0))
    }
}

impl RouteBackends {
    /// Returns the number of each route and backend pair of the table. Pairs start at position 1; position 0 stands
    /// for calls without a route.
    pub(super) fn number(&self, table: &ServiceTable) -> Box<[RouteBackendIndex]> {
        let mut known = self.lock();
        let numbers = table.route_backends().map(|(route, backend)| known.number(route, backend));
        std::iter::once(RouteBackendIndex::default()).chain(numbers).collect()
    }

    /// Returns the names of `number` in `service`.
    pub(super) fn name(&self, number: RouteBackendIndex, service: &ServiceName) -> RouteBackend {
        let known = self.lock();
        let (route, backend) = match number.index().checked_sub(1) {
            None => (NO_ROUTE.to_owned(), service.to_string()),
            Some(position) => match known.names.get(position) {
                Some((route, backend)) => (route.to_string(), backend.to_string()),
                None => return RouteBackend::overflow(),
            },
        };
        RouteBackend { route, backend }
    }

    fn lock(&self) -> MutexGuard<'_, KnownRouteBackends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownRouteBackends {
    fn number(&mut self, route: &Label, backend: &ServiceName) -> RouteBackendIndex {
        let pair = (route.clone(), backend.clone());
        if let Some(number) = self.numbers.get(&pair) {
            return *number;
        }
        let next = match u8::try_from(self.names.len() + 1) {
            Ok(next) if next <= MAX_ROUTE_BACKENDS => RouteBackendIndex(next),
            _ => return RouteBackendIndex::OTHER,
        };
        self.names.push(pair.clone());
        self.numbers.insert(pair, next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_backend_pairs_keep_metric_indices_and_share_one_beyond_maximum() {
        let (known, service) = (RouteBackends::default(), ServiceName::new("shop/web").unwrap());
        let number = |route: &str| known.lock().number(&Label::new(route).unwrap(), &service);
        let first = number("canary");
        let all: Vec<_> = (0..100).map(|n| number(&format!("route-{n}"))).collect();
        assert_eq!(
            (number("canary"), number("route-0"), number("route-99")),
            (first, all[0], RouteBackendIndex::OTHER)
        );
        assert_eq!(all.iter().filter(|number| **number == RouteBackendIndex::OTHER).count(), 100 + 1 - 32);
        let name = |number| known.name(number, &service).route;
        assert_eq!(name(first), "canary");
        assert_eq!(
            (name(RouteBackendIndex::default()), name(RouteBackendIndex::OTHER)),
            ("(none)".into(), "(other)".into())
        );
        assert_eq!(
            RouteBackendIndex::all().last().map(RouteBackendIndex::index),
            Some(RouteBackendIndex::COUNT - 1)
        );
    }
}
