use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    AuthorizationSpec, BalancingSpec, HealthCheckSpec, KeySpecs, LimitSpec, RouteSpec, TrafficSpec,
    value_text::{read, read_duration, read_option, read_timeouts, write_duration},
};
use crate::{
    Invalid, LocalTransport, Locality, MtlsMode, Policy, PolicyField, Retries, Ring, RouteSource,
    ServiceName, Timeouts, within_bounds,
};

/// How calls to a service are routed and protected. Fields that are left out have defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// The service, as `tenant/service`.
    pub service: String,
    /// Routes in order; the first match wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteSpec>,
    /// Regions that calls may go to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub locality: LocalitySpec,
    /// How an endpoint is picked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub balancing: BalancingSpec,
    /// Timeout of the whole call, such as `15s`, or `none`. By default only idle timeouts bound the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Maximum time from the end of the request to the response headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_timeout: Option<String>,
    /// Maximum time without progress in the middle of a body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// When failed attempts are retried.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retries: RetriesSpec,
    /// The rate limit for all calls to the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitSpec>,
    /// Where the key is read, for calls without an explicit key.
    #[serde(default, skip_serializing_if = "KeySpecs::is_empty")]
    pub key: KeySpecs,
    /// How endpoints are probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheckSpec>,
    /// The address of the service's own lookaside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookaside: Option<String>,
    /// How calls are divided among regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficSpec>,
    /// Callers that may use the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<AuthorizationSpec>,
    /// `strict` or `permissive`: whether endpoints with mutual TLS also accept plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls: Option<String>,
    /// `kernel` or `sidecar`: what may carry calls within a machine to endpoints with mutual TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_transport: Option<String>,
    /// Sharded services only: role of the copies that receive calls which name no role; by default copies of any
    /// role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Services of other tenants, as `tenant/service` or `tenant/*`, whose routes may send calls to this service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accept_routes_from: Vec<String>,
}

/// Regions that calls may go to, in order of preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalitySpec {
    /// Rings in order of preference: ascending round trips and names, such as `[region, 35ms, continent, any]`. If
    /// `zone` comes first, calls prefer the caller's own zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<String>,
    /// Whether calls fail rather than leave their region.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local_only: bool,
}

/// When failed attempts are retried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetriesSpec {
    /// Maximum number of attempts including the first; 1 to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Maximum number of retries as a percentage of calls; 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_percent: Option<u32>,
    /// Number of retries per second that are always allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_floor: Option<u32>,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The value, or `None` if it is the default.
pub(super) fn non_default<T: PartialEq + Copy>(value: T, default: T) -> Option<T> {
    (value != default).then_some(value)
}

impl PolicySpec {
    /// Validates the document.
    pub fn validate(&self) -> Result<(ServiceName, Policy), Invalid> {
        let policy = self.plan()?;
        Ok((read("service", &self.service)?, policy))
    }

    /// The validated policy, without the name of its service.
    pub(super) fn plan(&self) -> Result<Policy, Invalid> {
        let total = self.timeout.clone().filter(|text| text != NONE);
        let routes = self.routes.iter().enumerate();
        let routes = routes.map(|(i, spec)| spec.validate().map_err(|e| e.within(format!("routes[{i}]"))));
        let policy = Policy {
            routes: within_bounds(routes)?,
            locality: self.locality.validate().map_err(|e| e.within("locality"))?,
            balancing: self.balancing.validate().map_err(|e| e.within("balancing"))?,
            timeouts: read_timeouts(&total, &self.response_header_timeout, &self.idle_timeout)?,
            retries: self.retries.validate(),
            limit: self.limit.as_ref().map(LimitSpec::validate).transpose().map_err(|e| e.within("limit"))?,
            key: self.key.validate().map_err(|e| e.within("key"))?,
            role: read_option("role", self.role.as_ref())?,
            health_check: self
                .health_check
                .as_ref()
                .map(HealthCheckSpec::validate)
                .transpose()
                .map_err(|e| e.within("healthCheck"))?,
            lookaside: self.lookaside.clone(),
            traffic: self
                .traffic
                .as_ref()
                .map(TrafficSpec::validate)
                .transpose()
                .map_err(|e| e.within("traffic"))?
                .flatten()
                .map(Box::new),
            authorization: self
                .authorization
                .as_ref()
                .map(|spec| spec.validate().map(Box::new))
                .transpose()
                .map_err(|e| e.within("authorization"))?,
            mtls: read_mtls(self.mtls.as_deref())?,
            local_transport: self
                .local_transport
                .as_deref()
                .map_or(Ok(LocalTransport::default()), LocalTransport::named)?,
            accept_routes_from: read_route_sources(&self.accept_routes_from)?,
            restated: BTreeSet::new(),
        };
        policy.validate()?;
        Ok(policy.restating(self.stated()))
    }

