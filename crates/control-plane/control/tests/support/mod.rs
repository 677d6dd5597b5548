//! A control plane within this process, reached over real sockets.
#![allow(dead_code, reason = "each test uses its part")]

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use fairmesh_control::{Control, ControlConfig, ControlError};
use fairmesh_model::{Policy, Protocol, Record, RecordKey, Service, ServiceKind, ServiceName, Timeouts};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

/// Time limit of every wait. Operations normally take milliseconds.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

pub(crate) fn config(data_dir: PathBuf) -> ControlConfig {
    ControlConfig {
        transport: Default::default(),
        trust_domain: Default::default(),
        data_dir,
        etcd: None,
        oidc: None,
        grpc: vec![Address::Tcp("127.0.0.1:0".into())],
        http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        traces: None,
        http_names: Vec::new(),
        http_certificate: None,
        sources: Vec::new(),
        proxies: Vec::new(),
        shadow_controllers: Vec::new(),
        gateway_launcher: None,
    }
}

pub(crate) struct TestControl {
    pub(crate) grpc: Vec<Address>,
    pub(crate) http: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ControlError>>,
}

impl TestControl {
    pub(crate) async fn start(config: ControlConfig) -> Self {
        let control = Control::start(config).await.unwrap();
        let (grpc, http) = (control.grpc_addresses().unwrap(), control.http_address().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(control.run(async {
            let _ = stopped.await;
        }));
        Self { grpc, http, stop, ended }
    }

    /// Stops the control plane as SIGTERM does, and waits until it has ended.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        timeout(BOUND, self.ended).await.unwrap().unwrap().unwrap();
    }

    pub(crate) async fn connect(&self) -> Connection {
        self.connect_at(0).await
    }

    pub(crate) async fn connect_at(&self, address: usize) -> Connection {
        handshake::connect(&Default::default(), &self.grpc[address], "test").await.unwrap()
    }

    /// Sends a request, and returns status line and body of the response. `body` is sent as JSON unless it is
    /// empty.
    pub(crate) async fn http(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: control\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        timeout(BOUND, stream.read_to_string(&mut response)).await.unwrap().unwrap();
        let (headers, body) = response.split_once("\r\n\r\n").unwrap();
        (headers.lines().next().unwrap_or_default().to_owned(), body.to_owned())
    }
}

pub(crate) fn named(service: &str) -> ServiceName {
    service.parse().unwrap()
}

pub(crate) fn service_key(service: &str) -> String {
    RecordKey::Service(named(service)).to_string()
}

pub(crate) fn policy_key(service: &str) -> String {
    RecordKey::Policy(named(service)).to_string()
}

pub(crate) fn service(protocol: Protocol) -> Vec<u8> {
    let service = Service { kind: ServiceKind::Replicated, protocol, virtual_address: None, identity: None };
    record_encoding::encode(&Record::Service(service)).to_vec()
}

/// A policy that can be told apart from others by its timeout.
pub(crate) fn policy(seconds: u64) -> Vec<u8> {
    let timeouts = Timeouts { total: Some(Duration::from_secs(seconds)), ..Timeouts::default() };
    let policy = Policy { timeouts, ..Policy::default() };
    record_encoding::encode(&Record::Policy(policy)).to_vec()
}

pub(crate) fn put(key: impl Into<String>, value: Vec<u8>) -> v1::Op {
    v1::Op { key: key.into(), value: Some(value.into()), condition: None }
}

pub(crate) fn delete(key: impl Into<String>) -> v1::Op {
    v1::Op { key: key.into(), value: None, condition: None }
}

pub(crate) fn at_revision(mut op: v1::Op, revision: u64) -> v1::Op {
    op.condition = Some(v1::Condition { kind: Some(v1::condition::Kind::Revision(revision)) });
    op
}

/// Reads all records of the control plane.
pub(crate) async fn read_all(connection: &Connection) -> v1::ReadResponse {
    let request = v1::ReadRequest { prefixes: vec!["/".into()], at_least: None };
    connection.rib().read(request).await.unwrap().into_inner()
}

pub(crate) fn number(revision: &Option<v1::Revision>) -> u64 {
    revision.as_ref().unwrap().number
}
