//! Authorizes callers by the records of a node. Shared by the control plane and replicas.
//!
//! Only a mesh with a trust domain can authenticate callers. In a mesh without one, every caller may do everything.

mod call_authorization;
mod call_needs;
mod caller_numbers;
mod method_needs;
mod report_rows;
mod report_senders;
pub mod request_needs;
mod workload_index;

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{
    Authorization, CallerId, DefaultAuthorization, Identity, JoinedAgent, Label, MeshRole, Prefix, Record,
    RecordKey, RecordKind, Region, ServiceName, SpiffePath, TrustDomain,
    access::{Grants, Machine, MachineCallers, Reach, RoleBinding, Subject, admits, admits_caller},
};
use fairmesh_wire::{ON_BEHALF_OF, record_encoding};
use http::{Extensions, HeaderMap};
use tokio::{sync::watch, time::Instant};

use crate::Node;

pub use call_authorization::{CompleteCall, MAX_BODY};
pub use call_needs::Need;
pub use caller_numbers::CallerNumbers;
pub use method_needs::{METHODS, Method, MethodAccess};
pub use report_rows::{CountedRows, RefusedRows, RefusedSubjects, RowSubject, is_refusal};
pub use report_senders::{incomplete_services, limit_statements};
pub use request_needs::needs_of_value;
pub use workload_index::WorkloadIndex;

/// A caller, as authenticated by its connection or by the signature of its call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Identity authenticated by the connection, or by the signature of the call.
    pub identity: Identity,
    /// Whether another process forwards the call without proof of the call's content.
    pub is_forwarded: bool,
    /// Whether the connection comes from root or this process's own user on this machine.
    pub is_beside: bool,
    /// User identified by the call's token, if any.
    pub user: Option<Arc<User>>,
}

/// A user, as identified by the issuer of the call's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Issuer of the token.
    pub issuer: Arc<str>,
    /// Name of the user at the issuer.
    pub name: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Expiry of the token, as time since 1970.
    pub expires_at: Duration,
    /// Time at which watches authorized by this token are terminated.
    pub ends: Instant,
}

impl fmt::Display for User {
    /// Formats the name with the issuer, because another issuer may have a user with the same name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.issuer, self.name)
    }
}

/// A role binding that applies to a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRole {
    /// Name of the binding.
    pub name: Label,
    /// The binding.
    pub binding: RoleBinding,
    /// The subject that matches the caller.
    pub subject: Subject,
}

/// Authorizes callers by the records of a node. Clones share state.
#[derive(Clone, Debug)]
pub struct AccessControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    node: Node,
    /// Number of changes to records on which decisions depend.
    changes: watch::Sender<u64>,
    /// Whether grants are required, because the mesh has a trust domain. Set even if the domain's record is not known
    /// yet.
    is_required: AtomicBool,
    /// The trust domain that this process serves. It may not be recorded yet.
    own_domain: OnceLock<TrustDomain>,
    cached: Mutex<Option<(u64, Arc<Rules>)>>,
}

/// Decoded records that affect decisions about many callers.
#[derive(Debug)]
struct Rules {
    is_strict: bool,
    bindings: Vec<RoleBinding>,
    default: DefaultAuthorization,
    /// The trust domain, if it is known.
    domain: Option<TrustDomain>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "{user} ({})", self.identity),
            None => self.identity.fmt(f),
        }
    }
}

impl From<Identity> for Caller {
    fn from(identity: Identity) -> Self {
        Self { identity, ..Self::default() }
    }
}

impl Caller {
    /// The caller, as authenticated by its connection.
    pub fn of_connection(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let identity = extensions.get::<Identity>().cloned().unwrap_or_default();
        let is_beside = matches!(identity, Identity::Local { uid } if is_own_user(uid));
        Self { identity, is_forwarded: headers.contains_key(ON_BEHALF_OF), is_beside, user: None }
    }

