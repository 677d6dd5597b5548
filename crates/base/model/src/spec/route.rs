use serde::{Deserialize, Serialize};

use super::{
    FaultInjectionSpec, HeadersSpec, HedgeSpec, KeySpecs, LimitSpec, MatchSpec, MirrorSpec, RedirectSpec,
    RewriteSpec,
    policy::is_default,
    text::{self, read, read_option, read_timeouts, write_duration},
};
use crate::{Backend, Invalid, Route};

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteSpec {
    /// Its name; unique within the policy.
    pub name: String,
    /// The calls that it applies to; every call by default.
    #[serde(default, rename = "match", skip_serializing_if = "MatchSpec::is_any")]
    pub matches: MatchSpec,
    /// The backends, by weight; the service itself by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<BackendSpec>,
    /// The traffic class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Timeout of the whole call, if it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// From the end of the request to the response headers, if it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_timeout: Option<String>,
    /// Longest time without progress in the middle of a body, if it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// Whether repeated calls are harmless, regardless of their method.
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
    /// Edits of headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headers: HeadersSpec,
    /// The timeout of one attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_timeout: Option<String>,
    /// The longest deadline that is sent to servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_timeout: Option<String>,
    /// A second attempt beside a slow one (hedging).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeSpec>,
    /// A service that receives copies of calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorSpec>,
    /// The role of the copies of a shard that get calls which name no role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Statuses of responses after which a call that may be repeated is retried, beside 503.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_on: Vec<u16>,
    /// Where the key is read that keeps its backend of the split.
    #[serde(default, skip_serializing_if = "KeySpecs::is_empty")]
    pub split_key: KeySpecs,
    /// What becomes of calls that draw a backend of the split without endpoints; `fail` by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub when_empty: WhenEmptySpec,
}

/// What becomes of calls that draw a backend of a split without endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WhenEmptySpec {
    /// They fail.
    #[default]
    Fail,
    /// They are divided among the other backends, by their weights.
    Redistribute,
}

/// A backend of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendSpec {
    /// `tenant/service`.
    pub service: String,
    /// Its share, relative to the other backends.
    #[serde(deserialize_with = "text::weight")]
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
