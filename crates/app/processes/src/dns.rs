//! `fairmesh dns`.

use std::{
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use clap::Args;
use fairmesh_console::{connect, failure::Failure, stop_signals};
use fairmesh_dns::{DnsConfig, Zone};
use fairmesh_model::{Label, MeshRole, SpiffePath};

use super::daemon_args::{AdminAddress, UpstreamArgs};
use crate::logging::Logging;

/// Arguments of `fairmesh dns`.
#[derive(Debug, Args)]
pub struct DnsArgs {
    /// Address for queries, over UDP and TCP. May be repeated.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7453", value_delimiter = ',')]
    listen: Vec<SocketAddr>,
    /// The zone: cart.shop.ZONE is the service shop/cart.
    #[arg(long, value_name = "ZONE", default_value = "mesh")]
    zone: Zone,
    /// Address for services without a virtual address: an address at which the proxy listens or captures connections.
    /// May be repeated, for IPv4 and IPv6.
    #[arg(long, value_name = "IP", default_value = "240.0.0.1", value_parser = answer, value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7454")]
    admin: AdminAddress,
    #[command(flatten)]
    upstream: UpstreamArgs,
    #[command(flatten)]
    logging: Logging,
}

/// An address to respond with. Clients connect to it, which they cannot do at 0.0.0.0 or a group of hosts.
fn answer(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("'{text}' is not an IP address"))?;
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || is_broadcast {
        return Err(format!(
            "no client can connect to {address}; write an address at which the proxy listens"
        ));
    }
    Ok(address)
}

/// Serves until SIGTERM or SIGINT.
pub async fn run(args: DnsArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let shutdown = stop_signals::shutdown()?;
    let name = Label::new("dns").map_err(|error| Failure::refused(error, "report this"))?;
    let path = SpiffePath::Mesh(MeshRole::Proxy, name);
    let transport = connect::transport_of_agent(args.upstream.agent(), Some(path), "dns").await;
    let config = DnsConfig {
        listen: args.listen,
        zone: args.zone,
        addresses: args.address,
        upstreams: args.upstream.addresses(),
        transport,
        admin: args.admin.0,
    };
    fairmesh_dns::run(config, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
