use serde::{Deserialize, Serialize};

use super::{
    FaultInjectionSpec, HeadersSpec, HedgeSpec, KeySpecs, LimitSpec, MatchSpec, MirrorSpec, RedirectSpec,
    RewriteSpec,
    policy::is_default,
    value_text::{self, read, read_option, read_timeouts, write_duration},
};
use crate::{Backend, Invalid, Route};

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteSpec {
    /// The route's name, unique within the policy.
    pub name: String,
    /// The calls to which the route applies; all calls by default.
    #[serde(default, rename = "match", skip_serializing_if = "MatchSpec::is_any")]
    pub matches: MatchSpec,
    /// The backends with their weights; the service itself by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<BackendSpec>,
    /// The traffic class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Timeout of the whole call, overriding the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Maximum time from the end of the request to the response headers, overriding the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_timeout: Option<String>,
    /// Maximum time without progress in the middle of a body, overriding the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// Whether repeating a call is harmless, regardless of the method.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    /// The rate limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitSpec>,
    /// A redirect response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<RedirectSpec>,
    /// Injected failures and delays.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fault: FaultInjectionSpec,
    /// A rewrite of host and path.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rewrite: RewriteSpec,
    /// Header edits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headers: HeadersSpec,
    /// The timeout of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_timeout: Option<String>,
    /// The maximum deadline that is sent to servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_timeout: Option<String>,
    /// Sends a second attempt if the first one is slow (hedging).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeSpec>,
    /// Sends copies of calls to another service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorSpec>,
    /// Sharded services only: role of the copies that receive calls which name no role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Response statuses, besides 503, after which a repeatable call is retried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_on: Vec<u16>,
    /// Where the split key is read. Calls with equal split keys go to the same backend of the split.
    #[serde(default, skip_serializing_if = "KeySpecs::is_empty")]
    pub split_key: KeySpecs,
    /// What happens to calls that draw a backend without endpoints; `fail` by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_empty: WhenEmptySpec,
}

/// What happens to calls that draw a backend of a split without endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WhenEmptySpec {
    /// The calls fail.
    #[default]
    Fail,
    /// The calls are divided among the other backends, by their weights.
    Redistribute,
}

/// A destination in a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendSpec {
    /// The service, as `tenant/service`.
    pub service: String,
    /// The share of calls, relative to the other backends.
    #[serde(deserialize_with = "value_text::weight")]
    pub weight: u32,
}

impl RouteSpec {
    pub(super) fn validate(&self) -> Result<Route, Invalid> {
        let split = self.split.iter().enumerate().map(|(i, target)| {
            let service = read(&format!("split[{i}].service"), &target.service)?;
            Ok(Backend { service, weight: target.weight })
        });
        Ok(Route {
            name: read("name", &self.name)?,
            matches: self.matches.validate().map_err(|e| e.within("match"))?,
            split: split.collect::<Result<_, Invalid>>()?,
            class: read_option("class", self.class.as_ref())?,
            timeouts: read_timeouts(&self.timeout, &self.response_header_timeout, &self.idle_timeout)?,
            idempotent: self.idempotent,
            actions: self.plan_actions()?,
        })
    }

    pub(super) fn of(route: &Route) -> Self {
        let split = route.split.iter();
        let spec = Self {
            name: route.name.to_string(),
            matches: MatchSpec::of(&route.matches),
            split: split.map(|t| BackendSpec { service: t.service.to_string(), weight: t.weight }).collect(),
            class: route.class.as_ref().map(ToString::to_string),
            timeout: route.timeouts.total.map(write_duration),
            response_header_timeout: route.timeouts.response_header.map(write_duration),
            idle_timeout: route.timeouts.idle.map(write_duration),
            idempotent: route.idempotent,
            ..Self::default()
        };
        spec.with_actions(&route.actions)
    }
}
