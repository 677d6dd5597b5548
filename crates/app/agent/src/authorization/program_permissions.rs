//! Permissions of local programs: the agent asks control planes what the programs of other users may do in its name, and
//! caches the answers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::{
    CallerId, DefaultAuthorization, Policy, ProgramFacts, Record, RecordKey, ServiceName, SpiffeId,
    SpiffePath,
    access::{Reach, admits_caller},
};
use fairmesh_rib::{access::is_refusal, follower::FollowerHandle};
use fairmesh_wire::{record_encoding, v1};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tonic::{Code, Status};

use super::Asked;
use crate::identity::AgentIdentity;

/// Time for which a granted permission is cached. It equals the time for which a program that uses the Workload API
/// keeps an identity.
const PERMITTED_FOR: Duration = Duration::from_secs(30);
/// Time for which a refusal is cached. Short, so that a new record soon takes effect, while a refused program still
/// costs control planes little.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests to control planes for the programs of one user.
const CONCURRENT: usize = 4;
/// Maximum number of cached answers for the programs of one user. At this number, the user's cache is cleared.
const MAX_ANSWERS: usize = 1024;
/// Maximum number of users with cached answers.
const MAX_USERS: usize = 1024;
/// Timeout for reading the policies of called services.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of policies in one read. Below the maximum number of prefixes in a read.
const MAX_READ: usize = 1024;

/// Services that a program may not call, with the reason for each.
pub(super) type RefusedCalls = BTreeMap<ServiceName, Status>;

/// Asks control planes what the programs of other users may do, and caches the answers for a short time.
#[derive(Debug)]
pub(super) struct ProgramPermissions {
    upstream: FollowerHandle,
    users: Mutex<HashMap<u32, User>>,
}

/// Cached answers and request limit of one user's programs.
#[derive(Debug)]
struct User {
    asking: Arc<Semaphore>,
    answers: HashMap<(ProgramFacts, Question), Answer>,
}

/// A permission that a program may need.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    /// Whether the program may have the identity of a service.
    ActFor(ServiceName),
    /// Whether one of the program's identities may call a service.
    Call(ServiceName),
    /// Whether the program has any identity.
    BeKnown,
    /// Whether the program may know that operators look at a service: it is the service, or may call it.
    See(ServiceName),
}

#[derive(Clone, Debug)]
struct Answer {
    at: Instant,
    /// Reason of the refusal; `None` if the permission is granted.
    refused: Option<String>,
    /// The tenants of the program's identities, for the question whether it has any. Part of the answer, so that a
    /// program with a cached permission never lacks them.
    tenants: Reach,
}

impl Default for User {
    fn default() -> Self {
        let asking = Arc::new(Semaphore::new(CONCURRENT));
        Self { asking, answers: HashMap::new() }
    }
}

impl Answer {
    fn is_current(&self) -> bool {
        let valid = if self.refused.is_some() { REFUSED_FOR } else { PERMITTED_FOR };
        self.at.elapsed() < valid
    }

    fn result(&self) -> Result<(), Status> {
        self.refused.as_ref().map_or(Ok(()), |why| Err(Status::permission_denied(why.clone())))
    }
}

impl ProgramPermissions {
    pub(super) fn new(upstream: FollowerHandle) -> Self {
        Self { upstream, users: Mutex::default() }
    }

    /// Checks whether a program of another user may have the agent state `asked`.
    ///
    /// # Errors
    /// The refusal, or `Unavailable` while no control plane answers.
    pub(super) async fn check(
        &self,
        identity: &AgentIdentity,
        program: &ProgramFacts,
        asked: &Asked,
    ) -> Result<(), Status> {
        for service in &asked.acts_for {
            let question = Question::ActFor(service.clone());
            let checked = async || identity.check_program(service, program).await.map(no_tenants);
            self.decide(program, question, checked).await?;
            // A revocation takes effect with its record, before the cached answer expires.
            identity.check_not_revoked(&SpiffePath::Service(service.clone()))?;
        }
        if asked.calls_any {
            let known = async || identity.identities_of(program).await.map(|ids| tenants_of(&ids));
            self.decide(program, Question::BeKnown, known).await?;
        }
        first(self.refused_calls(identity, program, &asked.calls).await?)
    }

    /// Checks a TCP peer, whose certificate identifies it.
    pub(super) async fn check_proved(&self, id: &SpiffeId, asked: &Asked) -> Result<(), Status> {
        let is_other = |service: &&ServiceName| id.path != SpiffePath::Service((*service).clone());
        if let Some(service) = asked.acts_for.iter().find(is_other) {
            return Err(Status::permission_denied(format!("{id} acts for no instance of {service}")));
        }
        first(self.calls_refused_to_proved(id, &asked.calls).await?)
    }

