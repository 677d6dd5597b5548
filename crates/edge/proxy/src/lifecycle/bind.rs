//! Binds listening sockets.

use std::net::SocketAddr;

use fairmesh_edge::{lifecycle::socket_handover::Inherited, listen::transparent_proxying::set_transparent};
use tokio::net::TcpListener;

use crate::{
    error::ProxyError,
    listeners::listener_config::{ListenerConfig, ListenerKind},
};

/// A bound listener.
#[derive(Debug)]
pub(crate) struct BoundListener {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl BoundListener {
    pub(crate) async fn bind_all(
        listen: &[ListenerConfig],
        inherited: &mut Inherited,
    ) -> Result<Vec<Self>, ProxyError> {
        let mut all = Vec::with_capacity(listen.len());
        for ListenerConfig { address, kind, .. } in listen {
            let bound = Self::bind(*address, inherited).await?;
            if matches!(kind, ListenerKind::Captured { transparent: true, .. }) {
                let opened = set_transparent(&bound.listener);
                opened.map_err(|source| ProxyError::Transparent { address: *address, source })?;
            }
            all.push(bound);
        }
        Ok(all)
    }

    /// Takes the inherited socket of this address, or binds a new one.
    pub(crate) async fn bind(address: SocketAddr, inherited: &mut Inherited) -> Result<Self, ProxyError> {
        let bound = async {
            let listener = match inherited.take(address) {
                Some(listener) => TcpListener::from_std(listener),
                None => TcpListener::bind(address).await,
            }?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|source| ProxyError::Listen { address, source })
    }
}
