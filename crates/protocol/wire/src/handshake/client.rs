use std::{error::Error, time::Duration};

use fairmesh_model::Invalid;
use tokio::time::timeout;
use tonic::{
    Code, Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
};

use super::{Hello, PROTOCOL, SOFTWARE_KEY, VERSION_KEY, is_version_refusal};
use crate::{
    grpc_stubs,
    transport::{
        Address, Channel, HANDSHAKE_FAILED, LacksCertificate, PlaintextPeer, Transport, connect_channel,
        connect_channel_lazy,
    },
    v1::{
        self, HelloRequest, HelloResponse, admin_client::AdminClient, authority_client::AuthorityClient,
        checker_client::CheckerClient, identity_client::IdentityClient, imbalance_client::ImbalanceClient,
        quota_client::QuotaClient, registry_client::RegistryClient, rib_client::RibClient,
        signals_client::SignalsClient, traffic_planner_client::TrafficPlannerClient,
        workload_client::WorkloadClient,
    },
    watch::Watch,
};

/// Timeout of Hello, once the connection is established.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum length of the description that a client sends, in bytes.
const MAX_SOFTWARE: usize = 128;

/// A channel that sends the negotiated version and the client's description with every call.
pub type VersionedChannel = InterceptedService<Channel, SendVersion>;

/// Adds the negotiated version and the client's description to a call.
#[derive(Clone, Debug)]
pub struct SendVersion {
    version: MetadataValue<Ascii>,
    software: MetadataValue<Ascii>,
}

impl SendVersion {
    fn new(version: u32, software: &str) -> Self {
        Self { version: version.into(), software: printable(software) }
    }
}

impl Interceptor for SendVersion {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(VERSION_KEY, self.version.clone());
        request.metadata_mut().insert(SOFTWARE_KEY, self.software.clone());
        Ok(request)
    }
}

/// Converts text to a metadata value. Metadata values are visible ASCII; other characters become `?`.
fn printable(text: &str) -> MetadataValue<Ascii> {
    sanitize(text).parse().unwrap_or_else(|_| MetadataValue::from_static("unknown"))
}

/// Converts a client's description to the form that is passed on and displayed: visible ASCII of bounded length.
pub(crate) fn sanitize(text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().map(plain).take(MAX_SOFTWARE).collect()
}

/// A connection with a negotiated version. It reconnects by itself after a failure, and calls fail in the meantime.
/// Each call carries the version.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The channel for calls.
    pub channel: VersionedChannel,
    /// The server's response to the handshake.
    pub hello: Hello,
    transport: Transport,
    address: Address,
    software: String,
}

impl Connection {
    /// A connection for calls to the process at `address`. A watch has already negotiated the version. The connection
    /// is established with the first call, since most watchers never make a call.
    pub fn lazy(hello: Hello, transport: &Transport, address: &Address, software: &str) -> Self {
        let channel = connect_channel_lazy(transport, address);
        Self::stamped(channel, hello, (transport, address), software)
    }

    fn stamped(
        channel: Channel,
        hello: Hello,
        (transport, address): (&Transport, &Address),
        software: &str,
    ) -> Self {
        let stamp = SendVersion::new(hello.version, software);
        Self {
            channel: InterceptedService::new(channel, stamp),
            hello,
            transport: transport.clone(),
            address: address.clone(),
            software: software.to_owned(),
        }
    }

    /// The transport by which this process opens connections.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The address of the process.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Opens a watch of the RIB of the process at this address, on a separate connection.
    ///
    /// # Errors
    /// As for [`Watch::open`].
    pub async fn watch(&self) -> Result<Watch, ConnectError> {
        Watch::open(&self.transport, &self.address, &self.software).await
    }

    /// Client of the server's RIB.
    pub fn rib(&self) -> RibClient<VersionedChannel> {
        grpc_stubs::rib_client(self.channel.clone())
    }

    /// Client of the server's registry.
    pub fn registry(&self) -> RegistryClient<VersionedChannel> {
        grpc_stubs::registry_client(self.channel.clone())
    }

    /// Client for the election and reports of health checkers; agents do not serve it.
    pub fn checker(&self) -> CheckerClient<VersionedChannel> {
        grpc_stubs::checker_client(self.channel.clone())
    }

    /// Client of the administration service; agents do not serve it.
    pub fn admin(&self) -> AdminClient<VersionedChannel> {
        grpc_stubs::admin_client(self.channel.clone())
    }

