use std::{fmt::Debug, io, pin::Pin, time::Duration};

use axum::http::Extensions;
use fairmesh_model::{CallCounts, InstanceId, Prefix, RecordKey, RecordKind, ServiceName, Tenant};
use fairmesh_views::{HypotheticalCall, Scope, StoredRecord};
use fairmesh_wire::v1;
use serde_json::Value;

/// What the page shows besides the responses of gRPC services. Methods may take some milliseconds, and are called on threads that may block.
pub trait Source: Debug + Send + Sync + 'static {
    /// Sums of calls over the last `window`.
    fn calls(&self, scope: &Scope, window: Duration) -> v1::ReadCallsResponse;

    /// Calls to a service by step of the last `window`, the oldest first, each with the part of the step that reports cover; `None`
    /// for a gap.
    fn steps(&self, service: &ServiceName, window: Duration) -> Vec<Option<(CallCounts, Duration)>>;

    /// Records of services of these kinds, and the topology.
    fn records(&self, scope: &Scope, kinds: &[RecordKind]) -> Vec<StoredRecord>;

    /// Records below these prefixes.
    fn read(&self, prefixes: &[Prefix]) -> Vec<StoredRecord>;

    /// The values of a record, newest first.
    fn changes(&self, key: &RecordKey) -> Vec<v1::Change>;

    /// What instances of a service used and received in the last minutes.
    fn loads(&self, service: &ServiceName) -> Vec<InstanceLoad>;

    /// Wasted cores of all services or those of a tenant, as `GET /v1/imbalance` responds.
    ///
    /// # Errors
    /// [`Refusal`] if the breakdown is unknown or the figures cannot be read.
    fn imbalance(&self, tenant: Option<&Tenant>, by: &str, minutes: u32) -> Result<Value, Refusal>;

    /// The fields of a certificate in DER; `None` if it is none.
    fn certificate(&self, der: &[u8]) -> Option<Certificate>;

    /// The newest lines of a log of writes, oldest first, at most so many.
    fn newest_audited(&self, log: AuditLog, most: usize) -> Audited<'_>;

    /// The decision about a call, as `fairmesh explain --json` prints it.
    ///
    /// # Errors
    /// [`Refusal`] if there is none: a service is not declared, not for this caller to see, or has a record that cannot be read.
    fn explain(&self, call: &HypotheticalCall, asker: &Extensions) -> Result<Value, Refusal>;
}

/// The last minutes of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceLoad {
    /// The instance.
    pub instance: InstanceId,
    /// CPU time, in microseconds.
    pub cpu_us: u64,
    /// The time that reports cover, in milliseconds.
    pub covered_ms: u64,
    /// Calls; 0 if they are not counted.
    pub requests: u64,
}

/// One of the logs of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditLog {
    /// Configuration, roles and identities.
    Security,
    /// Endpoints, shard maps, refused calls, issued certificates, and reads of the logs.
    Activity,
}

/// Lines of a log, or why it cannot be read. The caller of the task that awaits them is logged as their reader.
pub type Audited<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<String>>> + Send + 'a>>;

/// The fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// SHA-256, in hexadecimal.
    pub digest: String,
    /// Seconds since 1970.
    pub expires_at: u64,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is the matter.
    pub problem: String,
    /// What to do.
    pub hint: String,
}
