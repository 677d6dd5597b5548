//! Actions on the calls of a route besides the choice of a backend.

use std::time::Duration;

use super::{HeaderEdits, Match, PathMatch, PathRewrite, Redirect, Rewrite, Share};
use crate::{Invalid, KeySource, Role, ServiceName, policy::check_timeout};

/// The most statuses after which calls of a route are retried.
const MAX_RETRY_STATUSES: usize = 16;

/// Actions on calls, in this order: limit, redirect, fault, then the request is edited, mirrored and attempted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// The rate limit.
    pub limit: Option<RateLimit>,
    /// A redirect, without a call.
    pub redirect: Option<Redirect>,
    /// An injected failure.
    pub abort: Option<Abort>,
    /// An injected delay.
    pub delay: Option<Delay>,
    /// The rewrite of host and path.
    pub rewrite: Rewrite,
    /// Edits of the request headers.
    pub request_headers: HeaderEdits,
    /// Edits of the response headers.
    pub response_headers: HeaderEdits,
    /// Timeout of one attempt up to its response headers. Afterwards another attempt starts if a retry is safe.
    pub attempt_timeout: Option<Duration>,
    /// The longest deadline that is sent to a server (ServiceRouter §4.1).
    pub server_timeout: Option<Duration>,
    /// Time without a response after which a repeatable call is sent a second time (hedging).
    pub hedge_after: Option<Duration>,
    /// The service that receives copies of calls.
    pub mirror: Option<Mirror>,
    /// The role of the copies that get calls which name no role, of sharded services; `None` leaves it to the policy of the
    /// service.
    pub role: Option<Role>,
    /// Statuses of responses after which a call that may be repeated is retried, beside 503; 400 to 599, at most
    /// 16.
    pub retry_on: Vec<u16>,
    /// Sources of a key that fixes the split's backend; the first source with a value counts. Without a key or without
    /// sources, each call draws a backend.
    pub split_key: Vec<KeySource>,
    /// Whether calls that draw a backend without endpoints are divided among the other backends, by their weights.
    pub redistributes_empty: bool,
}

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Number of calls, at least 1.
    pub calls: u32,
    /// The period, 1 ms to 1 h.
    pub per: Duration,
    /// The largest burst after an idle time, at least 1.
    pub burst: u32,
    /// The callers that share the limit.
    pub scope: Scope,
}

/// The callers that share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each caller separately: every calling program or proxy has the whole limit for its own calls.
    #[default]
    Caller,
    /// All callers together: each gets a part of the limit according to its demand.
    Mesh,
}

/// Calls that fail with a status without being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The share of calls.
    pub share: Share,
    /// The status of the response, 400 to 599; gRPC callers get the corresponding code.
    pub status: u16,
}

/// Calls that are delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The share of calls.
    pub share: Share,
    /// The delay.
    pub time: Duration,
}

/// Copies of calls, whose responses are discarded (ServiceRouter §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The service that receives them.
    pub service: ServiceName,
    /// The share of calls.
    pub share: Share,
}

impl Actions {
    pub(super) fn validate(&self, matches: &Match) -> Result<(), Invalid> {
        self.limit.as_ref().map_or(Ok(()), RateLimit::validate).map_err(|e| e.within("limit"))?;
        self.redirect.as_ref().map_or(Ok(()), Redirect::validate).map_err(|e| e.within("redirect"))?;
        self.rewrite.validate().map_err(|e| e.within("rewrite"))?;
        KeySource::validate_all(&self.split_key).map_err(|e| e.within("splitKey"))?;
        let of_redirect = self.redirect.as_ref().and_then(|redirect| redirect.path.as_ref());
        for (path, field) in [(of_redirect, "redirect"), (self.rewrite.path.as_ref(), "rewrite")] {
            check_prefix(path, matches).map_err(|e| e.within(field))?;
        }
        if self.redirect.is_some()
            && *self != (Self { redirect: self.redirect.clone(), limit: self.limit, ..Self::default() })
        {
            let hint = "leave the other actions out, or the redirect";
            return Err(Invalid::new(
                "redirect",
                "responds to the call, so that no other action applies",
                hint,
            ));
        }
        if let Some(abort) = self.abort.filter(|abort| !(400..=599).contains(&abort.status)) {
            let problem = format!("{} is not a failure", abort.status);
            return Err(Invalid::new("fault.abort.status", problem, "write 400 to 599"));
        }
        self.validate_retry_statuses()?;
        if let Some(delay) = self.delay {
            check_timeout("fault.delay.time", delay.time)?;
        }
        self.request_headers.validate().map_err(|e| e.within("headers.request"))?;
        self.response_headers.validate().map_err(|e| e.within("headers.response"))?;
        let times = [
            ("attemptTimeout", self.attempt_timeout),
            ("serverTimeout", self.server_timeout),
            ("hedge.after", self.hedge_after),
        ];
        times.into_iter().try_for_each(|(field, time)| time.map_or(Ok(()), |time| check_timeout(field, time)))
    }
}

impl Actions {
    fn validate_retry_statuses(&self) -> Result<(), Invalid> {
        let problem = match self.retry_on.iter().find(|status| !(400..=599).contains(*status)) {
            Some(status) => format!("{status} is not a failure"),
            None if self.retry_on.len() > MAX_RETRY_STATUSES => {
                format!("has {} statuses", self.retry_on.len())
            }
            None => return Ok(()),
        };
        let hint = format!("write up to {MAX_RETRY_STATUSES} statuses from 400 to 599, such as [502, 504]");
        Err(Invalid::new("retryOn", problem, hint))
    }
}

/// Checks that a prefix is replaced only if the route matches one.
fn check_prefix(path: Option<&PathRewrite>, matches: &Match) -> Result<(), Invalid> {
    match (path, &matches.path) {
        (Some(PathRewrite::Prefix(_)), Some(PathMatch::Prefix(_)))
        | (Some(PathRewrite::Full(_)) | None, _) => Ok(()),
        (Some(PathRewrite::Prefix(_)), _) => {
            let hint = "write 'match: {path: {prefix: …}}' beside it, or 'full' here";
            Err(Invalid::new(
                "path.prefix",
                "replaces the prefix that the route matches, but the route matches no prefix",
                hint,
            ))
        }
    }
}

impl RateLimit {
    /// The shortest time between two calls at the sustained rate, in nanoseconds.
    pub fn interval(&self) -> u64 {
        let per = u64::try_from(self.per.as_nanos()).unwrap_or(u64::MAX);
        (per / u64::from(self.calls.max(1))).max(1)
    }

    /// Checks ranges.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.calls == 0 || self.burst == 0 {
            let field = if self.calls == 0 { "calls" } else { "burst" };
            return Err(Invalid::new(field, "0 would reject every call", "write 1 or more"));
        }
        check_timeout("per", self.per)
    }
}