    /// Client for shares of mesh-wide limits; agents forward its calls.
    pub fn quota(&self) -> QuotaClient<VersionedChannel> {
        grpc_stubs::quota_client(self.channel.clone())
    }

    /// Client for certificates. Replicas forward its calls; agents do not serve it.
    pub fn identity(&self) -> IdentityClient<VersionedChannel> {
        grpc_stubs::identity_client(self.channel.clone())
    }

    /// Client for operating the certificate authority; only control planes serve it.
    pub fn authority(&self) -> AuthorityClient<VersionedChannel> {
        grpc_stubs::authority_client(self.channel.clone())
    }

    /// Client for certificates of local programs; only agents serve it.
    pub fn workload(&self) -> WorkloadClient<VersionedChannel> {
        grpc_stubs::workload_client(self.channel.clone())
    }

    /// Client for reports of usage, calls and load; agents and replicas also accept them. [`Self::report_signals`]
    /// also works with processes of the previous release.
    pub fn signals(&self) -> SignalsClient<VersionedChannel> {
        grpc_stubs::signals_client(self.channel.clone())
    }

    /// Reports rows, and returns the response of the process. Falls back to `Imbalance.Report` for a process of the
    /// previous release; the fallback is to be removed with that method.
    ///
    /// # Errors
    /// If the process refuses the report or does not respond.
    pub async fn report_signals(
        &self,
        report: v1::ReportSignalsRequest,
    ) -> Result<v1::ReportSignalsResponse, Status> {
        match self.signals().report(report.clone()).await {
            Err(status) if status.code() == Code::Unimplemented => {
                let response = self.imbalance().report(v1::ReportUsageRequest::from(report)).await?;
                Ok(response.into_inner().into())
            }
            response => response.map(Response::into_inner),
        }
    }

    /// Client for reports of waste by imbalance; replicas forward its calls.
    pub fn imbalance(&self) -> ImbalanceClient<VersionedChannel> {
        grpc_stubs::imbalance_client(self.channel.clone())
    }

    /// Client for the planner of region tables; agents and replicas do not serve it.
    pub fn traffic_planner(&self) -> TrafficPlannerClient<VersionedChannel> {
        grpc_stubs::traffic_planner_client(self.channel.clone())
    }
}

/// Reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No connection to the address was established within [`crate::transport::CONNECT_TIMEOUT`].
    #[error("cannot reach {address}; {}", what_to_check(&**source))]
    Unreachable {
        /// The address.
        address: Address,
        /// The system error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server accepted the connection but did not respond to Hello.
    #[error("{address} {}", describe_no_hello(address, status))]
    NoHello {
        /// The address.
        address: Address,
        /// The status of the call.
        status: Box<Status>,
    },
    /// The user token was refused, or not sent.
    #[error("{reason}")]
    Token {
        /// The address.
        address: Address,
        /// What is wrong with the token or with the connection.
        reason: String,
    },
    /// The two sides have no common version.
    #[error("{address} speaks another protocol: {reason}")]
    Version {
        /// The address.
        address: Address,
        /// The versions of both sides, and the side to upgrade.
        reason: String,
    },
    /// The response to Hello was not valid.
    #[error("{address} sent an invalid handshake response; upgrade the older side")]
    InvalidHello {
        /// The address.
        address: Address,
        /// What is wrong with the response.
        source: Invalid,
    },
}

impl ConnectError {
    /// Whether the host name could not be resolved.
    pub fn is_unknown_host(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if is_failed_lookup(&**source))
    }

    /// Whether the server speaks plaintext, and this process has the identity of a trust domain.
    pub fn is_plaintext_peer(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if source.is::<PlaintextPeer>())
    }

    /// Reason if the server closed the connection without responding to Hello, as a server that expects TLS does.
    /// `None` for other failures.
    pub fn ended_by_peer(&self) -> Option<&str> {
        match self {
            Self::NoHello { status, .. } if status.code() == Code::Unavailable => Some(status.message()),
            _ => None,
        }
    }

    /// The error with its causes.
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(one) = cause {
            // Some messages already quote their cause.
            let quoted = one.to_string();
            if !text.contains(&quoted) {
                text = format!("{text}: {quoted}");
            }
            cause = one.source();
        }
        text
    }

    pub(crate) fn unreachable(address: &Address, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreachable { address: address.clone(), source: source.into() }
    }
}

