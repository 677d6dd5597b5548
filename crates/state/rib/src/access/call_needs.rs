//! Permissions that calls require. Control planes check them against records; agents check them for programs on their
//! machine.

use fairmesh_model::{InstanceId, RecordKey, Region, ServiceName, Tenant, WorkloadEntry};

/// A permission that a call requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Send reports, even without a row.
    Report,
    /// Read the records of a service.
    View(ServiceName),
    /// Read the history of a service. A right to call the service is not enough.
    ViewHistory(ServiceName),
    /// Read the records of all services of a tenant.
    ViewTenant(Tenant),
    /// Read records that belong to all tenants.
    ViewAll,
    /// Write a record.
    Write(RecordKey),
    /// Give the identity of a service to the programs of a workload.
    Register(ServiceName, Box<WorkloadEntry>),
    /// Change the shard map of a service.
    Operate(ServiceName),
    /// Act for an instance.
    Serve(ServiceName, InstanceId),
    /// Act for an instance as an operator, who overrides the instance's own process.
    ServeAsOperator(ServiceName, InstanceId),
    /// Report about servers of a service.
    ServeAny(ServiceName),
    /// Report calls to a service, as one of its callers.
    CallFrom(ServiceName),
    /// Claim a share of a service's mesh-wide rate limit.
    Claim(ServiceName),
    /// Be the health checker of a region.
    Check(Region),
    /// Report for a region.
    ReportFor(Region),
    /// Report the load of a gateway replica.
    ReportGateway,
    /// Operate the whole mesh.
    Admin,
}
