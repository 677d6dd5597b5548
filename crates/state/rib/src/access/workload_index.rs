//! Index of workload records by the user id of programs: which programs may have a service's identity.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_model::{
    Label, ProgramFacts, Record, RecordKey, RecordKind, ServiceName, Tenant, WorkloadEntry,
};
use fairmesh_wire::record_encoding;

use crate::Node;

/// Maximum number of services per tenant whose identity one program may have, so that each tenant leaves room for
/// others.
const MAX_OF_TENANT: usize = 16;

/// Answers the queries of all agents. Each agent asks every half minute about each program, so an answer reads only
/// the changes since the last one. Clones share their state.
#[derive(Clone, Debug)]
pub struct WorkloadIndex {
    node: Node,
    cached: Arc<Mutex<Cached>>,
}

#[derive(Debug, Default)]
struct Cached {
    /// The revision up to which records are indexed; `None` before the first read.
    at: Option<u64>,
    by_service: HashMap<ServiceName, Arc<WorkloadEntry>>,
    /// Services with a selector for a user id.
    by_uid: HashMap<u32, BTreeSet<ServiceName>>,
    /// Services with a selector for any user.
    of_any_user: BTreeSet<ServiceName>,
}

impl WorkloadIndex {
    /// Creates the index of a node, which reads no record yet.
    pub fn new(node: Node) -> Self {
        Self { node, cached: Arc::default() }
    }

    /// The services of a program on an agent's machine: at most `limit`, and at most 16 of
    /// each tenant. An empty list of tenants means all tenants. Sorted by the number of conditions on the
    /// program, highest first, then by name, so that an unspecific record does not determine the first
    /// identity.
    pub fn select(
        &self,
        (agent, tenants): (&Label, &[Tenant]),
        program: &ProgramFacts,
        limit: usize,
    ) -> Vec<ServiceName> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.follow(&self.node);
        let of_user = cached.by_uid.get(&program.uid).into_iter().flatten();
        let candidates: BTreeSet<_> = of_user.chain(&cached.of_any_user).collect();
        let vouched = |service: &&&ServiceName| tenants.is_empty() || tenants.contains(&service.tenant);
        let selected = candidates.iter().filter(vouched).filter_map(|service| {
            let entry = cached.by_service.get(*service).filter(|entry| entry.permits_agent(agent))?;
            Some((Reverse(entry.specificity(program)?), *service))
        });
        let mut selected: Vec<_> = selected.collect();
        selected.sort();
        let (mut of_tenant, mut services) = (HashMap::<&Tenant, usize>::new(), Vec::new());
        for (_, service) in selected {
            let count = of_tenant.entry(&service.tenant).or_default();
            if *count < MAX_OF_TENANT && services.len() < limit {
                *count += 1;
                services.push(service.clone());
            }
        }
        services
    }
}

impl Cached {
    fn follow(&mut self, node: &Node) {
        let is_workload = |key: &str| RecordKind::of(key) == Some(RecordKind::Workload);
        let changed = self.at.and_then(|at| node.changes_since(at, is_workload));
        let (at, values) = changed.unwrap_or_else(|| {
            *self = Self::default();
            // Taken before reading: later writes are read again as changes.
            let at = node.revision().number;
            let entries = node.read(&node.tenant_prefixes(RecordKind::Workload)).1;
            (at, entries.into_iter().map(|(key, entry)| (key, Some(entry))).collect())
        });
        self.at = Some(at);
        for (key, entry) in values {
            let Ok(key) = RecordKey::parse(&key) else { continue };
            let RecordKey::Workload(service) = &key else { continue };
            let entry = match entry.map(|entry| record_encoding::decode(&key, &entry.value)) {
                Some(Ok(Record::Workload(entry))) => Some(entry),
                // A record that cannot be read selects nothing.
                _ => None,
            };
            self.set(service, entry);
        }
    }

    fn set(&mut self, service: &ServiceName, entry: Option<WorkloadEntry>) {
        let before = self.by_service.remove(service);
        for selector in before.iter().flat_map(|entry| &entry.programs) {
            match selector.uid {
                Some(uid) => {
                    if let Some(services) = self.by_uid.get_mut(&uid) {
                        services.remove(service);
                        if services.is_empty() {
                            self.by_uid.remove(&uid);
                        }
                    }
                }
                None => drop(self.of_any_user.remove(service)),
            }
        }
        let Some(entry) = entry else { return };
        for selector in &entry.programs {
            let services = match selector.uid {
                Some(uid) => self.by_uid.entry(uid).or_default(),
                None => &mut self.of_any_user,
            };
            services.insert(service.clone());
        }
        self.by_service.insert(service.clone(), Arc::new(entry));
    }
}

