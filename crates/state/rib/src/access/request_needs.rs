//! Derives the permissions that gRPC requests require: one function per request, from the encoded message.

use fairmesh_model::{InstanceId, Invalid, RecordKey, Region, ServiceName, Tenant};
use fairmesh_wire::v1;
use prost::Message;
use tonic::Status;

use super::call_needs::Need;

/// The permissions that a request requires, or why the request cannot be read.
pub type Needs = Result<Vec<Need>, Status>;

/// Size of a message's prefix, in bytes: a compression flag and the length.
pub const FRAME: usize = 5;

/// Maximum number of instances in one request. Larger requests are refused before a handler sees them; handlers have
/// lower limits.
const MAX_NAMED: usize = 20_000;

/// Returns the single message in a request's body.
///
/// # Errors
/// When the body is anything other than one uncompressed message.
pub fn one_message(body: &[u8]) -> Result<&[u8], Status> {
    let unreadable = || Status::invalid_argument("the request is not one message without compression");
    let (frame, message) = body.split_first_chunk::<FRAME>().ok_or_else(unreadable)?;
    let length = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]);
    match frame[0] == 0 && usize::try_from(length).is_ok_and(|length| length == message.len()) {
        true => Ok(message),
        false => Err(unreadable()),
    }
}

pub(super) fn decode<M: Message + Default>(message: &[u8]) -> Result<M, Status> {
    M::decode(message)
        .map_err(|error| Status::invalid_argument(format!("the request cannot be read: {error}")))
}

fn invalid(error: Invalid) -> Status {
    Status::invalid_argument(error.to_string())
}

pub(super) fn service(text: &str) -> Result<ServiceName, Status> {
    ServiceName::new(text).map_err(|error| invalid(error.within("service")))
}

pub(super) fn region(text: &str) -> Result<Region, Status> {
    Region::new(text).map_err(|error| invalid(error.within("region")))
}

type NeedOfInstance = fn(ServiceName, InstanceId) -> Need;

fn instances<'a>(named: impl ExactSizeIterator<Item = (&'a str, &'a str)>, need: NeedOfInstance) -> Needs {
    if named.len() > MAX_NAMED {
        return Err(Status::invalid_argument(format!(
            "names {} instances; send fewer in one call",
            named.len()
        )));
    }
    named
        .map(|(name, instance)| {
            let instance = InstanceId::new(instance).map_err(|error| invalid(error.within("instance")))?;
            Ok(need(service(name)?, instance))
        })
        .collect()
}

fn refs(named: &[v1::InstanceRef], need: NeedOfInstance) -> Needs {
    instances(named.iter().map(|one| (one.service.as_str(), one.instance.as_str())), need)
}

/// Returns the permission to act for an instance, either as an operator or as the process itself.
fn serving(by_operator: bool) -> NeedOfInstance {
    if by_operator { Need::ServeAsOperator } else { Need::Serve }
}

fn one_ref(instance: Option<v1::InstanceRef>) -> Needs {
    refs(&instance.into_iter().collect::<Vec<_>>(), Need::Serve)
}

fn ops(ops: &[v1::Op]) -> Needs {
    let mut needs = Vec::with_capacity(ops.len());
    for op in ops {
        let key = RecordKey::parse(&op.key).map_err(invalid)?;
        let of_value = needs_of_value(&key, op.value.as_deref())?;
        // The write is checked first, so that a caller without permission learns nothing about the value.
        needs.push(Need::Write(key));
        needs.extend(of_value);
    }
    Ok(needs)
}

