use serde::{Deserialize, Serialize};

use super::{
    FaultSpec, HeadersSpec, HedgeSpec, LimitSpec, MatchSpec, MirrorSpec, RedirectSpec, RewriteSpec,
    policy::is_default,
    text::{read, read_option, read_timeouts, write_duration},
};
use crate::{Invalid, Route, Target};

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteSpec {
    /// What users call it; unique within the policy.
    pub name: String,
    /// Which calls it is for; every call when left out.
    #[serde(default, rename = "match", skip_serializing_if = "MatchSpec::is_any")]
    pub matches: MatchSpec,
    /// Where they go, by weight; the service itself when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<TargetSpec>,
    /// The traffic class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The whole call, where it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// From the end of the request to the response headers, where it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_timeout: Option<String>,
    /// How long nothing may move in the middle of a body, where it differs from the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// Whether a repeated call does no harm, whatever its method.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    /// How many calls each caller may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitSpec>,
    /// An answer that sends callers elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<RedirectSpec>,
    /// Failures and waits on purpose.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fault: FaultSpec,
    /// What calls are sent as instead.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rewrite: RewriteSpec,
    /// What is done to headers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub headers: HeadersSpec,
    /// The longest that one try may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub try_timeout: Option<String>,
    /// The longest that a server is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_timeout: Option<String>,
    /// A second try beside a slow one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hedge: Option<HedgeSpec>,
    /// Another service that gets copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorSpec>,
}

/// One arm of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TargetSpec {
    /// `tenant/service`.
    pub service: String,
    /// Its share, relative to the other arms.
    pub weight: u32,
}

impl RouteSpec {
    pub(super) fn plan(&self) -> Result<Route, Invalid> {
        let split = self.split.iter().enumerate().map(|(i, target)| {
            let service = read(&format!("split[{i}].service"), &target.service)?;
            Ok(Target { service, weight: target.weight })
        });
        Ok(Route {
            name: read("name", &self.name)?,
            matches: self.matches.plan().map_err(|e| e.within("match"))?,
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
            split: split.map(|t| TargetSpec { service: t.service.to_string(), weight: t.weight }).collect(),
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
