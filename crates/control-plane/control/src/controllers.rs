//! The controllers of a control plane, with the service and metrics that show them to operators.
//!
//! Each controller is in the module of its subject. The indices that commits update (`indices`) are not a
//! controller: they decide and write nothing, and must be updated before the node serves the commit.

mod metrics;
mod service;

use std::str::FromStr;

use fairmesh_controllers::{Controller, Runtime};
use fairmesh_gateway_control::{GatewayLauncher, GatewayLoads, PlacementController};
use fairmesh_model::Invalid;
use tokio_util::sync::CancellationToken;

pub(crate) use metrics::register;
pub(crate) use service::describe;

use crate::{
    health_checks::{Checks, TargetController, VerdictController},
    identity::{FederationController, IdentityService, IssuerControllers, TokenIssuerController},
    rate_limits::{QuotaController, Quotas},
    tasks::{Tasks, spawn_cancellable},
    traffic::{DrainController, PlannerController, TrafficPlanning},
};

/// Names of controllers that may run in shadow mode. Without the other controllers the mesh would not be safe:
/// revoked callers would stay accepted, certificates would expire, and callers of removed limits would fill this
/// process's memory.
const SHADOW_NAMES: [&str; 7] = [
    TargetController::NAME,
    DrainController::NAME,
    FederationController::NAME,
    PlacementController::NAME,
    PlannerController::NAME,
    TokenIssuerController::NAME,
    VerdictController::NAME,
];

/// Name of a controller that shows the changes it decides on, without making them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowController(&'static str);

impl ShadowController {
    pub(crate) fn name(self) -> &'static str {
        self.0
    }
}

impl FromStr for ShadowController {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let named = SHADOW_NAMES.into_iter().find(|name| *name == text);
        named.map(Self).ok_or_else(|| {
            let hint = format!("write one of {}", SHADOW_NAMES.join(", "));
            Invalid::new("controller", format!("no controller '{text}' has a shadow mode"), hint)
        })
    }
}

/// The data and services that a control plane's controllers need.
pub(crate) struct Controllers {
    pub(crate) checks: Checks,
    pub(crate) quotas: Quotas,
    pub(crate) identity: IdentityService,
    pub(crate) planning: TrafficPlanning,
    pub(crate) gateway: (GatewayLoads, Option<GatewayLauncher>),
}

impl Controllers {
    /// Spawns the controllers, which run until `stop`.
    pub(crate) fn spawn(self, runtime: &Runtime, tasks: &mut Tasks, stop: &CancellationToken) {
        let Self { checks, quotas, identity, planning, gateway: (loads, launcher) } = self;
        spawn_cancellable(tasks, stop, runtime.run(TargetController(checks.clone())));
        spawn_cancellable(tasks, stop, runtime.run(VerdictController(checks)));
        spawn_cancellable(tasks, stop, runtime.run(QuotaController(quotas)));
        spawn_cancellable(tasks, stop, runtime.run(FederationController::default()));
        spawn_cancellable(tasks, stop, runtime.run(TokenIssuerController::default()));
        spawn_cancellable(tasks, stop, runtime.run(PlacementController::new(loads, launcher)));
        spawn_cancellable(tasks, stop, runtime.run(PlannerController::new(planning.clone())));
        spawn_cancellable(tasks, stop, runtime.run(DrainController(planning)));
        if let Some(IssuerControllers { revocations, trust_bundle, issuer_file }) = identity.controllers() {
            spawn_cancellable(tasks, stop, runtime.run(revocations));
            spawn_cancellable(tasks, stop, runtime.run(trust_bundle));
            spawn_cancellable(tasks, stop, runtime.run(issuer_file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_mode_is_refused_for_unsafe_and_unknown_controllers() {
        assert_eq!("verdicts".parse::<ShadowController>().unwrap().name(), "verdicts");
        for name in ["issuer-file", "quotas", "revocations", "trust-bundle", "unknown"] {
            let error = name.parse::<ShadowController>().unwrap_err();
            assert_eq!(
                error.hint,
                "write one of distance-targets, drains, federated-bundles, placement, planner, token-issuers, verdicts",
                "{name}"
            );
        }
    }
}
