//! What happens to the calls of a rule besides going somewhere.

use std::time::Duration;

use super::{HeaderEdits, Match, PathMatch, PathRewrite, Redirect, Rewrite, Share};
use crate::{Invalid, ServiceName, policy::check_timeout};

/// What happens to calls, in this order: limit, redirect, fault, then what is sent is edited, mirrored and tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// How many calls a caller may make.
    pub limit: Option<RateLimit>,
    /// An answer without a call.
    pub redirect: Option<Redirect>,
    /// A failure on purpose.
    pub abort: Option<Abort>,
    /// A wait on purpose.
    pub delay: Option<Delay>,
    /// What the call is sent as instead.
    pub rewrite: Rewrite,
    /// The headers of the request on its way out.
    pub request_headers: HeaderEdits,
    /// The headers of the answer on its way back.
    pub answer_headers: HeaderEdits,
    /// The longest that one try may take to the head of its answer; after it another is made, where that does no harm.
    pub try_timeout: Option<Duration>,
    /// The longest that a server is given, as it is told (ServiceRouter §4.1).
    pub server_timeout: Option<Duration>,
    /// After which time without an answer a call that may be repeated is made a second time beside the first.
    pub hedge_after: Option<Duration>,
    /// Another service that gets copies of calls.
    pub mirror: Option<Mirror>,
}

/// How many calls may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// So many calls, at least 1.
    pub calls: u32,
    /// In this time, 1 ms to 1 h.
    pub per: Duration,
    /// So many at once after a quiet time, at least 1.
    pub burst: u32,
    /// By whom.
    pub scope: Scope,
}

/// Whose calls a limit counts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those of one caller: each program that calls, or each proxy, has the whole limit and counts its own.
    #[default]
    Caller,
    /// Those of all callers: each has a part of the limit, by what it is asked for.
    Mesh,
}

/// Calls that are answered with a failure and not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// How many of them.
    pub share: Share,
    /// The status of the answer, 400 to 599; gRPC callers see the code that goes with it.
    pub status: u16,
}

/// Calls that wait before they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// How many of them.
    pub share: Share,
    /// How long.
    pub time: Duration,
}

/// Copies of calls, whose answers nobody sees (ServiceRouter §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Who gets them.
    pub service: ServiceName,
    /// How many.
    pub share: Share,
}

impl Actions {
    pub(super) fn validate(&self, matches: &Match) -> Result<(), Invalid> {
        self.limit.as_ref().map_or(Ok(()), RateLimit::validate).map_err(|e| e.within("limit"))?;
        self.redirect.as_ref().map_or(Ok(()), Redirect::validate).map_err(|e| e.within("redirect"))?;
        self.rewrite.validate().map_err(|e| e.within("rewrite"))?;
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
                "answers the call, so that nothing else happens to it",
                hint,
            ));
        }
        if let Some(abort) = self.abort.filter(|abort| !(400..=599).contains(&abort.status)) {
            let problem = format!("{} is not a failure", abort.status);
            return Err(Invalid::new("fault.abort.status", problem, "write 400 to 599"));
        }
        if let Some(delay) = self.delay {
            check_timeout("fault.delay.time", delay.time)?;
        }
        self.request_headers.validate().map_err(|e| e.within("headers.request"))?;
        self.answer_headers.validate().map_err(|e| e.within("headers.answer"))?;
        let times = [
            ("tryTimeout", self.try_timeout),
            ("serverTimeout", self.server_timeout),
            ("hedge.after", self.hedge_after),
        ];
        times.into_iter().try_for_each(|(field, time)| time.map_or(Ok(()), |time| check_timeout(field, time)))
    }
}

/// A prefix can be replaced only where the rule matches one.
fn check_prefix(path: Option<&PathRewrite>, matches: &Match) -> Result<(), Invalid> {
    match (path, &matches.path) {
        (Some(PathRewrite::Prefix(_)), Some(PathMatch::Prefix(_)))
        | (Some(PathRewrite::Full(_)) | None, _) => Ok(()),
        (Some(PathRewrite::Prefix(_)), _) => {
            let hint = "write 'match: {path: {prefix: …}}' beside it, or 'full' here";
            Err(Invalid::new(
                "path.prefix",
                "replaces the prefix that the route matches, and it matches none",
                hint,
            ))
        }
    }
}

impl RateLimit {
    /// The least time between two calls in the long run, in nanoseconds.
    pub fn interval(&self) -> u64 {
        let per = u64::try_from(self.per.as_nanos()).unwrap_or(u64::MAX);
        (per / u64::from(self.calls.max(1))).max(1)
    }

    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.calls == 0 || self.burst == 0 {
            let field = if self.calls == 0 { "calls" } else { "burst" };
            return Err(Invalid::new(field, "0 would let nothing through", "write 1 or more"));
        }
        check_timeout("per", self.per)
    }
}
