//! Routes of a policy: match conditions, backends and actions.

mod actions;
mod bounds;
mod call_share;
mod condition_coverage;
mod header_edits;
mod matches;
mod path;
mod regex_pattern;

pub use actions::{Abort, Actions, Delay, Mirror, RateLimit, Scope};
pub use bounds::{MAX_CONDITIONS, MAX_EXPRESSION_BYTES, MAX_ROUTES, within_bounds};
pub use call_share::Share;
pub use condition_coverage::alternatives_cover;
pub use header_edits::HeaderEdits;
pub(crate) use header_edits::is_token;
pub use matches::{ClientMatch, GrpcMatch, HeaderMatch, HostMatch, Match, PathMatch, QueryMatch, TextMatch};
pub use path::{PathRewrite, Redirect, Rewrite, Segment, Template};
pub use regex_pattern::Pattern;

use crate::{Invalid, Label, ServiceName, Timeouts};

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The route's name in `explain` and metrics, unique within the policy.
    pub name: Label,
    /// The calls to which the route applies.
    pub matches: Match,
    /// The backends with their weights; empty means the service itself.
    pub split: Vec<Backend>,
    /// The traffic class, if set.
    pub class: Option<Label>,
    /// Timeouts that override the policy's timeouts.
    pub timeouts: Timeouts,
    /// Whether calls are declared safe to repeat, regardless of the method.
    pub idempotent: bool,
    /// Further actions on the route's calls.
    pub actions: Actions,
}

/// A destination in a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The service that receives the calls.
    pub service: ServiceName,
    /// The share of calls, relative to the other backends; 0 receives no calls.
    pub weight: u32,
}

impl Route {
    /// A route for all calls, to the service itself.
    pub fn new(name: Label) -> Self {
        Self {
            name,
            matches: Match::default(),
            split: Vec::new(),
            class: None,
            timeouts: Timeouts::default(),
            idempotent: false,
            actions: Actions::default(),
        }
    }

    /// The services to which this route may send calls, including the mirror.
    pub fn targets(&self) -> impl Iterator<Item = &ServiceName> {
        let split = self.split.iter().map(|target| &target.service);
        split.chain(self.actions.mirror.iter().map(|mirror| &mirror.service))
    }

    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        self.timeouts.validate()?;
        let total: u64 = self.split.iter().map(|target| u64::from(target.weight)).sum();
        if !self.split.is_empty() && (total == 0 || total > u64::from(u32::MAX)) {
            return Err(Invalid::new(
                "split",
                format!("the weights add up to {total}"),
                "give at least one backend a weight above 0; they need not add up to 100",
            ));
        }
        if self.actions.redirect.is_some() && !self.split.is_empty() {
            let hint = "leave one of the two out";
            return Err(Invalid::new(
                "split",
                "cannot be combined with 'redirect', which responds to every call",
                hint,
            ));
        }
        if self.actions.redistributes_empty && self.split.len() < 2 {
            let hint = "give the route a split with two backends or more, or leave it out";
            return Err(Invalid::new("whenEmpty", "has no other backend to send calls to", hint));
        }
        self.actions.validate(&self.matches)
    }
}
