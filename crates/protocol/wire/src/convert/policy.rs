//! Policies of services and their defaults: `Policy` and `PolicyDefaults` of `records.proto`.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{
    Authorization, Backend, HealthCheck, Invalid, LocalTransport, Locality, MtlsMode, Policy, PolicyDefaults,
    PolicyField, Retries, Route, RouteSource, ServiceName, Traffic, within_bounds,
};

use super::required;
use crate::v1;

mod actions;
mod authorization;
mod balancing;
mod matches;
pub(super) mod rings;
mod timeouts;

/// Whole microseconds, saturating at 64 bits (584,000 years).
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<Policy> for v1::Policy {
    fn from(policy: Policy) -> Self {
        let mut key = policy.key.into_iter();
        Self {
            ring_bounds_us: rings::bounds(&policy.locality.rings),
            rings: rings::named(&policy.locality.rings),
            local_only: policy.locality.local_only,
            subset: policy.balancing.subset,
            balancing: balancing::write(&policy.balancing),
            timeout_us: timeouts::legacy_policy_timeout(&policy.timeouts),
            timeouts: Some(policy.timeouts.into()),
            attempts: policy.retries.attempts,
            retry_budget_percent: policy.retries.budget_percent,
            retry_budget_floor: policy.retries.budget_floor,
            limit: policy.limit.map(actions::write_limit),
            key: key.next().map(Into::into),
            further_keys: key.map(Into::into).collect(),
            role: policy.role.map(String::from).unwrap_or_default(),
            zone_first: policy.locality.zone_first,
            routes: policy.routes.into_iter().map(Into::into).collect(),
            health_check: policy.health_check.map(Into::into),
            lookaside: policy.lookaside.unwrap_or_default(),
            traffic: policy.traffic.map(|traffic| (*traffic).into()),
            authorization: policy.authorization.map(|authorization| (*authorization).into()),
            mtls: match policy.mtls {
                MtlsMode::Strict => v1::policy::Mtls::Strict,
                MtlsMode::Permissive => v1::policy::Mtls::Permissive,
            }
            .into(),
            local_transport: match policy.local_transport {
                LocalTransport::Kernel => v1::policy::LocalTransport::Kernel,
                LocalTransport::Sidecar => v1::policy::LocalTransport::Sidecar,
            }
            .into(),
            accept_routes_from: policy.accept_routes_from.iter().map(ToString::to_string).collect(),
            restated: policy.restated.into_iter().map(|field| field.path().to_owned()).collect(),
        }
    }
}

impl TryFrom<v1::Policy> for Policy {
    type Error = Invalid;

    fn try_from(message: v1::Policy) -> Result<Self, Invalid> {
        let mtls = read_mtls(message.mtls());
        let route = |(i, route): (usize, v1::Route)| {
            Route::try_from(route).map_err(|e| e.within(format!("routes[{i}]")))
        };
        let policy = Self {
            routes: within_bounds(message.routes.into_iter().enumerate().map(route))?,
            locality: Locality {
                rings: rings::read(&message.ring_bounds_us, &message.rings)
                    .map_err(|e| e.within("locality"))?,
                zone_first: message.zone_first,
                local_only: message.local_only,
            },
            balancing: balancing::read(message.subset, message.balancing)
                .map_err(|e| e.within("balancing"))?,
            timeouts: timeouts::read_policy(message.timeouts, message.timeout_us),
            retries: Retries {
                attempts: message.attempts,
                budget_percent: message.retry_budget_percent,
                budget_floor: message.retry_budget_floor,
            },
            limit: message.limit.map(actions::read_limit),
            role: actions::read_role(message.role)?,
            key: actions::read_sources(message.key.into_iter().chain(message.further_keys).collect())?,
            health_check: message
                .health_check
                .map(HealthCheck::try_from)
                .transpose()
                .map_err(|e| e.within("health_check"))?,
            lookaside: Some(message.lookaside).filter(|address| !address.is_empty()),
            traffic: message
                .traffic
                .map(|traffic| Traffic::try_from(traffic).map(Box::new))
                .transpose()
                .map_err(|e| e.within("traffic"))?,
            authorization: message
                .authorization
                .map(|authorization| Authorization::try_from(authorization).map(Box::new))
                .transpose()
                .map_err(|e| e.within("authorization"))?,
            mtls,
            local_transport: read_local_transport(message.local_transport),
            accept_routes_from: message
                .accept_routes_from
                .iter()
                .map(|source| RouteSource::new(source).map_err(|e| e.within("accept_routes_from")))
                .collect::<Result<_, _>>()?,
            restated: BTreeSet::new(),
        };
        policy.validate()?;
        // A newer release may restate fields that have no defaults in this release.
        Ok(policy.restating(message.restated.iter().filter_map(|path| PolicyField::at_path(path))))
    }
}