    /// Returns the services that a TCP peer may not call. Needs only one read.
    pub(super) async fn calls_refused_to_proved(
        &self,
        id: &SpiffeId,
        calls: &BTreeSet<ServiceName>,
    ) -> Result<RefusedCalls, Status> {
        let calls: Vec<_> = calls.iter().cloned().collect();
        let policies = self.policies(&calls).await?;
        let callers = [CallerId::new(id.clone())];
        refusals(calls.into_iter().map(|service| {
            let decided = policies.check(&service, &callers);
            (service, decided)
        }))
    }

    /// Returns the services that a program of another user may not call, using one read.
    ///
    /// # Errors
    /// `Unavailable` while no control plane answers.
    pub(super) async fn refused_calls(
        &self,
        identity: &AgentIdentity,
        program: &ProgramFacts,
        calls: &BTreeSet<ServiceName>,
    ) -> Result<RefusedCalls, Status> {
        let known = |service: &&ServiceName| {
            let answer = self.answer(program, &Question::Call((*service).clone()));
            !answer.is_some_and(|answer| answer.is_current() && answer.refused.is_none())
        };
        let unknown: Vec<_> = calls.iter().filter(known).cloned().collect();
        if unknown.is_empty() {
            return Ok(RefusedCalls::new());
        }
        // One request answers all questions about acting for services.
        let asking = self.asking(program);
        let _turn = asking.acquire().await;
        let read = async {
            let callers = identity.identities_of(program).await?;
            let callers: Vec<_> = callers.into_iter().map(CallerId::new).collect();
            Ok((callers, self.policies(&unknown).await?))
        };
        let read = read.await;
        let settle = |service: ServiceName| {
            let decided = match &read {
                Ok((callers, policies)) => policies.check(&service, callers).map(no_tenants),
                Err(status) => Err(Status::clone(status)),
            };
            let settled = self.settle(program, Question::Call(service.clone()), decided);
            (service, settled)
        };
        // A refusal must not keep the other answers from being cached.
        let settled: Vec<_> = unknown.into_iter().map(settle).collect();
        refusals(settled)
    }

    /// Returns those of `services` that a program of another user is or may call. Services are left out while no
    /// control plane answers.
    pub(super) async fn visible(
        &self,
        identity: &AgentIdentity,
        program: &ProgramFacts,
        mut services: BTreeSet<ServiceName>,
    ) -> BTreeSet<ServiceName> {
        let answer = |service: &ServiceName| self.answer(program, &Question::See(service.clone()));
        let is_unknown = |service: &&ServiceName| !answer(service).is_some_and(|answer| answer.is_current());
        let unknown: Vec<_> = services.iter().filter(is_unknown).cloned().collect();
        if !unknown.is_empty() {
            let asking = self.asking(program);
            let _turn = asking.acquire().await;
            let read = async { Ok((identity.identities_of(program).await?, self.policies(&unknown).await?)) };
            let read = read.await;
            for service in unknown {
                let decided = match &read {
                    Ok((ids, policies)) => policies.check_visible(&service, ids).map(no_tenants),
                    Err(status) => Err(Status::clone(status)),
                };
                // The answer is read below.
                let _ = self.settle(program, Question::See(service), decided);
            }
        }
        services.retain(|service| answer(service).is_some_and(|answer| answer.refused.is_none()));
        services
    }

    /// Returns those of `services` that a TCP peer is or may call.
    pub(super) async fn visible_to_proved(
        &self,
        id: &SpiffeId,
        mut services: BTreeSet<ServiceName>,
    ) -> BTreeSet<ServiceName> {
        let named: Vec<_> = services.iter().cloned().collect();
        let Ok(policies) = self.policies(&named).await else { return BTreeSet::new() };
        services.retain(|service| policies.check_visible(service, std::slice::from_ref(id)).is_ok());
        services
    }

