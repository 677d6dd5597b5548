use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::value_text::read;
use crate::{Hosts, Invalid, endpoint::host_speeds::check_speed};

/// Host types and their speeds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostsSpec {
    /// All host types with their speeds.
    pub types: Vec<HostTypeSpec>,
    /// Host types by address block, for endpoints without a host type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<HostPrefixSpec>,
}

/// A host type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostTypeSpec {
    /// The name, as in endpoints.
    pub name: String,
    /// Relative speed in thousandths of an ordinary host; 100 to 10000.
    pub speed: u32,
}

/// The host type of an address block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPrefixSpec {
    /// The address block, such as `10.1.0.0/16`. The longest block that contains an address counts.
    pub prefix: String,
    /// The host type; must be listed in `types`.
    pub host_type: String,
}

impl HostsSpec {
    /// Validates the document. Prefixes may name only declared types.
    pub fn validate(&self) -> Result<Hosts, Invalid> {
        let mut speeds = BTreeMap::new();
        for (i, HostTypeSpec { name, speed }) in self.types.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("types[{i}]"));
            check_speed(*speed).map_err(at)?;
            if speeds.insert(read("name", name).map_err(at)?, *speed).is_some() {
                let problem = format!("'{name}' is declared twice");
                return Err(at(Invalid::new("name", problem, "declare every type once")));
            }
        }
        let prefix = |(i, spec): (usize, &HostPrefixSpec)| {
            let at = |e: Invalid| e.within(format!("prefixes[{i}]"));
            let host_type = read("hostType", &spec.host_type).map_err(at)?;
            Ok((read("prefix", &spec.prefix).map_err(at)?, host_type))
        };
        Hosts::new(speeds, self.prefixes.iter().enumerate().map(prefix).collect::<Result<_, _>>()?)
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(hosts: &Hosts) -> Self {
        let types = hosts.speeds().iter();
        let types = types.map(|(name, speed)| HostTypeSpec { name: name.to_string(), speed: *speed });
        let prefixes = hosts.prefixes().iter().map(|(prefix, host_type)| HostPrefixSpec {
            prefix: prefix.to_string(),
            host_type: host_type.to_string(),
        });
        Self { types: types.collect(), prefixes: prefixes.collect() }
    }
}
