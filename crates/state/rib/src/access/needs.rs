//! What a call needs of its caller: decided by control planes from the records, and by agents for the programs of their machine.

use fairmesh_model::{InstanceId, RecordKey, Region, ServiceName, WorkloadEntry};

/// What one call needs of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Reads the records of a service.
    View(ServiceName),
    /// Reads the history of a service, which callers of the service need not know.
    ViewHistory(ServiceName),
    /// Reads what belongs to all tenants.
    ViewAll,
    /// Writes a record.
    Write(RecordKey),
    /// Gives the identity of a service to the programs of a workload.
    Register(ServiceName, Box<WorkloadEntry>),
    /// Changes the shard map of a service.
    Operate(ServiceName),
    /// Acts for an instance.
    Serve(ServiceName, InstanceId),
    /// Acts for an instance as an operator, against the process that is the instance.
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
    /// Reports what happens in a region.
    ReportFor(Region),
    /// Operates the whole mesh.
    Admin,
}