/// Returns the permissions that a record's value requires besides the permission to write the record. The author of a
/// policy must be able to read the services to which its routes send calls, but not the allowed callers or accepted
/// route sources. The author of a workload must be allowed to give the service's identity to the workload's programs.
///
/// # Errors
/// When the value cannot be decoded.
pub fn needs_of_value(key: &RecordKey, value: Option<&[u8]>) -> Result<Vec<Need>, Status> {
    match (key, value) {
        (RecordKey::Policy(_), Some(value)) => {
            let routes = decode::<v1::Policy>(value)?.routes;
            let targets = routes.iter().flat_map(|route| {
                let mirror = route.actions.as_ref().and_then(|actions| actions.mirror.as_ref());
                let mirror = mirror.map(|mirror| &mirror.service);
                route.split.iter().map(|backend| &backend.service).chain(mirror)
            });
            targets.map(|name| service(name).map(Need::View)).collect()
        }
        (RecordKey::Workload(service), Some(value)) => {
            let entry = decode::<v1::WorkloadEntry>(value)?.try_into().map_err(invalid)?;
            Ok(vec![Need::Register(service.clone(), Box::new(entry))])
        }
        _ => Ok(Vec::new()),
    }
}

/// Permissions for `Rib/Write`. A policy record contains rules, so writing one also requires permission for them.
/// Only admins may write workloads here. Others use `Admin/Apply`, which compares their workloads with those of other
/// tenants.
pub fn write(message: &[u8]) -> Needs {
    let mut needs = ops(&decode::<v1::WriteRequest>(message)?.ops)?;
    let further = |need: &Need| match need {
        Need::Write(RecordKey::Policy(service)) => {
            Some(Need::Write(RecordKey::Authorization(service.clone())))
        }
        Need::Write(RecordKey::Workload(_)) => Some(Need::Admin),
        _ => None,
    };
    let further: Vec<Need> = needs.iter().filter_map(further).collect();
    needs.extend(further);
    Ok(needs)
}

/// Permissions for `Admin/Apply`.
pub fn apply(message: &[u8]) -> Needs {
    ops(&decode::<v1::ApplyRequest>(message)?.ops)
}

/// Returns the key of a record whose kind has a history.
fn recorded(kind: &str, name: &str) -> Result<RecordKey, Status> {
    RecordKey::with_history(kind, name).map_err(invalid)
}

/// Permissions for `Admin/GetHistory`.
pub fn get_history(message: &[u8]) -> Needs {
    let v1::GetHistoryRequest { kind, service } = decode(message)?;
    let key = recorded(&kind, &service)?;
    Ok(vec![key.service().map_or(Need::ViewAll, |service| Need::ViewHistory(service.clone()))])
}

/// Permissions for `Admin/Rollback`.
pub fn rollback(message: &[u8]) -> Needs {
    let v1::RollbackRequest { kind, service, .. } = decode(message)?;
    Ok(vec![Need::Write(recorded(&kind, &service)?)])
}

/// Permissions for a method that operates the whole mesh.
pub fn administration(_: &[u8]) -> Needs {
    Ok(vec![Need::Admin])
}

/// Permissions for a method that reads records of all tenants.
pub fn view_all(_: &[u8]) -> Needs {
    Ok(vec![Need::ViewAll])
}

/// Permissions for `Checker/Campaign`.
pub fn campaign(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::CampaignRequest>(message)?.region)?)])
}

/// Permissions for `Checker/Judge`.
pub fn judge(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::JudgeRequest>(message)?.region)?)])
}

/// Permissions for `Checker/ReportDistances`.
pub fn report_distances(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::ReportDistancesRequest>(message)?.region)?)])
}

/// Permissions for `Checker/ReportProbes`.
pub fn report_probes(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::ReportProbesRequest>(message)?.region)?)])
}

/// Permissions for `Signals/Report`.
pub fn report_signals(message: &[u8]) -> Needs {
    rows(&decode(message)?)
}

/// Permissions for `Signals/ReportGateway`.
pub fn report_gateway(_: &[u8]) -> Needs {
    Ok(vec![Need::ReportGateway])
}

/// Permissions for `Imbalance/Report`: the same as for `Signals/Report` with the same report.
pub fn report_usage(message: &[u8]) -> Needs {
    rows(&decode::<v1::ReportUsageRequest>(message)?.into())
}

