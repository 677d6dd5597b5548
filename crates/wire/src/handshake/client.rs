use std::{error::Error, time::Duration};

use fairmesh_model::Invalid;
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::{Hello, PROTOCOL, SOFTWARE_KEY, VERSION_KEY, is_version_refusal};
use crate::{
    rpc,
    transport::{Address, connect_channel, connect_channel_lazy},
    v1::{
        HelloRequest, HelloResponse, admin_client::AdminClient, checker_client::CheckerClient,
        imbalance_client::ImbalanceClient, quota_client::QuotaClient, registry_client::RegistryClient,
        rib_client::RibClient,
    },
    watch::Watch,
};

/// How long the answer to Hello may take, once connected.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest description of itself that a caller sends, in bytes.
const MAX_SOFTWARE: usize = 128;

/// A channel that states the agreed version, and what the caller is, on every call.
pub type VersionedChannel = InterceptedService<Channel, SendVersion>;

/// Adds the agreed version and the caller's description to a call.
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

/// Metadata holds visible ASCII only; anything else becomes `?`.
fn printable(text: &str) -> MetadataValue<Ascii> {
    plain(text).parse().unwrap_or_else(|_| MetadataValue::from_static("unknown"))
}

/// What a caller says it is, as it is passed on and shown: visible, and of bounded length.
pub(crate) fn plain(text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().map(plain).take(MAX_SOFTWARE).collect()
}

/// A connection on which both sides know what they speak. It reconnects by itself after a failure; each call then
/// fails until it has, and the version is checked again on each.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where calls go.
    pub channel: VersionedChannel,
    /// What the answerer said of itself.
    pub hello: Hello,
    address: Address,
    software: String,
}

impl Connection {
    /// A connection for calls to a process that a watch at `address` has agreed on a version with. It comes about with the
    /// first call: most readers never make one.
    ///
    /// # Errors
    /// When the address cannot be one of gRPC.
    pub fn beside(hello: Hello, address: &Address, software: &str) -> Result<Self, ConnectError> {
        let channel =
            connect_channel_lazy(address).map_err(|source| ConnectError::unreachable(address, source))?;
        Ok(Self::new(channel, hello, address, software))
    }

    fn new(channel: Channel, hello: Hello, address: &Address, software: &str) -> Self {
        let stamp = SendVersion::new(hello.version, software);
        let channel = InterceptedService::new(channel, stamp);
        Self { channel, hello, address: address.clone(), software: software.to_owned() }
    }

    /// Watches the RIB of whoever is at this address now, over a connection of its own.
    ///
    /// # Errors
    /// As [`Watch::open`].
    pub async fn watch(&self) -> Result<Watch, ConnectError> {
        Watch::open(&self.address, &self.software).await
    }

    /// The RIB of the answerer.
    pub fn rib(&self) -> RibClient<VersionedChannel> {
        rpc::rib_client(self.channel.clone())
    }

    /// The registry of the answerer.
    pub fn registry(&self) -> RegistryClient<VersionedChannel> {
        rpc::registry_client(self.channel.clone())
    }

    /// Where health checkers are elected and report; agents have none.
    pub fn checker(&self) -> CheckerClient<VersionedChannel> {
        rpc::checker_client(self.channel.clone())
    }

    /// The administration of the answerer; agents have none.
    pub fn admin(&self) -> AdminClient<VersionedChannel> {
        rpc::admin_client(self.channel.clone())
    }

    /// Where the limits of a whole mesh are divided; agents pass it on.
    pub fn quota(&self) -> QuotaClient<VersionedChannel> {
        rpc::quota_client(self.channel.clone())
    }

    /// Where usage is reported; agents pass it on.
    pub fn imbalance(&self) -> ImbalanceClient<VersionedChannel> {
        rpc::imbalance_client(self.channel.clone())
    }
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answered at the address within [`crate::transport::CONNECT_TIMEOUT`].
    #[error("cannot reach {address}; check that a Fairmesh control plane or agent listens there")]
    Unreachable {
        /// Where it was tried.
        address: Address,
        /// What the system or HTTP/2 said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Somebody accepted the connection and did not answer Hello.
    #[error("{address} {}", silence(status))]
    NoHello {
        /// Who was asked.
        address: Address,
        /// How the call ended.
        status: Box<Status>,
    },
    /// The versions of both sides do not overlap.
    #[error("{address} speaks another protocol: {reason}")]
    Version {
        /// Who was asked.
        address: Address,
        /// Which versions there are and which side to upgrade.
        reason: String,
    },
    /// The answer to Hello was not valid.
    #[error("{address} answered the handshake with nonsense; upgrade the older side")]
    Nonsense {
        /// Who was asked.
        address: Address,
        /// What was wrong with it.
        source: Invalid,
    },
}

impl ConnectError {
    pub(crate) fn unreachable(address: &Address, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreachable { address: address.clone(), source: source.into() }
    }
}

impl Hello {
    /// What was answered at `address`, if it is something that this side can go on with.
    pub(crate) fn spoken(answer: HelloResponse, address: &Address) -> Result<Self, ConnectError> {
        let at = || address.clone();
        let hello =
            Self::try_from(answer).map_err(|source| ConnectError::Nonsense { address: at(), source })?;
        if !PROTOCOL.contains(&hello.version) {
            let reason = format!("it chose version {}, and this side speaks {PROTOCOL:?}", hello.version);
            return Err(ConnectError::Version { address: at(), reason });
        }
        Ok(hello)
    }
}

/// Why there was no Hello, in words for people: a status quotes the library that made it.
fn silence(status: &Status) -> String {
    if matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) {
        let waited = HELLO_TIMEOUT.as_secs();
        return format!("did not answer within {waited} s; it may be overloaded or stopped");
    }
    let why = status.message();
    format!("did not answer the handshake ({why}); check that it is a Fairmesh control plane or agent")
}

/// Connects to a control plane or an agent and agrees on a version. `software` says what the caller is, for people,
/// such as `agent host-7`. Takes at most [`crate::transport::CONNECT_TIMEOUT`] and 2 s more for the answer.
pub async fn connect(address: &Address, software: &str) -> Result<Connection, ConnectError> {
    let at = || address.clone();
    let channel =
        connect_channel(address).await.map_err(|source| ConnectError::unreachable(address, source))?;
    let mut request = Request::new(HelloRequest {
        oldest_version: *PROTOCOL.start(),
        newest_version: *PROTOCOL.end(),
        software: software.to_owned(),
    });
    request.set_timeout(HELLO_TIMEOUT);
    let answer = RibClient::new(channel.clone()).hello(request).await.map_err(|status| {
        match is_version_refusal(&status) {
            true => ConnectError::Version { address: at(), reason: status.message().to_owned() },
            false => ConnectError::NoHello { address: at(), status: Box::new(status) },
        }
    })?;
    let hello = Hello::spoken(answer.into_inner(), address)?;
    Ok(Connection::new(channel, hello, address, software))
}
