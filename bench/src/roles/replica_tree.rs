//! A control plane and its replicas, as processes.

use std::{net::Ipv4Addr, path::Path};

use fairmesh_control::{Control, ControlConfig};
use fairmesh_replica::{Replica, ReplicaConfig};
use fairmesh_store::{EtcdAddress, EtcdConfig};
use fairmesh_wire::transport::Address;

use super::{BoxError, orders, own_cpu_ns};

/// Runs a control plane until its input ends, and prints its address. Its store is a file or in etcd.
pub(super) async fn root(dir: &Path, etcd: Option<EtcdAddress>) -> Result<(), BoxError> {
    let control = Control::start(ControlConfig {
        transport: Default::default(),
        trust_domain: Default::default(),
        data_dir: dir.join("control"),
        grpc: vec![anywhere()],
        http: Some((Ipv4Addr::LOCALHOST, 0).into()),
        traces: None,
        http_names: Vec::new(),
        http_certificate: None,
        sources: Vec::new(),
        proxies: Vec::new(),
        shadow_controllers: Vec::new(),
        gateway_launcher: None,
        oidc: None,
        etcd: etcd.map(|address| EtcdConfig { address, tls: None, login: None }),
    });
    let control = control.await?;
    for address in control.grpc_addresses()? {
        println!("{address}");
    }
    tokio::select! {
        ended = control.run(std::future::pending()) => Ok(ended?),
        () = tell_cpu() => Ok(()),
    }
}

/// Runs a replica until its input ends, and prints its address.
pub(super) async fn replica(dir: &Path, upstream: Address, name: String) -> Result<(), BoxError> {
    let replica = Replica::start(ReplicaConfig {
        transport: Default::default(),
        upstreams: vec![upstream],
        listen: vec![anywhere()],
        state_dir: dir.join(&name),
        name,
        region: None,
        advertise: Vec::new(),
        metrics: None,
    });
    let replica = replica.await?;
    for address in replica.addresses()? {
        println!("{address}");
    }
    tokio::select! {
        ended = replica.run(std::future::pending()) => Ok(ended?),
        () = tell_cpu() => Ok(()),
    }
}

fn anywhere() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

/// Responds to `cpu` until the input ends.
async fn tell_cpu() {
    let mut orders = orders();
    while let Ok(Some(_)) = orders.next_line().await {
        println!("{}", own_cpu_ns());
    }
}
