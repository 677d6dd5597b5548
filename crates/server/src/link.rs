//! The way to the registry: through the agent, which forwards, or straight to a control plane.

use std::{
    future::Future,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fairmesh_model::{Endpoint, InstanceId, Location, ServiceName, ShardId};
use fairmesh_wire::{
    handshake::{ConnectError, Connection, connect, is_version_refusal},
    transport::Address,
    v1,
};
use tokio::{sync::Mutex, time::timeout};
use tonic::{Code, Response, Status};

/// How long a call to the registry may take, unless it says otherwise.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the registry did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Neither agent nor control plane took the connection.
    #[error(transparent)]
    Connect(#[from] Box<ConnectError>),
    /// No answer in time.
    #[error("{address} did not answer within {after:?}; it is overloaded, or cannot reach the control plane")]
    Timeout {
        /// Who was asked.
        address: Address,
        /// How long was waited.
        after: Duration,
    },
    /// It answered with an error.
    #[error("{address} refused: {}", status.message())]
    Refused {
        /// Who was asked.
        address: Address,
        /// What it said.
        status: Box<Status>,
    },
    /// Neither the program nor an agent says where it runs.
    #[error(
        "no region is known for this program; set FAIRMESH_REGION, give `fairmesh register` one with --region, or connect to an agent that knows it"
    )]
    NoRegion,
}

impl LinkError {
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

    /// Whether asking again cannot help.
    pub fn is_final(&self) -> bool {
        matches!(
            self.code(),
            Some(
                Code::InvalidArgument | Code::Unimplemented | Code::PermissionDenied | Code::Unauthenticated
            )
        )
    }
}

/// A connection to the registry that is made on first use, again after failures, and to the next address when one does
/// not answer.
#[derive(Debug)]
pub struct Link {
    addresses: Vec<Address>,
    software: String,
    /// Tells this process from those before and after it under the same name.
    incarnation: u64,
    current: Mutex<Option<(Address, Connection)>>,
}

type Current = (Address, Connection);

impl Link {
    /// A link over the first of `addresses` that answers; `software` says what this program is, for people.
    pub fn new(addresses: Vec<Address>, software: impl Into<String>) -> Self {
        Self { addresses, software: software.into(), incarnation: incarnation(), current: Mutex::new(None) }
    }

    /// Where it tries to connect, in order.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What it says it is.
    pub fn software(&self) -> &str {
        &self.software
    }

    /// Where the agent says that this machine is; `None` from a control plane.
    pub async fn location(&self) -> Result<Option<Location>, LinkError> {
        Ok(self.connection().await?.1.hello.location)
    }

    /// Announces an endpoint of this process.
    pub async fn register(&self, mut registration: v1::Registration) -> Result<(), LinkError> {
        if let Some(endpoint) = &mut registration.endpoint {
            endpoint.labels.insert(Endpoint::INCARNATION.into(), self.incarnation.to_string());
        }
        let request = v1::RegisterRequest { registrations: vec![registration] };
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        self.answer(address, CALL_TIMEOUT, registry.register(request)).await.map(drop)
    }

    /// Keeps the lease; `false` when the registry knows no such instance.
    pub async fn renew(&self, instance: v1::InstanceRef) -> Result<bool, LinkError> {
        let request = v1::RenewRequest { instances: vec![self.own(instance)] };
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        let answer = self.answer(address, CALL_TIMEOUT, registry.renew(request)).await?;
        Ok(answer.unknown.is_empty())
    }

    /// Changes the state.
    pub async fn report(&self, mut report: v1::StateReport) -> Result<(), LinkError> {
        report.instance = report.instance.map(|instance| self.own(instance));
        let request = v1::ReportRequest { reports: vec![report] };
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        self.answer(address, CALL_TIMEOUT, registry.report(request)).await.map(drop)
    }

