//! Needs of calls: control planes check them against the records, agents check them for the programs of their machine.

use fairmesh_model::{InstanceId, RecordKey, Region, ServiceName, Tenant, WorkloadEntry};

/// A permission that a call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Reads the records of a service.
    View(ServiceName),
    /// Reads the history of a service. Callers of the service need not know it.
    ViewHistory(ServiceName),
    /// Reads the records of all services of a tenant.
    ViewTenant(Tenant),
    /// Reads records that belong to all tenants.
    ViewAll,
    /// Writes a record.
    Write(RecordKey),
    /// Gives the identity of a service to the programs of a workload.
    Register(ServiceName, Box<WorkloadEntry>),
    /// Changes the shard map of a service.
    Operate(ServiceName),
    /// Acts for an instance.
    Serve(ServiceName, InstanceId),
    /// Acts for an instance as an operator, overriding the instance's own process.
    ServeAsOperator(ServiceName, InstanceId),
    /// Reports about servers of a service.
    ServeAny(ServiceName),
    /// Reports about calls to a service.
    CallFrom(ServiceName),
    /// Reports about calls to services of all tenants.
    CallFromAny,
    /// Claims a part of a limit of a service.
    Claim(ServiceName),
    /// Is the checker of a region.
    Check(Region),
    /// Reports for a region.
    ReportFor(Region),
    /// Reports the load of a replica of a gateway.
    ReportGateway,
    /// Operates the whole mesh.
    Admin,
}
