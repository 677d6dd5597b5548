//! Speeds of hosts: `Hosts` of `records.proto`.

use std::collections::BTreeMap;

use fairmesh_model::{HostType, Hosts, Invalid};

use crate::v1;

impl From<Hosts> for v1::Hosts {
    fn from(hosts: Hosts) -> Self {
        let speeds = hosts.speeds().iter().map(|(host_type, speed)| (host_type.clone().into(), *speed));
        let prefixes = hosts.prefixes().iter().map(|(prefix, host_type)| v1::HostPrefix {
            prefix: prefix.to_string(),
            host_type: host_type.clone().into(),
        });
        Self { speeds: speeds.collect(), prefixes: prefixes.collect() }
    }
}

impl TryFrom<v1::Hosts> for Hosts {
    type Error = Invalid;

    fn try_from(message: v1::Hosts) -> Result<Self, Invalid> {
        let mut speeds = BTreeMap::new();
        for (name, speed) in message.speeds {
            let host_type = HostType::new(&name).map_err(|e| e.within(format!("speeds.{name}")))?;
            speeds.insert(host_type, speed);
        }
        let prefix = |(i, message): (usize, v1::HostPrefix)| {
            let at = |e: Invalid| e.within(format!("prefixes[{i}]"));
            let prefix = message.prefix.parse().map_err(|e: Invalid| at(e.within("prefix")))?;
            let host_type = HostType::new(message.host_type).map_err(|e| at(e.within("host_type")))?;
            Ok((prefix, host_type))
        };
        let prefixes = message.prefixes.into_iter().enumerate().map(prefix).collect::<Result<_, _>>()?;
        Self::new(speeds, prefixes)
    }
}
