//! Reads the needs of gRPC requests: one function for each request, from the bytes of its message.

use fairmesh_model::{InstanceId, Invalid, MAX_INCOMPLETE_SERVICES, RecordKey, Region, ServiceName, Tenant};
use fairmesh_wire::v1;
use prost::Message;
use tonic::Status;

use super::needs::Need;

/// The needs of a request, or why it cannot be read.
pub type Needs = Result<Vec<Need>, Status>;

/// Bytes before a message: a compression flag and the length.
pub const FRAME: usize = 5;

/// Maximum of instances in one request. Handlers have bounds as well; requests beyond this one are refused before.
const MAX_NAMED: usize = 20_000;

/// The single message in a request's body.
///
/// # Errors
/// When the body is anything else.
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

/// The need of acting for an instance, as an operator or as the process itself.
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
        // The write comes first, so that a caller without permission learns nothing about the value.
        needs.push(Need::Write(key));
        needs.extend(of_value);
    }
    Ok(needs)
}

/// Needs of a record's author besides writing the record. The author of a policy must know the services to which its routes
/// send calls; allowed callers and accepted route sources may be unknown. The author of a workload must be allowed to give its
/// identity to these programs.
///
/// # Errors
/// When the value cannot be read.
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

/// Needs of `Rib/Write`. Writing a policy record includes its rules. Workloads of others than admins are written
/// by `Admin/Apply`, which compares them with those of other tenants as it writes.
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

/// Needs of `Admin/Apply`.
pub fn apply(message: &[u8]) -> Needs {
    ops(&decode::<v1::ApplyRequest>(message)?.ops)
}

/// The record of a kind with history.
fn recorded(kind: &str, name: &str) -> Result<RecordKey, Status> {
    RecordKey::with_history(kind, name).map_err(invalid)
}

/// Needs of `Admin/GetHistory`.
pub fn get_history(message: &[u8]) -> Needs {
    let v1::GetHistoryRequest { kind, service } = decode(message)?;
    let key = recorded(&kind, &service)?;
    Ok(vec![key.service().map_or(Need::ViewAll, |service| Need::ViewHistory(service.clone()))])
}

/// Needs of `Admin/Rollback`.
pub fn rollback(message: &[u8]) -> Needs {
    let v1::RollbackRequest { kind, service, .. } = decode(message)?;
    Ok(vec![Need::Write(recorded(&kind, &service)?)])
}

/// Needs of a method that operates the whole mesh.
pub fn administration(_: &[u8]) -> Needs {
    Ok(vec![Need::Admin])
}

/// Needs of a method that reads records of all tenants.
pub fn view_all(_: &[u8]) -> Needs {
    Ok(vec![Need::ViewAll])
}

/// Needs of `Checker/Campaign`.
pub fn campaign(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::CampaignRequest>(message)?.region)?)])
}

/// Needs of `Checker/Judge`.
pub fn judge(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::JudgeRequest>(message)?.region)?)])
}

/// Needs of `Checker/ReportDistances`.
pub fn report_distances(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::ReportDistancesRequest>(message)?.region)?)])
}

/// Needs of `Checker/ReportProbes`.
pub fn report_probes(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::ReportProbesRequest>(message)?.region)?)])
}

/// Needs of `Signals/Report`.
pub fn report_signals(message: &[u8]) -> Needs {
    rows(&decode(message)?)
}

/// Needs of `Signals/ReportGateway`.
pub fn report_gateway(_: &[u8]) -> Needs {
    Ok(vec![Need::ReportGateway])
}

/// Needs of `Imbalance/Report`: the same as of `Signals/Report` with the same report.
pub fn report_usage(message: &[u8]) -> Needs {
    rows(&decode::<v1::ReportUsageRequest>(message)?.into())
}