impl Hello {
    /// Reads the hello in a response from `address`, and checks that this side supports its version.
    pub(crate) fn from_response(response: HelloResponse, address: &Address) -> Result<Self, ConnectError> {
        let at = || address.clone();
        let hello = Self::try_from(response)
            .map_err(|source| ConnectError::InvalidHello { address: at(), source })?;
        if !PROTOCOL.contains(&hello.version) {
            let reason = format!("it chose version {}, and this side speaks {PROTOCOL:?}", hello.version);
            return Err(ConnectError::Version { address: at(), reason });
        }
        Ok(hello)
    }
}

/// Part of the standard library's error message for a failed name resolution.
const FAILED_LOOKUP: &str = "failed to lookup address information";

fn what_to_check(source: &(dyn Error + Send + Sync + 'static)) -> String {
    match source.downcast_ref::<LacksCertificate>() {
        Some(lacks) => lacks.to_string(),
        None if source.is::<PlaintextPeer>() => source.to_string(),
        None if source.to_string().starts_with(HANDSHAKE_FAILED) => source.to_string(),
        None if is_failed_lookup(source) => {
            "no host of this name is known to this machine: check the name, and its DNS".into()
        }
        None => "check that a Fairmesh control plane or agent listens there".into(),
    }
}

fn is_failed_lookup(source: &(dyn Error + Send + Sync + 'static)) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(source);
    while let Some(error) = next {
        if error.to_string().contains(FAILED_LOOKUP) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Whether a status stands for a response that is not gRPC: JSON instead of a message, or no gRPC status.
fn is_not_grpc(status: &Status) -> bool {
    ["invalid compression flag", "grpc-status header missing"]
        .iter()
        .any(|part| status.message().contains(part))
}

/// Reason why there was no hello, for display. The status itself quotes internals of libraries.
fn describe_no_hello(address: &Address, status: &Status) -> String {
    let tls = match address {
        Address::Tcp(_) => {
            " (over TCP, a mesh with a trust domain accepts only processes with a certificate, which the agent of a \
             machine gives)"
        }
        Address::Unix(_) => "",
    };
    if matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) {
        let waited = HELLO_TIMEOUT.as_secs();
        return format!(
            "was connected to, and did not respond to the handshake within {waited} s; it may be overloaded or \
             stopped{tls}"
        );
    }
    if is_not_grpc(status) {
        return "responds, but not to gRPC: it may be an HTTP port, as 7401 of a control plane; give its gRPC port (7400), or \
                its Unix socket"
            .to_owned();
    }
    let why = status.message();
    format!(
        "did not respond to the handshake ({why}); check that it is a Fairmesh control plane or agent{tls}"
    )
}

/// Connects to a control plane or an agent and negotiates a version. `software` describes the client for display,
/// such as `agent host-7`. Takes at most [`crate::transport::CONNECT_TIMEOUT`], plus 2 s for the response.
pub async fn connect(
    transport: &Transport,
    address: &Address,
    software: &str,
) -> Result<Connection, ConnectError> {
    let at = || address.clone();
    let channel = connect_channel(transport, address)
        .await
        .map_err(|source| ConnectError::unreachable(address, transport.reason(source)))?;
    let request = Request::new(HelloRequest {
        oldest_version: *PROTOCOL.start(),
        newest_version: *PROTOCOL.end(),
        software: software.to_owned(),
        ..HelloRequest::default()
    });
    let mut client = RibClient::new(channel.clone());
    let late = |_| Err(Status::deadline_exceeded("it did not respond"));
    let response = timeout(HELLO_TIMEOUT, client.hello(request)).await.unwrap_or_else(late);
    let response = response.map_err(|status| match is_version_refusal(&status) {
        true => ConnectError::Version { address: at(), reason: status.message().to_owned() },
        false => ConnectError::NoHello { address: at(), status: Box::new(status) },
    })?;
    let hello = Hello::from_response(response.into_inner(), address)?;
    Ok(Connection::stamped(channel, hello, (transport, address), software))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_after_connection_names_handshake_and_no_tcp_at_unix_socket() {
        let said = |address| {
            let status = Box::new(Status::deadline_exceeded("it did not respond"));
            ConnectError::NoHello { address, status }.to_string()
        };
        let unix = said(Address::Unix("/run/control.sock".into()));
        assert!(unix.contains("did not respond to the handshake within 2 s"), "{unix}");
        assert!(!unix.contains("TCP"), "{unix}");
        assert!(said(Address::Tcp("127.0.0.1:7400".into())).contains("over TCP"));
    }
}
