//! What happens to the calls of a rule besides going somewhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    RouteSpec,
    policy::is_default,
    text::{read, read_duration, read_duration_option, write_duration},
};
use crate::{
    Abort, Actions, Delay, HeaderEdits, Invalid, Mirror, PathRewrite, RateLimit, Redirect, Rewrite, Scope,
};

/// How many calls may be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitSpec {
    /// So many.
    pub calls: u32,
    /// In this time, such as `1s`.
    pub per: String,
    /// So many at once after a quiet time; as many as `calls` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// By each caller, or by the whole mesh; `caller` when left out.
    #[serde(default, skip_serializing_if = "ScopeSpec::is_default")]
    pub scope: ScopeSpec,
}

/// Whose calls a limit counts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScopeSpec {
    /// Those of each caller.
    #[default]
    Caller,
    /// Those of all callers.
    Mesh,
}

impl ScopeSpec {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// An answer that sends callers elsewhere. What is left out stays as they had it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedirectSpec {
    /// `http` or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The port; that of the scheme when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewriteSpec>,
    /// The status; 302 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// A path made of another one: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathRewriteSpec {
    /// This one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<String>,
    /// This one in place of the prefix that the route matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// Failures and waits on purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultSpec {
    /// Calls that are not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<AbortSpec>,
    /// Calls that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelaySpec>,
}

/// Calls that are not made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbortSpec {
    /// How many of them, such as `5%`.
    pub share: String,
    /// The status of the answer.
    pub status: u16,
}

/// Calls that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DelaySpec {
    /// How many of them, such as `5%`.
    pub share: String,
    /// How long.
    pub time: String,
}

/// What calls are sent as instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewriteSpec {
    /// The host that servers see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path that servers see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewriteSpec>,
}

/// What is done to headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadersSpec {
    /// Those of requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request: EditsSpec,
    /// Those of answers.
    #[serde(default, skip_serializing_if = "is_default")]
    pub answer: EditsSpec,
}

/// What is done to headers of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditsSpec {
    /// These values in place of what was there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// These values besides what was there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub add: BTreeMap<String, String>,
    /// None of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// A second try beside a slow one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HedgeSpec {
    /// After which time without an answer.
    pub after: String,
}

/// Another service that gets copies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MirrorSpec {
    /// `tenant/service`.
    pub service: String,
    /// How many calls, such as `5%`.
    pub share: String,
}

impl RouteSpec {
    pub(super) fn plan_actions(&self) -> Result<Actions, Invalid> {
        Ok(Actions {
            limit: planned("limit", self.limit.as_ref(), LimitSpec::plan)?,
            redirect: planned("redirect", self.redirect.as_ref(), RedirectSpec::plan)?,
            abort: planned("fault.abort", self.fault.abort.as_ref(), AbortSpec::plan)?,
            delay: planned("fault.delay", self.fault.delay.as_ref(), DelaySpec::plan)?,
            rewrite: self.rewrite.plan().map_err(|e| e.within("rewrite"))?,
            request_headers: self.headers.request.plan(),
            answer_headers: self.headers.answer.plan(),
            try_timeout: read_duration_option("tryTimeout", self.try_timeout.as_ref())?,
            server_timeout: read_duration_option("serverTimeout", self.server_timeout.as_ref())?,
            hedge_after: read_duration_option("hedge.after", self.hedge.as_ref().map(|hedge| &hedge.after))?,
            mirror: planned("mirror", self.mirror.as_ref(), MirrorSpec::plan)?,
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
            fault: FaultSpec { abort, delay },
            rewrite: RewriteSpec {
                host: actions.rewrite.host.clone(),
                path: actions.rewrite.path.as_ref().map(PathRewriteSpec::of),
            },
            headers: HeadersSpec {
                request: EditsSpec::of(&actions.request_headers),
                answer: EditsSpec::of(&actions.answer_headers),
            },
            try_timeout: actions.try_timeout.map(write_duration),
            server_timeout: actions.server_timeout.map(write_duration),
            hedge: actions.hedge_after.map(|after| HedgeSpec { after: write_duration(after) }),
            mirror: actions.mirror.as_ref().map(|mirror| MirrorSpec {
                service: mirror.service.to_string(),
                share: mirror.share.to_string(),
            }),
            ..self
        }
    }
}

fn planned<S, P>(
    field: &str,
    spec: Option<&S>,
    plan: impl FnOnce(&S) -> Result<P, Invalid>,
) -> Result<Option<P>, Invalid> {
    spec.map(plan).transpose().map_err(|e| e.within(field))
}

impl LimitSpec {
    pub(super) fn plan(&self) -> Result<RateLimit, Invalid> {
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
    fn plan(&self) -> Result<Redirect, Invalid> {
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
            path: planned("path", self.path.as_ref(), PathRewriteSpec::plan)?,
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
    fn plan(&self) -> Result<PathRewrite, Invalid> {
        match (&self.full, &self.prefix) {
            (Some(path), None) => Ok(PathRewrite::Full(path.clone())),
            (None, Some(path)) => Ok(PathRewrite::Prefix(path.strip_suffix('/').unwrap_or(path).to_owned())),
            _ => Err(Invalid::new("", "has none or both of 'full' and 'prefix'", "write one of them")),
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
    fn plan(&self) -> Result<Rewrite, Invalid> {
        let path = planned("path", self.path.as_ref(), PathRewriteSpec::plan)?;
        Ok(Rewrite { host: self.host.clone(), path })
    }
}

impl AbortSpec {
    fn plan(&self) -> Result<Abort, Invalid> {
        Ok(Abort { share: read("share", &self.share)?, status: self.status })
    }
}

impl DelaySpec {
    fn plan(&self) -> Result<Delay, Invalid> {
        let time = read_duration(&self.time).map_err(|e| e.within("time"))?;
        Ok(Delay { share: read("share", &self.share)?, time })
    }
}

impl MirrorSpec {
    fn plan(&self) -> Result<Mirror, Invalid> {
        Ok(Mirror { service: read("service", &self.service)?, share: read("share", &self.share)? })
    }
}

impl EditsSpec {
    fn plan(&self) -> HeaderEdits {
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
