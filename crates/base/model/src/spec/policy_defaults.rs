use serde::{Deserialize, Serialize};

use super::{LocalitySpec, PolicySpec, RetriesSpec, TrafficSpec, policy::is_default};
use crate::{DefaultsScope, Invalid, PolicyDefaults, PolicyField};

/// Defaults for the policies of a tenant or of the mesh. A field that is left out takes the default of the mesh or
/// the built-in value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyDefaultsSpec {
    /// The tenant; all services of the mesh by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Timeout of the whole call, such as `15s`, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Maximum time from the end of the request to the response headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_header_timeout: Option<String>,
    /// Maximum time without progress in the middle of a body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    /// When failed attempts are retried.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retries: RetriesSpec,
    /// Regions that calls may go to. Only the rings may be given.
    #[serde(default, skip_serializing_if = "is_default")]
    pub locality: LocalitySpec,
    /// The planner that divides calls among regions, with its mode, rings and load, or `planner: none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficSpec>,
    /// `kernel` or `sidecar`: what may carry calls within a machine to endpoints with mutual TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_transport: Option<String>,
}

impl PolicyDefaultsSpec {
    /// Validates the document.
    pub fn validate(&self) -> Result<(DefaultsScope, PolicyDefaults), Invalid> {
        let Self {
            tenant,
            timeout,
            response_header_timeout,
            idle_timeout,
            retries,
            locality,
            traffic,
            local_transport,
        } = self.clone();
        if locality.local_only {
            let hint = "write it in the policies of the services";
            return Err(Invalid::new("locality.localOnly", "has no default", hint));
        }
        let policy = PolicySpec {
            timeout,
            response_header_timeout,
            idle_timeout,
            retries,
            locality,
            traffic,
            local_transport,
            ..PolicySpec::default()
        };
        let defaults = PolicyDefaults::new(&policy.plan()?)?;
        let states_nothing = PolicyField::ALL.iter().all(|field| !defaults.as_policy().states(*field));
        if states_nothing {
            let hint = "write at least one field, such as 'timeout: 15s', or delete the defaults";
            return Err(Invalid::new("", "has no field", hint));
        }
        let scope = match tenant {
            None => DefaultsScope::Mesh,
            Some(tenant) => DefaultsScope::Tenant(tenant.parse().map_err(|e: Invalid| e.within("tenant"))?),
        };
        Ok((scope, defaults))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(scope: &DefaultsScope, defaults: &PolicyDefaults) -> Self {
        let PolicySpec {
            timeout,
            response_header_timeout,
            idle_timeout,
            retries,
            locality,
            traffic,
            local_transport,
            ..
        } = PolicySpec::of_plan(defaults.as_policy());
        let tenant = scope.tenant().map(ToString::to_string);
        Self {
            tenant,
            timeout,
            response_header_timeout,
            idle_timeout,
            retries,
            locality,
            traffic,
            local_transport,
        }
    }
}
