//! Listening sockets.

use std::{io, net::SocketAddr};

use socket2::SockRef;
use tokio::net::TcpListener;

use crate::{
    error::ProxyError,
    lifecycle::handover::Inherited,
    listen::listener_config::{ListenerConfig, ListenerKind},
};

/// A listener that is bound.
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

    /// One that was inherited, or else one of its own.
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

/// Lets it take connections that were meant for other machines. One that was inherited does so already, whatever its heir may do.
fn set_transparent(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    // Of IPv6 as well: the system has one flag for both.
    if socket.ip_transparent_v4()? { Ok(()) } else { socket.set_ip_transparent_v4(true) }
}
