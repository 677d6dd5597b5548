//! The rules of a policy: which calls they are for, where those go, and what else happens to them.

mod actions;
mod bounds;
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

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What users call it in `explain` and metrics; unique within the policy.
    pub name: Label,
    /// Which calls it is for.
    pub matches: Match,
    /// Where they go, by weight; empty means the service itself.
    pub split: Vec<Target>,
    /// The traffic class, where one is told.
    pub class: Option<Label>,
    /// How long calls may take, where that differs from the policy's.
    pub timeouts: Timeouts,
    /// Whether the owner declares that a repeated call does no harm, whatever its method.
    pub idempotent: bool,
    /// What else happens to them.
    pub actions: Actions,
}

/// One arm of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service that gets the calls.
    pub service: ServiceName,
    /// Its share, relative to the other arms; 0 gets none.
    pub weight: u32,
}

impl Route {
    /// A rule for every call, which goes to the service itself.
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

    /// The services that calls of this rule may be sent to, its mirror included.
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
                "give at least one arm a weight above 0; they need not add up to 100",
            ));
        }
        if self.actions.redirect.is_some() && !self.split.is_empty() {
            let hint = "leave one of the two out";
            return Err(Invalid::new("split", "sends calls somewhere that 'redirect' answers", hint));
        }
        self.actions.validate(&self.matches)
    }
}
