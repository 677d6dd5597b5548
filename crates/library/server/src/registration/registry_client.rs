//! A client of the registry, through the agent, which forwards requests, or directly to a control plane.

use std::{
    future::Future,
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_identity::{LateIdentity, Membership};
use fairmesh_model::{Endpoint, InstanceId, Location, ServiceName, ShardId};
use fairmesh_wire::{
    handshake::{ConnectError, Connection, Hello, connect, is_version_refusal},
    transport::{Address, PlaintextCaller, PlaintextCallers, Transport},
    v1,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout, timeout_at},
};
use tonic::{Code, Response, Status};

use crate::authorization::{Authorizer, ConnectionAuthorizer};

/// Default timeout of a call to the registry.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an endpoint that is registered late waits for its policy.
const POLICY_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason why a request to the registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Neither agent nor control plane accepted the connection.
    #[error(transparent)]
    Connect(#[from] Box<ConnectError>),
    /// The registry did not respond in time.
    #[error(
        "{address} did not respond within {after:?}; it is overloaded, or cannot reach the control plane"
    )]
    Timeout {
        /// Address of the registry.
        address: Address,
        /// The timeout that has passed.
        after: Duration,
    },
    /// The registry responded with an error.
    #[error("{address} refused: {}", status.message())]
    Refused {
        /// Address of the registry.
        address: Address,
        /// The error.
        status: Box<Status>,
    },
    /// The server accepts plaintext, and its agent does not know yet whether the mesh has a trust domain.
    #[error(
        "the agent at {agent} has reached no control plane yet, and does not know whether the mesh has a trust domain, in which \
         a server in plaintext is not registered; see the log of the agent"
    )]
    Undecided {
        /// Address of the agent.
        agent: Address,
    },
    /// The server accepts only mutual TLS, and has no certificate yet.
    #[error("this server has no certificate yet, and is registered once it has: {0}")]
    NoCertificate(String),
    /// Neither the program nor an agent knows its location.
    #[error(
        "no region is known for this program; set FAIRMESH_REGION, give `fairmesh register` one with --region, or \
         connect to an agent that knows it"
    )]
    NoRegion,
}

impl RegistryError {
    fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { status, .. } => Some(status.code()),
            _ => None,
        }
    }

    /// Whether the registry does not know the instance.
    pub fn is_unknown(&self) -> bool {
        self.code() == Some(Code::NotFound)
    }

    /// Whether a retry cannot succeed.
    pub fn is_final(&self) -> bool {
        matches!(
            self.code(),
            Some(
                Code::InvalidArgument | Code::Unimplemented | Code::PermissionDenied | Code::Unauthenticated
            )
        )
    }
}

/// A connection to the registry. It is opened on first use and reopened after failures. If an address does not
/// respond, the next one is used.
#[derive(Debug)]
pub struct RegistryClient {
    addresses: Vec<Address>,
    transport: Transport,
    software: String,
    undecided: Option<Arc<LateIdentity>>,
    /// Authorizer that an endpoint registered late must wait for, so that it knows which callers are allowed.
    authorizer: OnceLock<Arc<Authorizer>>,
    /// Number that distinguishes this process from earlier and later ones with the same name.
    incarnation: u64,
    current: Mutex<Option<(Address, Connection)>>,
}

/// Converts plaintext callers to protocol messages for the control plane.
fn reported(callers: &PlaintextCallers) -> Vec<v1::PlaintextCaller> {
    let now = Instant::now();
    let report = |(address, caller): (IpAddr, PlaintextCaller)| v1::PlaintextCaller {
        address: address.to_string(),
        connections: caller.connections,
        seconds_ago: u32::try_from(caller.idle(now).as_secs()).unwrap_or(u32::MAX),
    };
    callers.recent(now).into_iter().map(report).collect()
}

pub(crate) type Current = (Address, Connection);

impl RegistryClient {
    /// Creates a client for the first of `addresses` that responds. `software` describes this program.
    pub fn new(addresses: Vec<Address>, software: impl Into<String>, transport: Transport) -> Self {
        let (software, incarnation) = (software.into(), incarnation());
        Self {
            addresses,
            transport,
            software,
            undecided: None,
            authorizer: OnceLock::new(),
            incarnation,
            current: Mutex::new(None),
        }
    }

    /// Sets the identity of a server that began to accept plaintext without knowing whether the mesh has a trust
    /// domain. Before it is registered, the server asks its agent; if the mesh has a trust domain, it then switches to
    /// mutual TLS.
    #[must_use]
    pub fn undecided(self, identity: Option<Arc<LateIdentity>>) -> Self {
        Self { undecided: identity, ..self }
    }

