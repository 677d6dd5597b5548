use std::{net::IpAddr, sync::Arc};

use fairmesh_model::{CallerId, Identity, ServiceName, SpiffeId, SpiffePath};
use http::Extensions;
use tonic::transport::server::TcpConnectInfo;

/// Authenticated caller of a request, stored in its extensions: the identity of the peer, or the identity stated by a
/// trusted intermediary. Absent if callers prove no identity.
#[derive(Clone, Debug)]
pub struct Caller {
    caller: Arc<CallerId>,
    via: Option<Arc<CallerId>>,
}

impl Caller {
    /// Identity of a peer whose certificate was verified; `None` if it has none.
    #[doc(hidden)]
    pub fn of(identity: &Identity) -> Option<Self> {
        let caller = match identity {
            Identity::Spiffe(id) => CallerId::new(id.clone()),
            Identity::Federated(id) => CallerId::federated(id.clone()),
            Identity::Anonymous | Identity::Local { .. } => return None,
        };
        Some(Self { caller: Arc::new(caller), via: None })
    }

    /// The caller stated by an intermediary.
    pub(super) fn through(id: SpiffeId, intermediary: &Self) -> Self {
        Self { caller: Arc::new(CallerId::new(id)), via: Some(Arc::clone(&intermediary.caller)) }
    }

    /// The caller's identity. It belongs to another trust domain only if the policy names this caller.
    pub fn id(&self) -> &SpiffeId {
        self.caller.id()
    }

    /// The intermediary that forwarded the call, if any.
    pub fn via(&self) -> Option<&SpiffeId> {
        self.via.as_ref().map(|via| via.id())
    }

    /// The calling service, if the caller is a service of this mesh.
    pub(crate) fn service(&self) -> Option<&ServiceName> {
        match &self.id().path {
            SpiffePath::Service(service) if !self.caller.is_federated() => Some(service),
            _ => None,
        }
    }

    pub(super) fn intermediary(&self) -> Option<&CallerId> {
        self.via.as_deref()
    }

    /// The identity in the form that policies compare.
    #[doc(hidden)]
    pub fn verified(&self) -> &CallerId {
        &self.caller
    }
}

/// Connection information in tonic's form. The layer inserts both parts into requests.
#[derive(Clone, Debug)]
pub struct ConnectInfo {
    pub(crate) tcp: TcpConnectInfo,
    pub(crate) caller: Option<Caller>,
}

/// Source address of a request's connection. Call this after [`peer_of`].
pub(super) fn source_of(extensions: &Extensions) -> Option<IpAddr> {
    let tcp = extensions.get::<TcpConnectInfo>();
    tcp.and_then(|tcp| tcp.remote_addr).map(|address| address.ip().to_canonical())
}

/// Removes the peer of a request's connection from `extensions`. Also inserts the connection information that
/// handlers expect.
pub(super) fn peer_of(extensions: &mut Extensions) -> Option<Caller> {
    match extensions.remove::<ConnectInfo>() {
        Some(ConnectInfo { tcp, caller }) => {
            extensions.insert(tcp);
            caller
        }
        None => extensions.remove::<Caller>(),
    }
}
