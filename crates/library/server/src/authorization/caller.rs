use std::sync::Arc;

use fairmesh_model::{CallerId, Identity, SpiffeId};
use http::Extensions;
use tonic::transport::server::TcpConnectInfo;

/// Who makes a call, in the extensions of its request: the identity that the caller proved, or that of the caller that a trusted
/// intermediary calls for. Absent where callers prove none.
#[derive(Clone, Debug)]
pub struct Caller {
    caller: Arc<CallerId>,
    via: Option<Arc<CallerId>>,
}

impl Caller {
    /// Of a verified peer.
    pub(crate) fn of(identity: &Identity) -> Option<Self> {
        let caller = match identity {
            Identity::Spiffe(id) => CallerId::new(id.clone()),
            Identity::Federated(id) => CallerId::federated(id.clone()),
            Identity::Anonymous | Identity::Local { .. } => return None,
        };
        Some(Self { caller: Arc::new(caller), via: None })
    }

    /// Of the caller that an intermediary states.
    pub(super) fn through(id: SpiffeId, intermediary: &Self) -> Self {
        Self { caller: Arc::new(CallerId::new(id)), via: Some(Arc::clone(&intermediary.caller)) }
    }

    /// The identity. Its trust domain may be another one, where the policy names this caller of it.
    pub fn id(&self) -> &SpiffeId {
        self.caller.id()
    }

    /// The intermediary that made the call for the caller, if any.
    pub fn via(&self) -> Option<&SpiffeId> {
        self.via.as_ref().map(|via| via.id())
    }

    pub(super) fn caller(&self) -> &CallerId {
        &self.caller
    }
}

/// What tonic's server knows of a connection: the layer inserts both parts into requests.
#[derive(Clone, Debug)]
pub struct ConnectInfo {
    pub(crate) tcp: TcpConnectInfo,
    pub(crate) caller: Option<Caller>,
}

/// The peer of a request's connection. The request then has what handlers expect of the connection.
pub(super) fn peer_of(extensions: &mut Extensions) -> Option<Caller> {
    match extensions.remove::<ConnectInfo>() {
        Some(ConnectInfo { tcp, caller }) => {
            extensions.insert(tcp);
            caller
        }
        None => extensions.remove::<Caller>(),
    }
}