    /// Returns the subject of a binding that matches the caller.
    fn subject<'a>(&self, binding: &'a RoleBinding) -> Option<&'a Subject> {
        let user = self.user.as_ref().map(|user| (user.name.as_str(), user.groups.as_slice()));
        // No user has this id. Forwarded calls do not prove the user on whose behalf they are made.
        let unproved = Identity::Local { uid: u32::MAX };
        let identity = if self.is_forwarded { &unproved } else { &self.identity };
        binding.subjects.iter().find(|one| one.matches(identity, user))
    }
}

impl AccessControl {
    /// Creates an access control that decides by the records of `node`. Its owner must report changes with
    /// [`changed`](Self::changed).
    pub fn new(node: Node) -> Self {
        let (changes, is_required) = (watch::Sender::new(0), AtomicBool::new(false));
        let own_domain = OnceLock::new();
        let shared = Shared { node, changes, is_required, own_domain, cached: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Whether decisions depend on the record at this key.
    pub fn concerns(key: &str) -> bool {
        RecordKind::of(key).is_some_and(|kind| {
            matches!(kind.group(), "roles" | "identity" | "authorization") || kind == RecordKind::Policy
        })
    }

    /// Requires grants from now on, even if the trust domain is not recorded yet. `own` is the domain that this process
    /// serves, if it serves one.
    pub fn require(&self, own: Option<TrustDomain>) {
        if let Some(own) = own {
            self.shared.own_domain.get_or_init(|| own);
        }
        self.shared.is_required.store(true, Relaxed);
        self.changed();
    }

    /// The trust domain of the mesh, as recorded or as this process serves it.
    pub fn trust_domain(&self) -> Option<TrustDomain> {
        self.rules().domain.clone()
    }

    /// Reports that records on which decisions [depend](Self::concerns) have changed.
    pub fn changed(&self) {
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns a receiver that is notified when decisions may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Whether callers need grants. They do if the mesh has a trust domain.
    pub fn is_strict(&self) -> bool {
        self.rules().is_strict
    }

    /// Returns the grants of a caller.
    pub fn grants(&self, caller: &Caller) -> Grants {
        let rules = self.rules();
        if !rules.is_strict {
            return Grants::admin();
        }
        let mut grants = self.machine_role(caller);
        let has = |binding: &&RoleBinding| caller.subject(binding).is_some();
        rules.bindings.iter().filter(has).for_each(|binding| grants.add(binding));
        grants
    }

    /// Returns the role bindings that apply to a caller.
    pub fn roles(&self, caller: &Caller) -> Vec<BoundRole> {
        let (_, entries) = self.shared.node.read(&[Prefix::roles()]);
        let bound = |key: &str, value: &[u8]| {
            let key = RecordKey::parse(key).ok()?;
            let (RecordKey::RoleBinding(name), Ok(Record::RoleBinding(binding))) =
                (&key, record_encoding::decode(&key, value))
            else {
                return None;
            };
            let subject = caller.subject(&binding)?.clone();
            Some(BoundRole { name: name.clone(), binding, subject })
        };
        entries.iter().filter_map(|(key, entry)| bound(key, &entry.value)).collect()
    }

    /// Whether a caller with these grants may read or watch a prefix.
    pub fn may_read(&self, grants: &Grants, prefix: &Prefix) -> bool {
        grants.may_read(prefix, |service| self.is_callable(grants, service)) || is_own_record(grants, prefix)
    }

    /// Whether a caller with these grants may read the records of a service.
    pub fn may_view(&self, grants: &Grants, service: &ServiceName) -> bool {
        grants.may_view(service, || self.is_callable(grants, service))
    }

    /// Whether programs on the caller's machine may call a service.
    pub fn is_callable(&self, grants: &Grants, service: &ServiceName) -> bool {
        if grants.machine.is_none() {
            return false;
        }
        let key = RecordKey::Policy(service.clone());
        let entry = self.shared.node.get(&key.to_string());
        let authorization = match entry.map(|entry| record_encoding::decode(&key, &entry.value)) {
            Some(Ok(Record::Policy(policy))) => policy.authorization,
            // A policy that cannot be decoded is taken as one that allows no caller.
            Some(_) => Some(Box::default()),
            None => None,
        };
        self.admits(grants, authorization.as_deref())
    }

    /// Whether programs on the caller's machine may call a service whose policy has this authorization.
    pub fn admits(&self, grants: &Grants, authorization: Option<&Authorization>) -> bool {
        let Some(machine) = &grants.machine else { return false };
        let rules = self.rules();
        let callers = MachineCallers::of(machine.agent.as_ref(), &grants.view, rules.domain.clone());
        admits(authorization, rules.default, &callers)
    }

    /// Whether a service whose policy has this authorization may accept at least some calls of a caller.
    pub fn admits_caller(&self, authorization: Option<&Authorization>, caller: &CallerId) -> bool {
        admits_caller(authorization, self.rules().default, caller)
    }

    /// Whether a caller may read and watch a prefix.
    ///
    /// # Errors
    /// The text of the refusal. It is the same whether or not records exist below the prefix.
    pub fn permits(&self, caller: &Caller, prefix: &Prefix) -> Result<(), String> {
        if self.may_read(&self.grants(caller), prefix) {
            return Ok(());
        }
        Err(format!("there is nothing at {prefix} that {caller} may read; a role binding can permit it"))
    }

    /// Returns the grants that follow from a caller's identity alone.
    fn machine_role(&self, caller: &Caller) -> Grants {
        match &caller.identity {
            Identity::Local { uid } if is_own_user(*uid) => match caller.is_forwarded {
                false => Grants::admin(),
                true => of_machine(Machine { agent: None, region: None, is_agent: true }, Reach::Everything),
            },
            // Identities of other trust domains are not members of this mesh.
            Identity::Anonymous | Identity::Local { .. } | Identity::Federated(_) => Grants::default(),
            Identity::Spiffe(id) => match &id.path {
                SpiffePath::Service(service) => Grants {
                    view: Reach::of(std::slice::from_ref(&service.tenant)),
                    registrar: [service.clone()].into(),
                    machine: Some(Machine { agent: None, region: None, is_agent: false }),
                    ..Grants::default()
                },
                SpiffePath::Mesh(MeshRole::Agent, name) => match self.joined(name) {
                    Some(joined) => {
                        // The kernel vouches for an agent on the control plane's own machine. Such an agent may
                        // change its region without a new token.
                        let region = joined.region.filter(|_| !caller.is_beside);
                        let machine = Machine { agent: Some(name.clone()), region, is_agent: true };
                        of_machine(machine, Reach::of(&joined.tenants))
                    }
                    None => Grants::default(),
                },
                SpiffePath::Mesh(role @ (MeshRole::Replica | MeshRole::Proxy | MeshRole::Gateway), name) => {
                    self.of_process(*role, name)
                }
                SpiffePath::Mesh(MeshRole::Control, _) => Grants::admin(),
                // A key server needs only what every caller may read, such as roots and revocations.
                SpiffePath::Mesh(MeshRole::Operator | MeshRole::KeyServer, _) => Grants::default(),
            },
        }
    }

    /// Returns the grants of another process on a machine. A proxy, gateway, lookaside or replica may read what its
    /// agent may read, and may register nothing.
    fn of_process(&self, role: MeshRole, name: &Label) -> Grants {
        let Some((agent, joined)) = self.agent_of(name) else { return Grants::default() };
        let view = Reach::of(&joined.tenants);
        let relays_reports = role == MeshRole::Replica && view.is_everything();
        let is_gateway = role == MeshRole::Gateway && view.is_everything();
        let machine = Machine { agent: Some(agent), region: joined.region, is_agent: false };
        Grants { view, machine: Some(machine), relays_reports, is_gateway, ..Grants::default() }
    }

    /// Returns the agent that vouches for a process: the agent's name is a prefix of the process's name. The longest
    /// matching name counts. Otherwise an agent could vouch for processes of another agent whose name begins with its
    /// own.
    pub fn agent_of(&self, name: &Label) -> Option<(Label, JoinedAgent)> {
        let ends = name.as_str().match_indices('.').map(|(at, _)| at).collect::<Vec<_>>();
        ends.into_iter().rev().find_map(|end| {
            let agent = Label::new(&name.as_str()[..end]).ok()?;
            let joined = self.joined(&agent)?;
            Some((agent, joined))
        })
    }

    fn joined(&self, agent: &Label) -> Option<JoinedAgent> {
        match self.record(&RecordKey::JoinedAgent(agent.clone()))? {
            Record::JoinedAgent(joined) => Some(joined),
            _ => None,
        }
    }

    fn record(&self, key: &RecordKey) -> Option<Record> {
        let entry = self.shared.node.get(&key.to_string())?;
        record_encoding::decode(key, &entry.value).ok()
    }

    fn rules(&self) -> Arc<Rules> {
        // Read before the records, so that a change during the read causes another read.
        let at = *self.shared.changes.borrow();
        let mut cached = self.shared.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, rules)) = cached.as_ref().filter(|(known, _)| *known == at) {
            debug_assert_eq!(*known, at);
            return Arc::clone(rules);
        }
        let rules = Arc::new(self.read_rules());
        *cached = Some((at, Arc::clone(&rules)));
        rules
    }

    fn read_rules(&self) -> Rules {
        let (_, entries) = self.shared.node.read(&[Prefix::roles()]);
        let binding =
            |key: &str, value: &[u8]| match record_encoding::decode(&RecordKey::parse(key).ok()?, value) {
                Ok(Record::RoleBinding(binding)) => Some(binding),
                // A record of a newer release grants nothing.
                _ => None,
            };
        let key = RecordKey::DefaultAuthorization;
        let entry = self.shared.node.get(&key.to_string());
        let default = match entry.map(|entry| record_encoding::decode(&key, &entry.value)) {
            Some(Ok(Record::DefaultAuthorization(default))) => default,
            // An unreadable default allows no call.
            Some(_) => DefaultAuthorization::Deny,
            None => DefaultAuthorization::default(),
        };
        let domain = match self.record(&RecordKey::TrustBundle) {
            Some(Record::TrustBundle(bundle)) => Some(bundle.domain),
            _ => self.shared.own_domain.get().cloned(),
        };
        Rules {
            domain,
            is_strict: self.shared.is_required.load(Relaxed)
                || self.shared.node.get(&RecordKey::TrustBundle.to_string()).is_some(),
            bindings: entries.iter().filter_map(|(key, entry)| binding(key, &entry.value)).collect(),
            default,
        }
    }
}

/// Whether a prefix is the record of the caller, an agent. The record has the region for which the agent may report.
fn is_own_record(grants: &Grants, prefix: &Prefix) -> bool {
    let agent = grants.machine.as_ref().filter(|machine| machine.is_agent).and_then(|one| one.agent.as_ref());
    agent.is_some_and(|agent| RecordKey::JoinedAgent(agent.clone()).to_string() == prefix.as_str())
}

fn of_machine(machine: Machine, tenants: Reach) -> Grants {
    Grants { view: tenants.clone(), serve: tenants, machine: Some(machine), ..Grants::default() }
}

/// Whether `uid` is root or this process's own user.
pub fn is_own_user(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Returns the refusal for a caller that may not report for a region.
pub fn region_refusal(identity: &Identity, region: &Region) -> String {
    format!(
        "{identity} does not report for the region {region}; an agent reports for the one in which it joined"
    )
}
