//! Routes of a policy: match conditions, backends and actions.

mod actions;
mod bounds;
mod coverage;
mod edits;
mod matches;
mod path;
mod pattern;
mod share;

pub use actions::{Abort, Actions, Delay, Mirror, RateLimit, Scope};
pub use bounds::{MAX_CONDITIONS, MAX_EXPRESSION_BYTES, MAX_ROUTES, within_bounds};
pub use edits::HeaderEdits;
pub(crate) use edits::is_token;
pub use matches::{ClientMatch, GrpcMatch, HeaderMatch, HostMatch, Match, PathMatch, QueryMatch, TextMatch};
pub use path::{PathRewrite, Redirect, Rewrite, Segment, Template};
pub use pattern::Pattern;
pub use share::Share;

use crate::{Invalid, Label, ServiceName, Timeouts};

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The name in `explain` and metrics; unique within the policy.
    pub name: Label,
    /// The calls that it applies to.
    pub matches: Match,
    /// The backends, by weight; empty means the service itself.
    pub split: Vec<Backend>,
    /// The traffic class, if set.
    pub class: Option<Label>,
    /// Timeouts that override those of the policy.
    pub timeouts: Timeouts,
    /// Whether repeated calls are declared harmless, regardless of their method.
    pub idempotent: bool,
    /// Further actions on its calls.
    pub actions: Actions,
}

/// A backend of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The service that receives the calls.
    pub service: ServiceName,
    /// Its share, relative to the other backends; 0 receives none.
    pub weight: u32,
}

impl Route {
    /// A route for every call, to the service itself.
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

    /// The services that calls of this route may reach, including its mirror.
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
