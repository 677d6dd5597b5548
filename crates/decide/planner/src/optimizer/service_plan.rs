use std::sync::Arc;

use fairmesh_model::{Label, Region};
use fairmesh_te::Tables;

use crate::model_adjustment::Adjustments;

/// Who plans a service whose policy asks for the optimizer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The optimizer.
    Optimized(Arc<ServicePlan>),
    /// The rings planner, since the optimizer cannot.
    Rings(Fallback),
}

/// Why the rings planner plans a service that asks for the optimizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// In one word, for metrics.
    pub reason: &'static str,
    /// For operators.
    pub text: String,
}

/// The part of the optimizer's plan that concerns one service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePlan {
    /// The number of the plan: greater than that of the one before.
    pub number: u64,
    /// The regions of the plan, in the order of names.
    pub regions: Vec<Region>,
    /// The classes with shares of their own, besides all other calls.
    pub classes: Vec<Label>,
    /// Shares by position of region and class.
    pub tables: Tables,
    /// Predicted utilisation, by region; 0 where it has no servers.
    pub loads: Vec<f64>,
    /// What calls of each region and class are expected to take and to cost.
    pub expected: Vec<Vec<Expectation>>,
    /// How far the cost of the whole plan may be above the least one, as a part of it.
    pub gap: f64,
    /// When the plan was put into force, by the clock of [`crate::Now::ms`].
    pub planned_at_ms: u64,
    /// When the oldest of the fits of this service was last changed, by the same clock.
    pub model_at_ms: u64,
    /// The standard error of the fits of this service, as a part of the times that they predict.
    pub model_error: f64,
    /// What is measured of the service against its model, and done about it.
    pub adjustments: Adjustments,
}

/// What calls from one region and of one class are expected to take and to cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expectation {
    /// Calls per second.
    pub calls: f64,
    /// Mean milliseconds of a call at this hop: round trip, and time at the servers without the calls that they make.
    pub latency_ms: f64,
    /// Dollars per hour for egress.
    pub egress: f64,
}

impl Fallback {
    /// A reason in one word and its text.
    pub fn new(reason: &'static str, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}
