//! The key servers of a proxy's certificate.

use std::{net::SocketAddr, str::FromStr, sync::Arc};

use fairmesh_console::{connect, failure::Failure};
use fairmesh_identity::{RemoteKeyConfig, RemoteKeys};
use fairmesh_model::{Invalid, Label};
use fairmesh_wire::transport::{Address, Transport};

use super::{ServeArgs, identity};

/// A key and its server, `NAME@IP:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyServerAddress {
    key: Label,
    server: SocketAddr,
}

impl FromStr for KeyServerAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parts = text.split_once('@').and_then(|(key, server)| Some((key, server.parse().ok()?)));
        let (key, server) = parts.ok_or_else(|| {
            let hint = "write NAME@IP:PORT, such as edge@10.0.0.7:7430";
            Invalid::new("", format!("'{text}' names no key and server"), hint)
        })?;
        Ok(Self { key: Label::new(key)?, server })
    }
}

/// Connects to the key servers with the identity of the proxy, by which they authorize use of the key.
pub(super) async fn connect(args: &ServeArgs) -> Result<Option<(Transport, Arc<RemoteKeys>)>, Failure> {
    if args.tls_key_servers.is_empty() {
        return Ok(None);
    }
    let agent = args.upstream.agent();
    let transport = connect::transport_of_agent(agent, Some(identity(args)), "proxy").await;
    connect::require_identity(&transport)?;
    let deadline = args.tls_key_timeout;
    let servers = args.tls_key_servers.iter().map(|KeyServerAddress { key, server }| {
        let server = Address::Tcp(server.to_string());
        RemoteKeyConfig { name: key.clone(), server, deadline }
    });
    let keys = RemoteKeys::connect(servers.collect(), &transport);
    Ok(keys.map(|keys| (transport, keys)))
}