/// Permissions for a report, and for its rows. Rows of counts are authorized one by one by
/// [`CountedRows`](super::CountedRows) instead, and incomplete services by
/// [`limit_statements`](super::limit_statements).
fn rows(report: &v1::ReportSignalsRequest) -> Needs {
    let named = report.usages.iter().map(|one| (one.service.as_str(), one.instance.as_str()));
    let mut needs = vec![Need::Report];
    needs.extend(instances(named, Need::Serve)?);
    for name in report.sender.iter().flat_map(|sender| &sender.regions) {
        needs.push(Need::ReportFor(region(name)?));
    }
    for calls in &report.calls {
        needs.push(Need::CallFrom(service(&calls.service)?));
        needs.push(Need::ReportFor(region(&calls.from)?));
        if !calls.caller.is_empty() {
            needs.push(Need::ServeAny(service(&calls.caller)?));
        }
        if !calls.parent_service.is_empty() {
            needs.push(Need::ServeAny(service(&calls.parent_service)?));
        }
    }
    for servers in &report.servers {
        needs.push(Need::ServeAny(service(&servers.service)?));
        needs.push(Need::ReportFor(region(&servers.region)?));
    }
    for served in &report.served {
        needs.push(Need::ServeAny(service(&served.service)?));
        needs.push(Need::ReportFor(region(&served.region)?));
    }
    Ok(needs)
}

/// Permissions for `Imbalance/Read`.
pub fn read_imbalance(message: &[u8]) -> Needs {
    viewed_calls(&decode::<v1::ReadImbalanceRequest>(message)?.service, "")
}

/// Permissions for `TrafficPlanner/Status`.
pub fn traffic_status(message: &[u8]) -> Needs {
    viewed_calls(&decode::<v1::TrafficStatusRequest>(message)?.service, "")
}

/// Permissions for `TrafficPlanner/Calls`.
pub fn traffic_calls(message: &[u8]) -> Needs {
    viewed_calls(&decode::<v1::TrafficCallsRequest>(message)?.service, "")
}

/// Permissions for `Admin/ReadCalls`.
pub fn read_calls(message: &[u8]) -> Needs {
    let v1::ReadCallsRequest { service, tenant, .. } = decode(message)?;
    viewed_calls(&service, &tenant)
}

/// Permissions for `Admin/ReadTraces`.
pub fn read_traces(message: &[u8]) -> Needs {
    let v1::ReadTracesRequest { service, tenant, .. } = decode(message)?;
    viewed_calls(&service, &tenant)
}

/// Permissions to view the calls, load and plans of one service, one tenant, or the whole mesh.
fn viewed_calls(name: &str, tenant: &str) -> Needs {
    match tenant {
        // A service's callers may view the service, but not its other callers.
        _ if !name.is_empty() => Ok(vec![Need::ViewHistory(service(name)?)]),
        "" => Ok(vec![Need::ViewAll]),
        tenant => {
            let tenant = Tenant::new(tenant).map_err(|e| Status::invalid_argument(e.to_string()))?;
            Ok(vec![Need::ViewTenant(tenant)])
        }
    }
}

/// Permissions for `Admin/ReadCost`. A service's callers may view the service, but not its other callers.
pub fn read_cost(message: &[u8]) -> Needs {
    Ok(vec![Need::ViewHistory(service(&decode::<v1::ReadCostRequest>(message)?.service)?)])
}

/// Permissions for `Quota/Claim`.
pub fn claim(message: &[u8]) -> Needs {
    let demands = decode::<v1::ClaimRequest>(message)?.demands;
    demands.iter().map(|demand| service(&demand.service).map(Need::Claim)).collect()
}

/// Permissions for `Registry/Register`.
pub fn register(message: &[u8]) -> Needs {
    let registrations = decode::<v1::RegisterRequest>(message)?.registrations;
    let mut named = Vec::with_capacity(registrations.len());
    for one in &registrations {
        let endpoint = one
            .endpoint
            .as_ref()
            .ok_or_else(|| invalid(Invalid::new("registrations.endpoint", "is missing", "send it")))?;
        named.push((one.service.as_str(), endpoint.instance.as_str()));
    }
    instances(named.into_iter(), Need::Serve)
}

/// Permissions for `Registry/Renew`.
pub fn renew(message: &[u8]) -> Needs {
    refs(&decode::<v1::RenewRequest>(message)?.instances, Need::Serve)
}

