use std::{collections::BTreeMap, fmt::Debug, io, pin::Pin, time::Duration};

use axum::http::Extensions;
use fairmesh_model::{CallCounts, InstanceId, Prefix, RecordKey, RecordKind, Region, ServiceName, Tenant};
use fairmesh_views::{HypotheticalCall, Scope, StoredRecord};
use fairmesh_wire::v1;
use serde_json::Value;

/// Data of the page besides the responses of gRPC services. Methods may take some milliseconds, and are called on
/// threads that may block.
pub trait Source: Debug + Send + Sync + 'static {
    /// Returns sums of calls over the last `window`.
    fn calls(&self, scope: &Scope, window: Duration) -> v1::ReadCallsResponse;

    /// Returns the most frequent calls that rules do not allow, over the last `window`, with the number of minutes
    /// since the last one: 0 is the present minute.
    fn denied(&self, scope: &Scope, window: Duration) -> Vec<(v1::DeniedCalls, u64)>;

    /// Returns the calls to a service for each step of the last `window`, oldest first, with the part of the step
    /// that reports cover; `None` for a gap.
    fn steps(&self, service: &ServiceName, window: Duration) -> Vec<Option<(CallCounts, Duration)>>;

    /// Returns the number of calls between regions to the services of a scope, for each step of the last `window`.
    fn region_steps(&self, scope: &Scope, window: Duration) -> RegionSteps;

    /// Returns records of services of these kinds, and the topology.
    fn records(&self, scope: &Scope, kinds: &[RecordKind]) -> Vec<StoredRecord>;

    /// Returns the records below these prefixes.
    fn read(&self, prefixes: &[Prefix]) -> Vec<StoredRecord>;

    /// Returns the current and earlier values of a record, newest first.
    fn changes(&self, key: &RecordKey) -> Vec<v1::Change>;

    /// Returns the CPU time and calls of a service's instances in the last minutes.
    fn loads(&self, service: &ServiceName) -> Vec<InstanceLoad>;

    /// Returns wasted cores of all services or of one tenant's services, like `GET /v1/imbalance`.
    ///
    /// # Errors
    /// [`Refusal`] if the breakdown is unknown or the figures cannot be read.
    fn imbalance(&self, tenant: Option<&Tenant>, by: &str, minutes: u32) -> Result<Value, Refusal>;

    /// Returns the fields of a certificate in DER; `None` if it is malformed.
    fn certificate(&self, der: &[u8]) -> Option<Certificate>;

    /// Returns the newest lines of a write log, oldest first; at most `most` lines.
    fn newest_audited(&self, log: AuditLog, most: usize) -> Audited<'_>;

    /// Returns the routing decision for a call, as printed by `fairmesh explain --json`.
    ///
    /// # Errors
    /// [`Refusal`] if there is no decision: a service is not declared, is hidden from this caller, or has a record
    /// that cannot be read.
    fn explain(&self, call: &HypotheticalCall, asker: &Extensions) -> Result<Value, Refusal>;

    /// Whether the caller of a request may view all tenants.
    fn may_view_all(&self, asker: &Extensions) -> bool;

    /// Whether the caller of a request, which was permitted, may still make it. Streams end otherwise.
    fn is_still_permitted(&self, asker: &Extensions) -> bool;
}

/// The number of calls in each step, oldest first, by the regions of callers and servers, with the part of the step
/// that reports cover; `None` for a gap.
pub type RegionSteps = BTreeMap<(Region, Region), Vec<Option<(u64, Duration)>>>;

/// Usage of an instance in the last minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceLoad {
    /// The instance.
    pub instance: InstanceId,
    /// CPU time, in microseconds.
    pub cpu_us: u64,
    /// Time that reports cover, in milliseconds.
    pub covered_ms: u64,
    /// Number of calls; 0 if they are not counted.
    pub requests: u64,
}

/// A log of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditLog {
    /// Writes of configuration, roles and identities.
    Security,
    /// Writes of endpoints and shard maps, refused calls, issued certificates, and reads of the logs.
    Activity,
}

/// Lines of a log, or why they cannot be read. The log names the caller of the task that awaits this future as the
/// reader.
pub type Audited<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<String>>> + Send + 'a>>;

/// The fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// SHA-256, in hexadecimal.
    pub digest: String,
    /// Expiry, in seconds since 1970.
    pub expires_at: u64,
}

/// Reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub hint: String,
}