/// Needs of the rows of a report. Rows of counts are judged one by one instead, by [`CountedRows`](super::CountedRows).
fn rows(report: &v1::ReportSignalsRequest) -> Needs {
    let named = report.usages.iter().map(|one| (one.service.as_str(), one.instance.as_str()));
    let mut needs = instances(named, Need::Serve)?;
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
    // These services have no rows, so naming them needs permission to report their calls.
    for name in &report.incomplete {
        needs.push(Need::CallFrom(service(name)?));
    }
    // A full list may stand for any service.
    if report.incomplete.len() >= MAX_INCOMPLETE_SERVICES {
        needs.push(Need::CallFromAny);
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

/// One service, or all.
fn viewed(name: &str) -> Needs {
    Ok(vec![if name.is_empty() { Need::ViewAll } else { Need::View(service(name)?) }])
}

/// Needs of `Imbalance/Read`.
pub fn read_imbalance(message: &[u8]) -> Needs {
    viewed(&decode::<v1::ReadImbalanceRequest>(message)?.service)
}

/// Needs of `TrafficPlanner/Status`.
pub fn traffic_status(message: &[u8]) -> Needs {
    viewed(&decode::<v1::TrafficStatusRequest>(message)?.service)
}

/// Needs of `TrafficPlanner/Calls`.
pub fn traffic_calls(message: &[u8]) -> Needs {
    viewed(&decode::<v1::TrafficCallsRequest>(message)?.service)
}

/// Needs of `Admin/ReadCalls`.
pub fn read_calls(message: &[u8]) -> Needs {
    let v1::ReadCallsRequest { service, tenant, .. } = decode(message)?;
    viewed_calls(&service, &tenant)
}

/// Needs of `Admin/ReadTraces`.
pub fn read_traces(message: &[u8]) -> Needs {
    let v1::ReadTracesRequest { service, tenant, .. } = decode(message)?;
    viewed_calls(&service, &tenant)
}

/// One service, one tenant, or all.
fn viewed_calls(name: &str, tenant: &str) -> Needs {
    match tenant {
        // Callers of a service may view it, and not who else calls it.
        _ if !name.is_empty() => Ok(vec![Need::ViewHistory(service(name)?)]),
        "" => viewed(""),
        tenant => {
            let tenant = Tenant::new(tenant).map_err(|e| Status::invalid_argument(e.to_string()))?;
            Ok(vec![Need::ViewTenant(tenant)])
        }
    }
}

/// Needs of `Admin/ReadCost`. Callers of a service may view it, and not who else calls it.
pub fn read_cost(message: &[u8]) -> Needs {
    Ok(vec![Need::ViewHistory(service(&decode::<v1::ReadCostRequest>(message)?.service)?)])
}

/// Needs of `Quota/Claim`.
pub fn claim(message: &[u8]) -> Needs {
    let demands = decode::<v1::ClaimRequest>(message)?.demands;
    demands.iter().map(|demand| service(&demand.service).map(Need::Claim)).collect()
}

/// Needs of `Registry/Register`.
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

/// Needs of `Registry/Renew`.
pub fn renew(message: &[u8]) -> Needs {
    refs(&decode::<v1::RenewRequest>(message)?.instances, Need::Serve)
}

/// Needs of `Registry/Report`.
pub fn report(message: &[u8]) -> Needs {
    let v1::ReportRequest { reports, by_operator } = decode(message)?;
    let named: Vec<_> = reports.into_iter().filter_map(|one| one.instance).collect();
    refs(&named, serving(by_operator))
}

/// Needs of `Registry/Drain`.
pub fn drain(message: &[u8]) -> Needs {
    let v1::DrainRequest { instances, by_operator, .. } = decode(message)?;
    refs(&instances, serving(by_operator))
}

/// Needs of `Registry/Deregister`.
pub fn deregister(message: &[u8]) -> Needs {
    refs(&decode::<v1::DeregisterRequest>(message)?.instances, Need::Serve)
}

/// Needs of `Registry/ReportShards`.
pub fn report_shards(message: &[u8]) -> Needs {
    one_ref(decode::<v1::ReportShardsRequest>(message)?.instance)
}

/// Needs of `Registry/ReportShardLoad`.
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
    list_moves: ListMovesRequest => View;
    read_shard_loads: ReadShardLoadsRequest => View;
    propose_moves: ProposeMovesRequest => View;
    read_plaintext_callers: ReadPlaintextCallersRequest => View;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_exactly_one_message() {
        assert_eq!(one_message(&[0, 0, 0, 0, 2, 7, 8]).unwrap(), [7, 8]);
        for wrong in
            [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 1, 7, 8], &[0, 0, 0, 0, 2, 7]]
        {
            assert!(one_message(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn report_needs_grants_for_each_row() {
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
            Need::CallFrom(name("shop/cart")),
            region("eu"),
            Need::ServeAny(name("shop/web")),
            Need::ServeAny(name("shop/api")),
            region("us"),
        ];
        assert_eq!(report_signals(&report.encode_to_vec()).unwrap(), expected);
    }

    #[test]
    fn a_drain_by_an_operator_needs_more_than_one_by_the_process() {
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