    /// Answers a question from the cache or, if it is not cached, with `ask`.
    async fn decide<F>(
        &self,
        program: &ProgramFacts,
        question: Question,
        ask: impl FnOnce() -> F,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<Reach, Status>>,
    {
        let current = || self.answer(program, &question).filter(Answer::is_current);
        if let Some(answer) = current() {
            return answer.result();
        }
        let asking = self.asking(program);
        let _turn = asking.acquire().await;
        // A concurrent call may have asked meanwhile.
        if let Some(answer) = current() {
            return answer.result();
        }
        self.settle(program, question, ask().await)
    }

    /// Caches a decision. While no control plane answers, the last granted permission stays valid.
    fn settle(
        &self,
        program: &ProgramFacts,
        question: Question,
        decided: Result<Reach, Status>,
    ) -> Result<(), Status> {
        let (refused, tenants) = match decided {
            Ok(tenants) => (None, tenants),
            Err(status) if matches!(status.code(), Code::PermissionDenied | Code::NotFound) => {
                (Some(status.message().to_owned()), Reach::default())
            }
            Err(status) => {
                let last = self.answer(program, &question);
                return if last.is_some_and(|last| last.refused.is_none()) { Ok(()) } else { Err(status) };
            }
        };
        let answer = Answer { at: Instant::now(), refused, tenants };
        let result = answer.result();
        let mut users = self.users();
        let user = users.entry(program.uid).or_default();
        if user.answers.len() >= MAX_ANSWERS {
            user.answers.clear();
        }
        user.answers.insert((program.clone(), question), answer);
        result
    }

    /// Returns the tenants of a program's identities, as known since [`check`](Self::check) found that it has any.
    pub(super) fn tenants(&self, program: &ProgramFacts) -> Reach {
        self.answer(program, &Question::BeKnown).map(|answer| answer.tenants).unwrap_or_default()
    }

    fn answer(&self, program: &ProgramFacts, question: &Question) -> Option<Answer> {
        let key = (program.clone(), question.clone());
        self.users().get(&program.uid)?.answers.get(&key).cloned()
    }

    fn asking(&self, program: &ProgramFacts) -> Arc<Semaphore> {
        let mut users = self.users();
        if users.len() >= MAX_USERS && !users.contains_key(&program.uid) {
            users.clear();
        }
        Arc::clone(&users.entry(program.uid).or_default().asking)
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the policies of services from the upstream, since this agent may not follow these services.
    async fn policies(&self, services: &[ServiceName]) -> Result<Policies, Status> {
        let mut read = Policies::default();
        for some in services.chunks(MAX_READ) {
            let connection = timeout(READ_TIMEOUT, self.upstream.connected()).await;
            let connection =
                connection.map_err(|_| Status::unavailable("no control plane responds; retry"))?;
            let keys = some.iter().map(|service| RecordKey::Policy(service.clone()).to_string());
            let prefixes = keys.chain([RecordKey::DefaultAuthorization.to_string()]).collect();
            let mut rib = connection.rib();
            let reading = rib.read(v1::ReadRequest { prefixes, at_least: None });
            let late =
                |_| Status::unavailable("the policies of called services cannot be read in time; retry");
            let entries = timeout(READ_TIMEOUT, reading).await.map_err(late)??.into_inner().entries;
            entries.iter().for_each(|entry| read.put(&entry.key, &entry.value));
        }
        Ok(read)
    }
}

/// The tenants in an answer about one service, which are not asked for.
fn no_tenants((): ()) -> Reach {
    Reach::default()
}

/// Returns the tenants of the services among these identities.
pub(super) fn tenants_of(ids: &[SpiffeId]) -> Reach {
    let tenant = |id: &SpiffeId| match &id.path {
        SpiffePath::Service(service) => Some(service.tenant.clone()),
        SpiffePath::Mesh(..) => None,
    };
    Reach::Tenants(ids.iter().filter_map(tenant).collect())
}

/// Returns the refused services among these decisions.
///
/// # Errors
/// The first error that is no decision.
fn refusals(
    decided: impl IntoIterator<Item = (ServiceName, Result<(), Status>)>,
) -> Result<RefusedCalls, Status> {
    let mut refused = RefusedCalls::new();
    for (service, decided) in decided {
        match decided {
            Ok(()) => {}
            Err(reason) if is_refusal(&reason) => drop(refused.insert(service, reason)),
            Err(status) => return Err(status),
        }
    }
    Ok(refused)
}

/// Returns the first refusal as an error.
///
/// # Errors
/// The first refusal.
fn first(refused: RefusedCalls) -> Result<(), Status> {
    refused.into_values().next().map_or(Ok(()), Err)
}

/// Authorization policies of services.
#[derive(Debug, Default)]
struct Policies {
    of: BTreeMap<ServiceName, Policy>,
    default: DefaultAuthorization,
}

impl Policies {
    /// Stores a record. One that cannot be decoded allows no call.
    fn put(&mut self, key: &str, value: &[u8]) {
        let Ok(key) = RecordKey::parse(key) else { return };
        match (record_encoding::decode(&key, value), key) {
            (Ok(Record::Policy(policy)), RecordKey::Policy(service)) => drop(self.of.insert(service, policy)),
            (Ok(Record::DefaultAuthorization(default)), _) => self.default = default,
            (Err(_), RecordKey::Policy(service)) => {
                let authorization = Some(Box::default());
                self.of.insert(service, Policy { authorization, ..Policy::default() });
            }
            (Err(_), RecordKey::DefaultAuthorization) => self.default = DefaultAuthorization::Deny,
            _ => {}
        }
    }

    /// Checks whether one of these identities is the service, or may call it.
    fn check_visible(&self, service: &ServiceName, ids: &[SpiffeId]) -> Result<(), Status> {
        if ids.iter().any(|id| id.path == SpiffePath::Service(service.clone())) {
            return Ok(());
        }
        let callers: Vec<_> = ids.iter().cloned().map(CallerId::new).collect();
        self.check(service, &callers)
    }

    /// Checks whether a service permits calls from one of these callers.
    fn check(&self, service: &ServiceName, callers: &[CallerId]) -> Result<(), Status> {
        let authorization = self.of.get(service).and_then(|policy| policy.authorization.as_deref());
        match callers.iter().any(|caller| admits_caller(authorization, self.default, caller)) {
            true => Ok(()),
            false => Err(Status::permission_denied(format!(
                "no identity of this program may call {service}: its policy decides who may"
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
