use fairmesh_model::{Invalid, ServiceName, Tenant};
use fairmesh_wire::v1;
use tonic::Status;

use crate::{TraceView, Traces};

/// Responds to an operator's request for traces.
///
/// # Errors
/// This control plane receives no spans, the trace does not exist, or a name is malformed.
pub fn read_traces(
    traces: Option<&Traces>,
    request: &v1::ReadTracesRequest,
) -> Result<v1::ReadTracesResponse, Status> {
    let traces = traces.ok_or_else(|| {
        Status::failed_precondition("this control plane takes no spans; start it with --traces ADDRESS")
    })?;
    let invalid = |problem: Invalid| Status::invalid_argument(problem.to_string());
    let view = match (request.service.as_str(), request.tenant.as_str()) {
        ("", "") => TraceView::All,
        ("", tenant) => TraceView::Tenant(Tenant::new(tenant).map_err(invalid)?),
        (service, _) => TraceView::Service(ServiceName::new(service).map_err(invalid)?),
    };
    let malformed = || Status::invalid_argument("id: write the 32 hexadecimal digits of a trace");
    let id = match request.id.as_str() {
        "" => return Ok(traces.list(&view, request.failed)),
        id if id.len() == 32 => u128::from_str_radix(id, 16).map_err(|_| malformed())?,
        _ => return Err(malformed()),
    };
    traces.read(&view, id).ok_or_else(|| {
        Status::not_found(format!(
            "there is no trace {}; it was neither slow nor failed, is older than an hour, or was not exported to this control plane",
            request.id
        ))
    })
}