    /// The fields with defaults that the document states explicitly, so that defaults of tenant or mesh do not
    /// replace them.
    fn stated(&self) -> impl Iterator<Item = PolicyField> {
        let fields = [
            (PolicyField::Timeout, self.timeout.is_some()),
            (PolicyField::Attempts, self.retries.attempts.is_some()),
            (PolicyField::BudgetPercent, self.retries.budget_percent.is_some()),
            (PolicyField::BudgetFloor, self.retries.budget_floor.is_some()),
            (PolicyField::Rings, !self.locality.rings.is_empty()),
            (PolicyField::Traffic, self.traffic.is_some()),
            (PolicyField::LocalTransport, self.local_transport.is_some()),
        ];
        fields.into_iter().filter_map(|(field, is_stated)| is_stated.then_some(field))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(service: &ServiceName, policy: &Policy) -> Self {
        Self { service: service.to_string(), ..Self::of_plan(policy) }
    }

    /// The inverse of [`plan`](Self::plan).
    pub(super) fn of_plan(policy: &Policy) -> Self {
        let Timeouts { total, response_header, idle } = policy.timeouts;
        let restates = |field| policy.restated.contains(&field);
        let no_timeout = || restates(PolicyField::Timeout).then(|| NONE.to_owned());
        let no_planner = || restates(PolicyField::Traffic).then(TrafficSpec::without_planner);
        Self {
            service: String::new(),
            routes: policy.routes.iter().map(RouteSpec::of).collect(),
            locality: LocalitySpec::of(&policy.locality, restates(PolicyField::Rings)),
            balancing: BalancingSpec::of(&policy.balancing),
            timeout: total.map(write_duration).or_else(no_timeout),
            response_header_timeout: response_header.map(write_duration),
            idle_timeout: idle.map(write_duration),
            retries: RetriesSpec::of(&policy.retries, restates),
            limit: policy.limit.as_ref().map(LimitSpec::of),
            key: KeySpecs::of(&policy.key),
            role: policy.role.as_ref().map(ToString::to_string),
            health_check: policy.health_check.as_ref().map(HealthCheckSpec::of),
            lookaside: policy.lookaside.clone(),
            traffic: policy.traffic.as_deref().map(TrafficSpec::of).or_else(no_planner),
            authorization: policy.authorization.as_deref().map(AuthorizationSpec::of),
            local_transport: policy
                .states(PolicyField::LocalTransport)
                .then(|| policy.local_transport.as_str().to_owned()),
            mtls: (policy.mtls == MtlsMode::Permissive).then(|| "permissive".to_owned()),
            accept_routes_from: policy.accept_routes_from.iter().map(ToString::to_string).collect(),
        }
    }
}

fn read_route_sources(sources: &[String]) -> Result<Vec<RouteSource>, Invalid> {
    let read = |(i, text): (usize, &String)| {
        RouteSource::new(text).map_err(|e| e.within(format!("acceptRoutesFrom[{i}]")))
    };
    sources.iter().enumerate().map(read).collect()
}

fn read_mtls(text: Option<&str>) -> Result<MtlsMode, Invalid> {
    match text {
        None | Some("strict") => Ok(MtlsMode::Strict),
        Some("permissive") => Ok(MtlsMode::Permissive),
        Some(other) => {
            let problem = format!("is '{other}', which is no mode");
            Err(Invalid::new("mtls", problem, "write strict or permissive"))
        }
    }
}

impl LocalitySpec {
    fn validate(&self) -> Result<Locality, Invalid> {
        let zone_first = self.rings.first().is_some_and(|ring| ring == ZONE);
        let rings = self.rings.iter().enumerate().skip(usize::from(zone_first));
        let rings = rings.map(|(i, text)| read_ring(text).map_err(|e| e.within(format!("rings[{i}]"))));
        let mut rings = rings.collect::<Result<Vec<_>, Invalid>>()?;
        if rings.is_empty() {
            rings = Locality::default_rings();
        }
        Ok(Locality { rings, zone_first, local_only: self.local_only })
    }

    fn of(locality: &Locality, restates_rings: bool) -> Self {
        let omitted = locality.has_default_rings() && !restates_rings;
        let written = locality.rings.iter().filter(|_| !omitted);
        let zone = locality.zone_first.then(|| ZONE.to_owned());
        let rings = zone.into_iter().chain(written.map(ToString::to_string));
        Self { rings: rings.collect(), local_only: locality.local_only }
    }
}

/// Value that disables a timeout or the planner, regardless of defaults.
pub(super) const NONE: &str = "none";

/// Name of the ring that consists of the caller's own zone.
const ZONE: &str = "zone";

/// Parses a ring: a name, or the maximum round trip.
pub(super) fn read_ring(text: &str) -> Result<Ring, Invalid> {
    Ok(match text {
        "region" => Ring::Region,
        "neighbours" => Ring::Neighbours,
        "continent" => Ring::Continent,
        "any" => Ring::Any,
        ZONE => {
            return Err(Invalid::new("", "is not the first ring", "write 'zone' first in 'locality.rings'"));
        }
        text => Ring::Within(read_duration(text).map_err(ring_hint)?),
    })
}

fn ring_hint(mut refusal: Invalid) -> Invalid {
    refusal.hint.push_str(", or one of 'region', 'neighbours', 'continent' and 'any'");
    refusal
}

impl RetriesSpec {
    fn validate(&self) -> Retries {
        let default = Retries::default();
        Retries {
            attempts: self.attempts.unwrap_or(default.attempts),
            budget_percent: self.budget_percent.unwrap_or(default.budget_percent),
            budget_floor: self.budget_floor.unwrap_or(default.budget_floor),
        }
    }

    fn of(retries: &Retries, restates: impl Fn(PolicyField) -> bool) -> Self {
        let default = Retries::default();
        let written =
            |field, value: u32, default: u32| (value != default || restates(field)).then_some(value);
        Self {
            attempts: written(PolicyField::Attempts, retries.attempts, default.attempts),
            budget_percent: written(
                PolicyField::BudgetPercent,
                retries.budget_percent,
                default.budget_percent,
            ),
            budget_floor: written(PolicyField::BudgetFloor, retries.budget_floor, default.budget_floor),
        }
    }
}