    /// Marks the instance as draining and waits for its callers, at most `within`.
    pub async fn drain(
        &self,
        instance: v1::InstanceRef,
        within: Duration,
    ) -> Result<v1::DrainResponse, LinkError> {
        let deadline_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        let request = v1::DrainRequest { instances: vec![self.own(instance)], deadline_ms };
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        // A little longer than the registry waits, so that its answer, which names who is behind, wins.
        self.answer(address, within + Duration::from_millis(500), registry.drain(request)).await
    }

    /// Takes the instance out.
    pub async fn deregister(&self, instance: v1::InstanceRef) -> Result<(), LinkError> {
        let request = v1::DeregisterRequest { instances: vec![self.own(instance)] };
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        self.answer(address, CALL_TIMEOUT, registry.deregister(request)).await.map(drop)
    }

    /// Says which shards are loaded.
    pub async fn report_shards(
        &self,
        instance: v1::InstanceRef,
        ready: impl IntoIterator<Item = ShardId>,
    ) -> Result<(), LinkError> {
        let ready = ready.into_iter().map(|shard| shard.0).collect();
        let request = v1::ReportShardsRequest { instance: Some(self.own(instance)), ready };
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        self.answer(address, CALL_TIMEOUT, registry.report_shards(request)).await.map(drop)
    }

    /// Says how much work calls for the keys of shards were.
    pub(super) async fn report_shard_load(
        &self,
        mut report: v1::ReportShardLoadRequest,
    ) -> Result<(), LinkError> {
        report.instance = report.instance.map(|instance| self.own(instance));
        let (address, connection) = self.connection().await?;
        let mut registry = connection.registry();
        self.answer(address, CALL_TIMEOUT, registry.report_shard_load(report)).await.map(drop)
    }

    /// Says what an instance used, minute by minute.
    pub async fn report_usage(&self, usage: v1::InstanceUsage) -> Result<(), LinkError> {
        let request = v1::ReportUsageRequest { usages: vec![usage] };
        let (address, connection) = self.connection().await?;
        let mut imbalance = connection.imbalance();
        self.answer(address, CALL_TIMEOUT, imbalance.report(request)).await.map(drop)
    }

    /// The instance as this process speaks for it, and no other.
    fn own(&self, instance: v1::InstanceRef) -> v1::InstanceRef {
        v1::InstanceRef { incarnation: self.incarnation, ..instance }
    }

    async fn connection(&self) -> Result<Current, LinkError> {
        let mut current = self.current.lock().await;
        if let Some(current) = &*current {
            return Ok(current.clone());
        }
        let mut first_error = None;
        for address in &self.addresses {
            match connect(address, &self.software).await {
                Ok(connection) => return Ok(current.insert((address.clone(), connection)).clone()),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(match first_error {
            Some(error) => LinkError::Connect(Box::new(error)),
            None => LinkError::NoRegion,
        })
    }

    async fn answer<T>(
        &self,
        address: Address,
        within: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, LinkError> {
        let error = match timeout(within, call).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => LinkError::Refused { address, status: Box::new(status) },
            Err(_) => LinkError::Timeout { address, after: within },
        };
        let version = matches!(&error, LinkError::Refused { status, .. } if is_version_refusal(status));
        if version || matches!(error.code(), None | Some(Code::Unavailable | Code::Unknown)) {
            // Another address may do better, and a process of another release may have to be greeted anew.
            *self.current.lock().await = None;
        }
        Err(error)
    }
}

/// How the registry names one instance.
pub(super) fn instance_ref(service: &ServiceName, instance: &InstanceId) -> v1::InstanceRef {
    v1::InstanceRef { service: service.to_string(), instance: instance.to_string(), incarnation: 0 }
}

/// A number greater than those of the processes before: the microseconds since 1970. Where the clock was set back
/// meanwhile, the registry still takes this process in once its predecessor has left or is lost.
#[allow(clippy::disallowed_methods, reason = "only the wall clock goes on from one process to the next")]
fn incarnation() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
}