/// Permissions for `Registry/Report`.
pub fn report(message: &[u8]) -> Needs {
    let v1::ReportRequest { reports, by_operator } = decode(message)?;
    let named: Vec<_> = reports.into_iter().filter_map(|one| one.instance).collect();
    refs(&named, serving(by_operator))
}

/// Permissions for `Registry/Drain`.
pub fn drain(message: &[u8]) -> Needs {
    let v1::DrainRequest { instances, by_operator, .. } = decode(message)?;
    refs(&instances, serving(by_operator))
}

/// Permissions for `Registry/Deregister`.
pub fn deregister(message: &[u8]) -> Needs {
    refs(&decode::<v1::DeregisterRequest>(message)?.instances, Need::Serve)
}

/// Permissions for `Registry/ReportShards`.
pub fn report_shards(message: &[u8]) -> Needs {
    one_ref(decode::<v1::ReportShardsRequest>(message)?.instance)
}

/// Permissions for `Registry/ReportShardLoad`.
pub fn report_shard_load(message: &[u8]) -> Needs {
    one_ref(decode::<v1::ReportShardLoadRequest>(message)?.instance)
}

macro_rules! of_service {
    ($($name:ident: $request:ident => $need:ident;)*) => {$(
        #[doc = concat!("Needs of a call with [`", stringify!($request), "`](v1::", stringify!($request), ").")]
        pub fn $name(message: &[u8]) -> Needs {
            Ok(vec![Need::$need(service(&decode::<v1::$request>(message)?.service)?)])
        }
    )*};
}

of_service! {
    get_shards: GetShardsRequest => View;
    put_shards: PutShardsRequest => Operate;
    split_shard: SplitShardRequest => Operate;
    merge_shards: MergeShardsRequest => Operate;
    move_shard: MoveShardRequest => Operate;
    list_moves: ListMovesRequest => ViewHistory;
    read_shard_loads: ReadShardLoadsRequest => ViewHistory;
    propose_moves: ProposeMovesRequest => ViewHistory;
    read_plaintext_callers: ReadPlaintextCallersRequest => ViewHistory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_check_refuses_body_that_is_not_exactly_one_message() {
        assert_eq!(one_message(&[0, 0, 0, 0, 2, 7, 8]).unwrap(), [7, 8]);
        for wrong in
            [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 1, 7, 8], &[0, 0, 0, 0, 2, 7]]
        {
            assert!(one_message(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn traffic_report_requires_permission_for_each_row() {
        let calls = v1::CallRates {
            service: "shop/cart".into(),
            from: "eu".into(),
            parent_service: "shop/web".into(),
            ..Default::default()
        };
        let served =
            v1::ServedRates { service: "shop/api".into(), region: "us".into(), ..Default::default() };
        let report =
            v1::ReportSignalsRequest { calls: vec![calls], served: vec![served], ..Default::default() };
        let name = |name: &str| ServiceName::new(name).unwrap();
        let region = |name: &str| Need::ReportFor(Region::new(name).unwrap());
        let expected = [
            Need::Report,
            Need::CallFrom(name("shop/cart")),
            region("eu"),
            Need::ServeAny(name("shop/web")),
            Need::ServeAny(name("shop/api")),
            region("us"),
        ];
        assert_eq!(report_signals(&report.encode_to_vec()).unwrap(), expected);
    }

    #[test]
    fn drain_by_operator_requires_more_rights_than_drain_by_process() {
        let drain = |by_operator| {
            let one = v1::InstanceRef { service: "shop/cart".into(), instance: "a".into(), incarnation: 0 };
            let request = v1::DrainRequest { instances: vec![one], deadline_ms: 1, by_operator };
            drain(&request.encode_to_vec()).unwrap()
        };
        let (name, one) = (ServiceName::new("shop/cart").unwrap(), InstanceId::new("a").unwrap());
        assert_eq!(drain(false), [Need::Serve(name.clone(), one.clone())]);
        assert_eq!(drain(true), [Need::ServeAsOperator(name, one)]);
    }
}
