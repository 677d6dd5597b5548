//! Services whose new connections are limited, or were until a moment ago.

use std::{collections::BTreeMap, mem};

use fairmesh_model::ServiceName;

/// Services with a limit of connections. For one that the controller set: what it began with.
pub type Limited = BTreeMap<ServiceName, Option<u32>>;

/// How long what is usual stays as it is after the end of a limit. An attack that goes on becomes an alert within seconds, and each of them
/// would become usual.
const FROZEN_MS: u64 = 60_000;

/// Services whose usual rates of connections stay as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitedServices {
    limited: Limited,
    /// When the limits of others ended.
    ended: BTreeMap<ServiceName, u64>,
}

impl LimitedServices {
    /// Sets the limits in force.
    pub(crate) fn set(&mut self, limited: Limited, now_ms: u64) {
        let before = mem::replace(&mut self.limited, limited);
        self.ended.extend(before.into_keys().map(|service| (service, now_ms)));
        let Self { limited, ended } = self;
        ended.retain(|service, at| !limited.contains_key(service) && now_ms.saturating_sub(*at) < FROZEN_MS);
    }

    /// Whether what is usual for a service stays as it is.
    pub(crate) fn is_frozen(&self, service: &ServiceName, now_ms: u64) -> bool {
        let is_recent = |at: &u64| now_ms.saturating_sub(*at) < FROZEN_MS;
        self.limited.contains_key(service) || self.ended.get(service).is_some_and(is_recent)
    }

    /// The limits that the controller set, as they began.
    pub(crate) fn first(&self) -> impl Iterator<Item = (&ServiceName, u32)> {
        self.limited.iter().filter_map(|(service, first)| Some((service, (*first)?)))
    }
}