impl From<PolicyDefaults> for v1::PolicyDefaults {
    fn from(defaults: PolicyDefaults) -> Self {
        Self { policy: Some(defaults.as_policy().clone().into()) }
    }
}

impl TryFrom<v1::PolicyDefaults> for PolicyDefaults {
    type Error = Invalid;

    fn try_from(message: v1::PolicyDefaults) -> Result<Self, Invalid> {
        let policy = required("policy", message.policy)?.try_into()?;
        Self::new(&policy)
    }
}

/// An unknown mode is read as strict, so that it never permits plaintext.
fn read_mtls(mode: v1::policy::Mtls) -> MtlsMode {
    match mode {
        v1::policy::Mtls::Strict => MtlsMode::Strict,
        v1::policy::Mtls::Permissive => MtlsMode::Permissive,
    }
}

/// An unknown transport, of a newer release, is read as mutual TLS.
fn read_local_transport(transport: i32) -> LocalTransport {
    match v1::policy::LocalTransport::try_from(transport) {
        Ok(v1::policy::LocalTransport::Kernel) => LocalTransport::Kernel,
        Ok(v1::policy::LocalTransport::Sidecar) | Err(_) => LocalTransport::Sidecar,
    }
}

impl From<Route> for v1::Route {
    fn from(route: Route) -> Self {
        let target =
            |backend: Backend| v1::Backend { service: backend.service.into(), weight: backend.weight };
        Self {
            name: route.name.into(),
            r#match: Some(route.matches.into()),
            split: route.split.into_iter().map(target).collect(),
            class: route.class.map(Into::into).unwrap_or_default(),
            timeout_us: timeouts::legacy_route_timeout(&route.timeouts),
            timeouts: timeouts::write_route(route.timeouts),
            idempotent: route.idempotent,
            actions: actions::write(route.actions),
        }
    }
}

impl TryFrom<v1::Route> for Route {
    type Error = Invalid;

    fn try_from(message: v1::Route) -> Result<Self, Invalid> {
        let target = |(i, target): (usize, v1::Backend)| {
            let service = ServiceName::new(target.service);
            let service = service.map_err(|e| e.within(format!("split[{i}].service")))?;
            Ok(Backend { service, weight: target.weight })
        };
        let class = match message.class.as_str() {
            "" => None,
            class => Some(class.parse().map_err(|e: Invalid| e.within("class"))?),
        };
        Ok(Self {
            name: message.name.try_into().map_err(|e: Invalid| e.within("name"))?,
            matches: message
                .r#match
                .unwrap_or_default()
                .try_into()
                .map_err(|e: Invalid| e.within("match"))?,
            split: message.split.into_iter().enumerate().map(target).collect::<Result<_, Invalid>>()?,
            class,
            timeouts: timeouts::read_route(message.timeouts, message.timeout_us),
            idempotent: message.idempotent,
            actions: actions::read(message.actions.unwrap_or_default())?,
        })
    }
}