#[cfg(test)]
mod tests {
    use crate::Commit;
    use fairmesh_model::{ProgramSelector, StoreId};

    use super::*;

    fn entry(selectors: &[ProgramSelector]) -> WorkloadEntry {
        WorkloadEntry { agents: Vec::new(), programs: selectors.to_vec() }
    }

    fn uid(uid: u32) -> ProgramSelector {
        ProgramSelector { uid: Some(uid), ..ProgramSelector::default() }
    }

    fn program(uid: u32) -> ProgramFacts {
        let unknown = || Err("it is a test".to_owned());
        ProgramFacts { uid, gid: 9, executable: unknown(), cgroup: unknown(), network_namespace: unknown() }
    }

    struct Rig {
        node: Node,
        index: WorkloadIndex,
    }

    impl Rig {
        fn new() -> Self {
            let node = Node::new(StoreId(1));
            Self { index: WorkloadIndex::new(node.clone()), node }
        }

        fn write(&self, service: &str, entry: Option<WorkloadEntry>) {
            let key = RecordKey::Workload(service.parse().unwrap()).to_string();
            let value = entry.map(|entry| record_encoding::encode(&Record::Workload(entry)));
            let revision = self.node.revision().number + 1;
            self.node.apply(Commit { revision, changes: vec![(key.into(), value)] });
        }

        fn select(&self, agent: &str, tenants: &[&str], user: u32) -> Vec<String> {
            let tenants: Vec<_> = tenants.iter().map(|tenant| Tenant::new(*tenant).unwrap()).collect();
            let agent = Label::new(agent).unwrap();
            let selected = self.index.select((&agent, &tenants), &program(user), 64);
            selected.iter().map(ToString::to_string).collect()
        }

        fn held(&self, service: &str) -> Arc<WorkloadEntry> {
            let cached = self.index.cached.lock().unwrap();
            Arc::clone(&cached.by_service[&service.parse().unwrap()])
        }
    }

    #[test]
    fn workload_index_applies_changed_records_by_user() {
        let rig = Rig::new();
        rig.write("shop/web", Some(entry(&[uid(7)])));
        assert_eq!(rig.select("web-1", &[], 7), ["shop/web"]);
        let before = rig.held("shop/web");
        // A tenant without earlier records, any user, and one agent.
        rig.write("bank/cart", Some(entry(&[uid(7), uid(8)])));
        rig.write("shop/any", Some(entry(&[ProgramSelector { gid: Some(9), ..ProgramSelector::default() }])));
        let agents = vec![Label::new("web-2").unwrap()];
        rig.write("shop/of-one", Some(WorkloadEntry { agents, ..entry(&[uid(7)]) }));
        assert_eq!(rig.select("web-1", &[], 7), ["bank/cart", "shop/any", "shop/web"]);
        assert_eq!(rig.select("web-2", &["shop"], 7), ["shop/any", "shop/of-one", "shop/web"]);
        assert_eq!(rig.select("web-1", &[], 8), ["bank/cart", "shop/any"]);
        assert!(Arc::ptr_eq(&before, &rig.held("shop/web")), "it was not read again");

        rig.write("bank/cart", Some(entry(&[uid(8)])));
        rig.write("shop/any", None);
        assert_eq!(rig.select("web-1", &[], 7), ["shop/web"]);
        assert_eq!(rig.select("web-1", &[], 8), ["bank/cart"]);
        rig.write("shop/web", None);
        assert_eq!(rig.select("web-1", &[], 7), [] as [String; 0]);
        let cached = rig.index.cached.lock().unwrap();
        assert_eq!((cached.by_uid.len(), cached.of_any_user.len()), (2, 0), "only users of records are held");
    }

    #[test]
    fn more_specific_workloads_come_first_and_no_tenant_displaces_others() {
        let rig = Rig::new();
        for i in 0..64 {
            rig.write(&format!("aaa/x{i:02}"), Some(entry(&[uid(7)])));
        }
        rig.write("blue/web", Some(entry(&[uid(7)])));
        rig.write("blue/api", Some(entry(&[ProgramSelector { gid: Some(9), ..uid(7) }])));
        let selected = rig.select("web-1", &[], 7);
        assert_eq!(selected[0], "blue/api", "it says most of the program");
        assert_eq!((selected.len(), selected.last().unwrap().as_str()), (MAX_OF_TENANT + 2, "blue/web"));
    }
}
