//! Actions on the calls of a route, besides the choice of a backend.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    KeySpecs, RouteSpec, WhenEmptySpec,
    policy::is_default,
    value_text::{read, read_duration, read_duration_option, read_option, write_duration},
};
use crate::{
    Abort, Actions, Delay, HeaderEdits, Invalid, Mirror, PathRewrite, RateLimit, Redirect, Rewrite, Scope,
};

/// A rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitSpec {
    /// Number of calls per period.
    pub calls: u32,
    /// The period, such as `1s`.
    pub per: String,
    /// Maximum burst after an idle time; `calls` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Whether the limit applies per caller or to the whole mesh; `caller` by default.
    #[serde(default, skip_serializing_if = "ScopeSpec::is_default")]
    pub scope: ScopeSpec,
}

/// The callers that share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ScopeSpec {
    /// Each caller separately.
    #[default]
    Caller,
    /// All callers together.
    Mesh,
}

impl ScopeSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A redirect response. Parts that are left out stay as in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedirectSpec {
    /// `http` or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The port; the default port of the scheme by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewriteSpec>,
    /// The response status; 302 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// A replacement of the path. Exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathRewriteSpec {
    /// The new path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<String>,
    /// The replacement of the prefix that the route matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// Injected failures and delays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultInjectionSpec {
    /// Fails calls without sending them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<AbortSpec>,
    /// Delays calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySpec>,
}

/// Fails calls without sending them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbortSpec {
    /// The share of calls, such as `5%`.
    pub share: String,
    /// The status of the response.
    pub status: u16,
}

/// Delays calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DelaySpec {
    /// The share of calls, such as `5%`.
    pub share: String,
    /// The delay.
    pub time: String,
}

/// Rewrites host and path of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewriteSpec {
    /// The host that is sent to servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path that is sent to servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewriteSpec>,
}

/// Header edits for requests and responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadersSpec {
    /// Header edits for requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request: EditsSpec,
    /// Header edits for responses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub response: EditsSpec,
}

/// Header edits for one direction: requests or responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditsSpec {
    /// Headers whose value is replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Headers that are added to existing headers of the same name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub add: BTreeMap<String, String>,
    /// Headers that are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Sends a second attempt if the first one is slow (hedging).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HedgeSpec {
    /// Time without a response after which the second attempt starts.
    pub after: String,
}

/// Sends copies of calls to another service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MirrorSpec {
    /// The service that receives the copies, as `tenant/service`.
    pub service: String,
    /// The share of calls, such as `5%`.
    pub share: String,
}

impl RouteSpec {
    pub(super) fn plan_actions(&self) -> Result<Actions, Invalid> {
        Ok(Actions {
            limit: validate_option("limit", self.limit.as_ref(), LimitSpec::validate)?,
            redirect: validate_option("redirect", self.redirect.as_ref(), RedirectSpec::validate)?,
            abort: validate_option("fault.abort", self.fault.abort.as_ref(), AbortSpec::validate)?,
            delay: validate_option("fault.delay", self.fault.delay.as_ref(), DelaySpec::validate)?,
            rewrite: self.rewrite.validate().map_err(|e| e.within("rewrite"))?,
            request_headers: self.headers.request.validate(),
            response_headers: self.headers.response.validate(),
            attempt_timeout: read_duration_option("attemptTimeout", self.attempt_timeout.as_ref())?,
            server_timeout: read_duration_option("serverTimeout", self.server_timeout.as_ref())?,
            hedge_after: read_duration_option("hedge.after", self.hedge.as_ref().map(|hedge| &hedge.after))?,
            mirror: validate_option("mirror", self.mirror.as_ref(), MirrorSpec::validate)?,
            role: read_option("role", self.role.as_ref())?,
            retry_on: self.retry_on.clone(),
            split_key: self.split_key.validate().map_err(|e| e.within("splitKey"))?,
            redistributes_empty: self.when_empty == WhenEmptySpec::Redistribute,
        })
    }

    pub(super) fn with_actions(self, actions: &Actions) -> Self {
        let abort =
            actions.abort.map(|abort| AbortSpec { share: abort.share.to_string(), status: abort.status });
        let delay = actions
            .delay
            .map(|delay| DelaySpec { share: delay.share.to_string(), time: write_duration(delay.time) });
        Self {
            limit: actions.limit.as_ref().map(LimitSpec::of),
            redirect: actions.redirect.as_ref().map(RedirectSpec::of),
            fault: FaultInjectionSpec { abort, delay },
            rewrite: RewriteSpec {
                host: actions.rewrite.host.clone(),
                path: actions.rewrite.path.as_ref().map(PathRewriteSpec::of),
            },
            headers: HeadersSpec {
                request: EditsSpec::of(&actions.request_headers),
                response: EditsSpec::of(&actions.response_headers),
            },
            attempt_timeout: actions.attempt_timeout.map(write_duration),
            server_timeout: actions.server_timeout.map(write_duration),
            hedge: actions.hedge_after.map(|after| HedgeSpec { after: write_duration(after) }),
            mirror: actions.mirror.as_ref().map(|mirror| MirrorSpec {
                service: mirror.service.to_string(),
                share: mirror.share.to_string(),
            }),
            role: actions.role.as_ref().map(ToString::to_string),
            retry_on: actions.retry_on.clone(),
            split_key: KeySpecs::of(&actions.split_key),
            when_empty: match actions.redistributes_empty {
                true => WhenEmptySpec::Redistribute,
                false => WhenEmptySpec::Fail,
            },
            ..self
        }
    }
}