    /// Delays the registration of an undecided endpoint until its server knows which callers are allowed.
    #[must_use]
    pub fn after_policy_of(self, authorizer: Option<&ConnectionAuthorizer>) -> Self {
        authorizer.into_iter().for_each(|known| self.wait_for_policy(&known.authorizer));
        self
    }

    pub(crate) fn wait_for_policy(&self, authorizer: &Arc<Authorizer>) {
        // Each server has only one.
        let _ = self.authorizer.set(Arc::clone(authorizer));
    }

    /// The transport of the connection.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The addresses, in order.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The description of this program.
    pub fn software(&self) -> &str {
        &self.software
    }

    /// Returns this machine's location as reported by the agent; `None` from a control plane.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub async fn location(&self) -> Result<Option<Location>, RegistryError> {
        Ok(self.connection().await?.1.hello.location)
    }

    /// Asks the agent for this machine's location again: a connection survives restarts of the agent, and the agent may
    /// have got another zone. `None` from a control plane.
    ///
    /// # Errors
    /// The agent cannot be reached, or its response is invalid.
    pub(crate) async fn present_location(&self) -> Result<Option<Location>, RegistryError> {
        let (address, connection) = self.connection().await?;
        if connection.hello.location.is_none() {
            return Ok(None);
        }
        let version = connection.hello.version;
        let request = v1::HelloRequest {
            oldest_version: version,
            newest_version: version,
            software: self.software.clone(),
            ..v1::HelloRequest::default()
        };
        let mut rib = connection.rib();
        let response = self.call(address.clone(), CALL_TIMEOUT, rib.hello(request)).await?;
        let hello = Hello::try_from(response);
        let hello = hello.map_err(|source| ConnectError::InvalidHello { address, source });
        let location = hello.map_err(Box::new)?.location;
        if let Some((_, connection)) = &mut *self.current.lock().await {
            connection.hello.location.clone_from(&location);
        }
        Ok(location)
    }

    /// Registers an endpoint of this process.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub async fn register(&self, mut registration: v1::Registration) -> Result<(), RegistryError> {
        if let Some(late) = &self.undecided {
            self.decide(late).await?;
            // Before the endpoint knows who may call, it would refuse the callers that find it.
            if let Some(authorizer) = self.authorizer.get() {
                let _ = timeout(POLICY_TIMEOUT, authorizer.ready()).await;
            }
            if let Some(endpoint) = &mut registration.endpoint {
                endpoint.mtls = self.transport.is_tls();
            }
        }
        if let Some(problem) = self.transport.lacks_certificate() {
            return Err(RegistryError::NoCertificate(problem));
        }
        if let Some(endpoint) = &mut registration.endpoint {
            endpoint.labels.insert(Endpoint::INCARNATION.into(), self.incarnation.to_string());
        }
        let request = v1::RegisterRequest { registrations: vec![registration] };
        let (address, connection) = self.connection().await?;
        let mut service = connection.registry();
        self.call(address, CALL_TIMEOUT, service.register(request)).await.map(drop)
    }

    /// Asks the agent whether the mesh has a trust domain.
    async fn decide(&self, late: &LateIdentity) -> Result<(), RegistryError> {
        match late.decide().await {
            Membership::Member | Membership::NoDomain => Ok(()),
            // Without an agent, a control plane may register the server: it knows whether the mesh has a trust domain.
            Membership::NoAgent if self.connection().await?.0 != *late.agent() => Ok(()),
            // An agent that has appeared meanwhile is asked at the next attempt.
            Membership::NoAgent | Membership::Undecided => {
                Err(RegistryError::Undecided { agent: late.agent().clone() })
            }
        }
    }

    /// Renews the lease, with a report of plaintext callers. Returns `false` if the registry does not know the
    /// instance.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub async fn renew(&self, instance: v1::InstanceRef) -> Result<bool, RegistryError> {
        let request = v1::RenewRequest {
            instances: vec![self.with_incarnation(instance)],
            plaintext_callers: self
                .transport
                .plaintext_callers()
                .map(|callers| reported(callers))
                .unwrap_or_default(),
        };
        let (address, connection) = self.connection().await?;
        let mut service = connection.registry();
        let response = self.call(address, CALL_TIMEOUT, service.renew(request)).await?;
        Ok(response.unknown.is_empty())
    }

    /// Changes the state of an instance.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub async fn report(&self, mut report: v1::StateReport) -> Result<(), RegistryError> {
        report.instance = report.instance.map(|instance| self.with_incarnation(instance));
        let request = v1::ReportRequest { reports: vec![report], by_operator: false };
        let (address, connection) = self.connection().await?;
        let mut service = connection.registry();
        self.call(address, CALL_TIMEOUT, service.report(request)).await.map(drop)
    }

    /// Returns the connection for requesting a drain, if it is open by `deadline`.
    pub(crate) async fn connect_by(&self, deadline: Instant) -> Result<Current, RegistryError> {
        let began = Instant::now();
        let late = |_| match self.addresses.first().cloned() {
            Some(address) => RegistryError::Timeout { address, after: began.elapsed() },
            None => RegistryError::NoRegion,
        };
        timeout_at(deadline, self.connection()).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    /// Marks the instance as draining and waits for its callers, at most `within`.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub(crate) async fn drain(
        &self,
        (address, connection): Current,
        instance: v1::InstanceRef,
        within: Duration,
    ) -> Result<v1::DrainResponse, RegistryError> {
        let deadline_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let request = v1::DrainRequest {
            instances: vec![self.with_incarnation(instance)],
            deadline_ms,
            by_operator: false,
        };
        let mut service = connection.registry();
        // Slightly longer than the registry waits, so that its response, which names the lagging callers, arrives in
        // time.
        self.call(address, within + Duration::from_millis(500), service.drain(request)).await
    }

    /// Deregisters the instance.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub async fn deregister(&self, instance: v1::InstanceRef) -> Result<(), RegistryError> {
        let instances = vec![self.with_incarnation(instance)];
        let request = v1::DeregisterRequest { instances, only_lost: false };
        let (address, connection) = self.connection().await?;
        let mut service = connection.registry();
        self.call(address, CALL_TIMEOUT, service.deregister(request)).await.map(drop)
    }

    /// Reports the loaded shards.
    ///
    /// # Errors
    /// The registry refuses the request or cannot be reached.
    pub async fn report_shards(
        &self,
        instance: v1::InstanceRef,
        ready: impl IntoIterator<Item = ShardId>,
    ) -> Result<(), RegistryError> {
        let ready = ready.into_iter().map(|shard| shard.0).collect();
        let request = v1::ReportShardsRequest { instance: Some(self.with_incarnation(instance)), ready };
        let (address, connection) = self.connection().await?;
        let mut service = connection.registry();
        self.call(address, CALL_TIMEOUT, service.report_shards(request)).await.map(drop)
    }

    /// Reports the load of shards.
    pub(crate) async fn report_shard_load(
        &self,
        mut report: v1::ReportShardLoadRequest,
    ) -> Result<(), RegistryError> {
        report.instance = report.instance.map(|instance| self.with_incarnation(instance));
        let (address, connection) = self.connection().await?;
        let mut service = connection.registry();
        self.call(address, CALL_TIMEOUT, service.report_shard_load(report)).await.map(drop)
    }

    /// Reports the CPU usage of an instance by minute, or its load.
    ///
    /// # Errors
    /// The process at the other end refuses the request or cannot be reached.
    pub async fn report_signals(
        &self,
        report: v1::ReportSignalsRequest,
    ) -> Result<v1::ReportSignalsResponse, RegistryError> {
        let (address, connection) = self.connection().await?;
        let reported = async { connection.report_signals(report).await.map(Response::new) };
        self.call(address, CALL_TIMEOUT, reported).await
    }

    /// Adds the incarnation of this process to the instance.
    fn with_incarnation(&self, instance: v1::InstanceRef) -> v1::InstanceRef {
        v1::InstanceRef { incarnation: self.incarnation, ..instance }
    }

    async fn connection(&self) -> Result<Current, RegistryError> {
        let mut current = self.current.lock().await;
        if let Some(current) = &*current {
            return Ok(current.clone());
        }
        let mut first_error = None;
        for address in &self.addresses {
            match connect(&self.transport, address, &self.software).await {
                Ok(connection) => return Ok(current.insert((address.clone(), connection)).clone()),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(match first_error {
            Some(error) => RegistryError::Connect(Box::new(error)),
            None => RegistryError::NoRegion,
        })
    }

    async fn call<T>(
        &self,
        address: Address,
        within: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RegistryError> {
        let error = match timeout(within, call).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => RegistryError::Refused { address, status: Box::new(status) },
            Err(_) => RegistryError::Timeout { address, after: within },
        };
        let version = matches!(&error, RegistryError::Refused { status, .. } if is_version_refusal(status));
        if version || matches!(error.code(), None | Some(Code::Unavailable | Code::Unknown)) {
            // Another address may work, and a process of another release may need a new handshake.
            *self.current.lock().await = None;
        }
        Err(error)
    }
}

/// A reference to an instance in the protocol.
pub(crate) fn instance_ref(service: &ServiceName, instance: &InstanceId) -> v1::InstanceRef {
    v1::InstanceRef { service: service.to_string(), instance: instance.to_string(), incarnation: 0 }
}

/// Returns a number greater than those of earlier processes: the microseconds since 1970. If the clock was set back
/// meanwhile, the registry still accepts this process once its predecessor has left or is lost.
#[allow(clippy::disallowed_methods, reason = "only the wall clock continues from one process to the next")]
fn incarnation() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
}
