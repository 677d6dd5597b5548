//! Mesh-wide limits declared by policies.

use std::collections::BTreeMap;

use fairmesh_model::{RecordKey, ServiceName};
use fairmesh_rib::{Entry, Node};
use fairmesh_wire::v1::{self, rate_limit};
use prost::Message as _;

use super::LimitName;

/// Decoded limits that policies declare, by service. Only services with a policy are stored, so that invented names
/// use no memory.
#[derive(Debug, Default)]
pub(super) struct Declared {
    policies: BTreeMap<ServiceName, Policy>,
}

#[derive(Debug)]
struct Policy {
    /// The revision of the record.
    revision: u64,
    /// Limits by route, in thousandths of calls per second.
    limits: BTreeMap<String, u64>,
}

impl Declared {
    /// Returns the limit of this name in thousandths of calls per second, if the service's policy in `node` declares
    /// it as mesh-wide.
    pub(super) fn limit(&mut self, node: &Node, (service, route): &LimitName) -> Option<u64> {
        let entry = node.get(&key(service));
        self.read(service, entry.as_ref());
        self.policies.get(service)?.limits.get(route).copied()
    }

    /// Decodes policies that have changed, and forgets those that are gone.
    pub(super) fn refresh(&mut self, node: &Node) {
        let known: Vec<_> = self.policies.keys().cloned().collect();
        for service in known {
            let entry = node.get(&key(&service));
            self.read(&service, entry.as_ref());
        }
    }

    /// Whether the limit was declared at the time of the last refresh.
    pub(super) fn holds(&self, (service, route): &LimitName) -> bool {
        self.policies.get(service).is_some_and(|policy| policy.limits.contains_key(route))
    }

    fn read(&mut self, service: &ServiceName, entry: Option<&Entry>) {
        let Some(entry) = entry else {
            self.policies.remove(service);
            return;
        };
        if self.policies.get(service).is_some_and(|policy| policy.revision == entry.revision) {
            return;
        }
        // Decodes only the message: full validation would compile its expressions.
        let message = v1::Policy::decode(entry.value.as_ref()).unwrap_or_default();
        let routes = message.routes.into_iter();
        let routes = routes.map(|route| (route.name, route.actions.and_then(|actions| actions.limit)));
        let all = [(String::new(), message.limit)].into_iter().chain(routes);
        let limits = all.filter_map(|(route, limit)| Some((route, rate(&limit?)?)));
        let policy = Policy { revision: entry.revision, limits: limits.collect() };
        self.policies.insert(service.clone(), policy);
    }
}

fn key(service: &ServiceName) -> String {
    RecordKey::Policy(service.clone()).to_string()
}

/// The rate of a mesh-wide limit, in thousandths of calls per second; `None` for other limits.
fn rate(limit: &v1::RateLimit) -> Option<u64> {
    if limit.scope() != rate_limit::Scope::Mesh {
        return None;
    }
    Some((u64::from(limit.calls) * 1_000_000_000 / limit.per_us.max(1)).max(1))
}