fn validate_option<S, P>(
    field: &str,
    spec: Option<&S>,
    validate: impl FnOnce(&S) -> Result<P, Invalid>,
) -> Result<Option<P>, Invalid> {
    spec.map(validate).transpose().map_err(|e| e.within(field))
}

impl LimitSpec {
    pub(super) fn validate(&self) -> Result<RateLimit, Invalid> {
        let per = read_duration(&self.per).map_err(|e| e.within("per"))?;
        let scope = match self.scope {
            ScopeSpec::Caller => Scope::Caller,
            ScopeSpec::Mesh => Scope::Mesh,
        };
        Ok(RateLimit { calls: self.calls, per, burst: self.burst.unwrap_or(self.calls), scope })
    }

    pub(super) fn of(limit: &RateLimit) -> Self {
        let burst = (limit.burst != limit.calls).then_some(limit.burst);
        let scope = match limit.scope {
            Scope::Caller => ScopeSpec::Caller,
            Scope::Mesh => ScopeSpec::Mesh,
        };
        Self { calls: limit.calls, per: write_duration(limit.per), burst, scope }
    }
}

impl RedirectSpec {
    fn validate(&self) -> Result<Redirect, Invalid> {
        let https = match self.scheme.as_deref() {
            None => None,
            Some("https") => Some(true),
            Some("http") => Some(false),
            Some(other) => {
                return Err(Invalid::new(
                    "scheme",
                    format!("'{other}' is not a scheme"),
                    "write http or https",
                ));
            }
        };
        Ok(Redirect {
            https,
            host: self.host.clone(),
            port: self.port,
            path: validate_option("path", self.path.as_ref(), PathRewriteSpec::validate)?,
            status: self.status.unwrap_or(302),
        })
    }

    fn of(redirect: &Redirect) -> Self {
        Self {
            scheme: redirect.https.map(|https| if https { "https" } else { "http" }.to_owned()),
            host: redirect.host.clone(),
            port: redirect.port,
            path: redirect.path.as_ref().map(PathRewriteSpec::of),
            status: (redirect.status != 302).then_some(redirect.status),
        }
    }
}

impl PathRewriteSpec {
    fn validate(&self) -> Result<PathRewrite, Invalid> {
        match (&self.full, &self.prefix) {
            (Some(path), None) => Ok(PathRewrite::Full(path.clone())),
            (None, Some(path)) => Ok(PathRewrite::Prefix(path.strip_suffix('/').unwrap_or(path).to_owned())),
            _ => Err(Invalid::new("", "needs exactly one of 'full' and 'prefix'", "write one of them")),
        }
    }

    fn of(path: &PathRewrite) -> Self {
        match path {
            PathRewrite::Full(path) => Self { full: Some(path.clone()), prefix: None },
            PathRewrite::Prefix(path) if path.is_empty() => Self { full: None, prefix: Some("/".into()) },
            PathRewrite::Prefix(path) => Self { full: None, prefix: Some(path.clone()) },
        }
    }
}

impl RewriteSpec {
    fn validate(&self) -> Result<Rewrite, Invalid> {
        let path = validate_option("path", self.path.as_ref(), PathRewriteSpec::validate)?;
        Ok(Rewrite { host: self.host.clone(), path })
    }
}

impl AbortSpec {
    fn validate(&self) -> Result<Abort, Invalid> {
        Ok(Abort { share: read("share", &self.share)?, status: self.status })
    }
}

impl DelaySpec {
    fn validate(&self) -> Result<Delay, Invalid> {
        let time = read_duration(&self.time).map_err(|e| e.within("time"))?;
        Ok(Delay { share: read("share", &self.share)?, time })
    }
}

impl MirrorSpec {
    fn validate(&self) -> Result<Mirror, Invalid> {
        Ok(Mirror { service: read("service", &self.service)?, share: read("share", &self.share)? })
    }
}

impl EditsSpec {
    fn validate(&self) -> HeaderEdits {
        let lower = |edits: &BTreeMap<String, String>| {
            edits.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect()
        };
        HeaderEdits {
            set: lower(&self.set),
            add: lower(&self.add),
            remove: self.remove.iter().map(|name| name.to_ascii_lowercase()).collect(),
        }
    }

    fn of(edits: &HeaderEdits) -> Self {
        Self { set: edits.set.clone(), add: edits.add.clone(), remove: edits.remove.clone() }
    }
}
