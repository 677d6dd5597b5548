//! The peer: a single etcd process, whose watchers have one connection each.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::transport::Channel;

use crate::roles::free_port;

/// Maximum time for etcd to start.
const START: Duration = Duration::from_secs(20);
/// Nanoseconds per tick in which the kernel counts the CPU time of a process.
const TICK_NS: u64 = 10_000_000;

/// `etcdserverpb.ResponseHeader`. This and the following messages have only the fields that are used here.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

/// `etcdserverpb.WatchRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    range_end: Bytes,
}

/// `etcdserverpb.WatchResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

/// `mvccpb.Event`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

/// `mvccpb.KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
}

/// Request to watch every key below a prefix, which ends in `/`.
pub(super) fn watch(prefix: &str) -> WatchRequest {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let create = WatchCreate { key: prefix.to_owned().into(), range_end: end.into() };
    WatchRequest { create: Some(create) }
}

/// Makes a unary call to etcd.
pub(super) async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> Result<A, String>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|e| e.to_string())?;
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    let answer = client.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
    answer.map(tonic::Response::into_inner).map_err(|e| e.to_string())
}

/// A running etcd. Dropping it kills it.
pub(super) struct Etcd {
    child: Child,
    pub(super) address: String,
    pub(super) version: String,
    pub(super) channel: Channel,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // Fails only if etcd has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Etcd {
    /// Starts etcd with its data below `dir`, with additional arguments.
    pub(super) async fn start(dir: &Path, arguments: &[&str]) -> Result<Self, String> {
        let output = Command::new("etcd").arg("--version").output();
        let output = output.map_err(|e| format!("cannot run etcd ({e}); install Debian's etcd-server"))?;
        let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
        let free =
            || free_port().map(|address| address.to_string()).map_err(|e| format!("no free port: {e}"));
        let (client, peer) = (free()?, free()?);
        let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(dir)
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}"), "--log-level", "error"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot start etcd: {e}"))?;
        let endpoint = Channel::from_shared(client_url).map_err(|e| e.to_string())?;
        let channel = endpoint.connect_lazy();
        let mut etcd = Self { child, address: client, version, channel };
        let answers = async {
            while etcd.put("/ready", b"").await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(START, answers).await.map_err(|_| "etcd does not answer".to_owned())?;
        Ok(etcd)
    }

    /// Writes a key, and returns the revision of the write.
    pub(super) async fn put(&mut self, key: &str, value: &[u8]) -> Result<u64, String> {
        let request = PutRequest { key: key.to_owned().into(), value: Bytes::copy_from_slice(value) };
        let answer: PutResponse = call(&self.channel, "/etcdserverpb.KV/Put", request).await?;
        answer
            .header
            .map(|header| header.revision.unsigned_abs())
            .ok_or_else(|| "a put without revision".into())
    }

    /// CPU time of etcd so far, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        // Fields 14 and 15 (utime, stime), counted after the process name, which may contain anything but ends with the
        // last parenthesis.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        match (ticks(11), ticks(12)) {
            (Some(user), Some(system)) => Ok((user + system) * TICK_NS),
            _ => Err(format!("{path} is not as expected")),
        }
    }
}
