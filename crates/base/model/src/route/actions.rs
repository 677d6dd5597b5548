//! Actions on the calls of a route, besides the choice of a backend.

use std::time::Duration;

use super::{HeaderEdits, Match, PathMatch, PathRewrite, Redirect, Rewrite, Share};
use crate::{Invalid, KeySource, Role, ServiceName, policy::check_timeout};

/// Maximum number of statuses after which calls of a route are retried.
const MAX_RETRY_STATUSES: usize = 16;

/// Actions on calls, applied in this order: limit, redirect, fault injection; then the request is edited, mirrored
/// and attempted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// The rate limit.
    pub limit: Option<RateLimit>,
    /// Responds with a redirect instead of making a call.
    pub redirect: Option<Redirect>,
    /// An injected failure.
    pub abort: Option<Abort>,
    /// An injected delay.
    pub delay: Option<Delay>,
    /// Rewrites host and path.
    pub rewrite: Rewrite,
    /// Header edits for requests.
    pub request_headers: HeaderEdits,
    /// Header edits for responses.
    pub response_headers: HeaderEdits,
    /// Timeout of one attempt, up to its response headers. After the timeout another attempt starts if a retry is
    /// safe.
    pub attempt_timeout: Option<Duration>,
    /// The maximum deadline that is sent to servers (ServiceRouter §4.1).
    pub server_timeout: Option<Duration>,
    /// Time without a response after which a repeatable call is sent once more (hedging).
    pub hedge_after: Option<Duration>,
    /// The service that receives copies of calls.
    pub mirror: Option<Mirror>,
    /// Sharded services only: role of the copies that receive calls which name no role. `None` leaves the choice to
    /// the policy of the service.
    pub role: Option<Role>,
    /// Response statuses, besides 503, after which a repeatable call is retried; 400 to 599, at most 16.
    pub retry_on: Vec<u16>,
    /// Sources of a key that selects the split's backend, so that calls with equal keys go to the same backend. The
    /// first source with a value is used. Without a key, each call draws a backend.
    pub split_key: Vec<KeySource>,
    /// Whether a call that draws a backend without endpoints is sent to one of the other backends, chosen by weight.
    pub redistributes_empty: bool,
}

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Number of calls per period, at least 1.
    pub calls: u32,
    /// The period, 1 ms to 1 h.
    pub per: Duration,
    /// Maximum burst after an idle time, at least 1.
    pub burst: u32,
    /// The callers that share the limit.
    pub scope: Scope,
}

/// The callers that share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each caller separately: every calling program or proxy may use the whole limit.
    #[default]
    Caller,
    /// All callers together: each gets a part of the limit according to its demand.
    Mesh,
}

/// Fails calls with a status without sending them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The share of calls.
    pub share: Share,
    /// The response status, 400 to 599. gRPC callers get the corresponding gRPC status.
    pub status: u16,
}

/// Delays calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The share of calls.
    pub share: Share,
    /// The delay.
    pub time: Duration,
}

/// Sends copies of calls to another service and discards the responses (ServiceRouter §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The service that receives the copies.
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

/// Checks that a path prefix is replaced only if the route matches a path prefix.
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
