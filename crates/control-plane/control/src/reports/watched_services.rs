//! Services that operators look at. Their calls are reported for a while. Uses no clock.
//!
//! They are kept in memory rather than as records: a look is not worth a write to the store, and viewers make
//! no writes otherwise. If another control plane takes over, the next look informs it.

use std::collections::BTreeMap;

use fairmesh_model::{ServiceName, Tenant};
use fairmesh_signals::MAX_WATCHED_SERVICES;

/// Time for which a service is watched after an operator viewed it, in milliseconds.
const WATCH_MS: u64 = 60_000;

/// Services that operators view, at most [`MAX_WATCHED_SERVICES`].
#[derive(Debug, Default)]
pub(super) struct WatchedServices(BTreeMap<ServiceName, Watch>);

#[derive(Clone, Copy, Debug)]
struct Watch {
    since_ms: u64,
    until_ms: u64,
}

/// Error: too many services are watched. `for_ms` is the time until the first of them is forgotten, unless it is
/// viewed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) for_ms: u64,
}

impl WatchedServices {
    /// Notes a look at a service. Returns since when the service is watched. `now_ms` must come from a clock
    /// that only advances. Without room, the tenant with the most watched services loses the one that was viewed
    /// longest ago.
    ///
    /// # Errors
    /// There are already [`MAX_WATCHED_SERVICES`] others, and no tenant has more of them than this service's.
    pub(super) fn look(&mut self, service: &ServiceName, now_ms: u64) -> Result<u64, Full> {
        self.expire(now_ms);
        let until_ms = now_ms.saturating_add(WATCH_MS);
        if let Some(watch) = self.0.get_mut(service) {
            watch.until_ms = until_ms;
            return Ok(watch.since_ms);
        }
        if self.0.len() >= MAX_WATCHED_SERVICES {
            self.make_room(&service.tenant, now_ms)?;
        }
        self.0.insert(service.clone(), Watch { since_ms: now_ms, until_ms });
        Ok(now_ms)
    }

    /// Names of the watched services.
    pub(super) fn names(&mut self, now_ms: u64) -> Vec<String> {
        self.expire(now_ms);
        self.0.keys().map(ToString::to_string).collect()
    }

    /// Number of watched services.
    pub(super) fn len(&mut self, now_ms: u64) -> usize {
        self.expire(now_ms);
        self.0.len()
    }

    /// Removes a watch of the tenant that has the most, so that no tenant's viewers keep out those of another.
    fn make_room(&mut self, tenant: &Tenant, now_ms: u64) -> Result<(), Full> {
        let mut by_tenant = BTreeMap::<&Tenant, Vec<(u64, &ServiceName)>>::new();
        for (service, watch) in &self.0 {
            by_tenant.entry(&service.tenant).or_default().push((watch.until_ms, service));
        }
        let own = by_tenant.get(tenant).map_or(0, Vec::len);
        let largest = by_tenant.into_values().max_by_key(Vec::len).unwrap_or_default();
        let (count, first) = (largest.len(), largest.into_iter().min());
        match first {
            Some((_, service)) if count > own + 1 => {
                let service = service.clone();
                self.0.remove(&service);
                Ok(())
            }
            _ => {
                let first = self.0.values().map(|watch| watch.until_ms).min().unwrap_or(now_ms);
                Err(Full { for_ms: first.saturating_sub(now_ms) })
            }
        }
    }

    fn expire(&mut self, now_ms: u64) {
        self.0.retain(|_, watch| now_ms < watch.until_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn name(number: usize) -> ServiceName {
        ServiceName::new(format!("shop/s{number}")).unwrap()
    }

    #[test]
    fn service_watched_over_limit_is_refused_until_another_expires() {
        let mut watched = WatchedServices::default();
        for number in 0..MAX_WATCHED_SERVICES {
            assert_eq!(watched.look(&name(number), 1_000), Ok(1_000));
        }
        assert_eq!(watched.look(&name(0), 31_000), Ok(1_000), "a look prolongs it");
        assert_eq!(watched.look(&name(999), 31_000), Err(Full { for_ms: 30_000 }));
        assert_eq!(watched.look(&name(999), 61_000), Ok(61_000));
        assert_eq!(watched.names(61_000), ["shop/s0", "shop/s999"]);
        assert_eq!(watched.len(121_000), 0);
    }

    #[test]
    fn tenant_that_views_many_services_leaves_watches_to_others() {
        let mut watched = WatchedServices::default();
        for number in 0..1_000 {
            let _ = watched.look(&name(number), number as u64);
        }
        let blue = |number| ServiceName::new(format!("blue/s{number}")).unwrap();
        for number in 0..MAX_WATCHED_SERVICES / 2 {
            assert_eq!(watched.look(&blue(number), 1_000), Ok(1_000), "{number}");
        }
        assert!(watched.look(&blue(999), 1_000).is_err() && watched.look(&name(999), 1_000).is_err());
        let names = watched.names(1_000);
        assert_eq!(names.iter().filter(|name| name.starts_with("blue/")).count(), MAX_WATCHED_SERVICES / 2);
        assert_eq!(names.len(), MAX_WATCHED_SERVICES);
    }

    proptest! {
        /// Compares the watched services with the last look at each: their number is bounded, and none is
        /// forgotten early or kept too long.
        #[test]
        fn service_is_watched_for_one_minute_after_last_look(
            looks in prop::collection::vec((0_usize..90, 0_u64..2_000), 1..400)
        ) {
            let (mut watched, mut last, mut now) = (WatchedServices::default(), BTreeMap::new(), 0);
            for (number, pause) in looks {
                now += pause;
                last.retain(|_, at| now - *at < WATCH_MS);
                let fits = last.contains_key(&name(number)) || last.len() < MAX_WATCHED_SERVICES;
                prop_assert_eq!(watched.look(&name(number), now).is_ok(), fits);
                if fits {
                    last.insert(name(number), now);
                }
                let expected: Vec<String> = last.keys().map(ToString::to_string).collect();
                prop_assert_eq!(watched.names(now), expected);
            }
        }
    }
}
