//! What the requests of gRPC name, and so need.

use fairmesh_model::{InstanceId, Invalid, MAX_INCOMPLETE_SERVICES, RecordKey, Region, ServiceName};
use fairmesh_wire::v1;
use prost::Message;
use tonic::Status;

use super::needs::Need;

type Needs = Result<Vec<Need>, Status>;

/// Most instances of one request are of one call that the handler bounds as well; a request beyond is refused before.
const MAX_NAMED: usize = 20_000;

fn decode<M: Message + Default>(message: &[u8]) -> Result<M, Status> {
    M::decode(message)
        .map_err(|error| Status::invalid_argument(format!("the request cannot be read: {error}")))
}

fn invalid(error: Invalid) -> Status {
    Status::invalid_argument(error.to_string())
}

fn service(text: &str) -> Result<ServiceName, Status> {
    ServiceName::new(text).map_err(|error| invalid(error.within("service")))
}

fn region(text: &str) -> Result<Region, Status> {
    Region::new(text).map_err(|error| invalid(error.within("region")))
}

fn instances<'a>(named: impl ExactSizeIterator<Item = (&'a str, &'a str)>) -> Needs {
    if named.len() > MAX_NAMED {
        return Err(Status::invalid_argument(format!(
            "names {} instances; send fewer in one call",
            named.len()
        )));
    }
    named
        .map(|(name, instance)| {
            let instance = InstanceId::new(instance).map_err(|error| invalid(error.within("instance")))?;
            Ok(Need::Serve(service(name)?, instance))
        })
        .collect()
}

fn refs(instances_named: &[v1::InstanceRef]) -> Needs {
    instances(instances_named.iter().map(|one| (one.service.as_str(), one.instance.as_str())))
}

fn one_ref(instance: Option<v1::InstanceRef>) -> Needs {
    refs(&instance.into_iter().collect::<Vec<_>>())
}

fn ops(ops: &[v1::Op]) -> Needs {
    let key = |op: &v1::Op| RecordKey::parse(&op.key).map(Need::Write).map_err(invalid);
    ops.iter().map(key).collect()
}

pub(super) fn write(message: &[u8]) -> Needs {
    ops(&decode::<v1::WriteRequest>(message)?.ops)
}

pub(super) fn apply(message: &[u8]) -> Needs {
    ops(&decode::<v1::ApplyRequest>(message)?.ops)
}

/// The record of a kind with history.
fn recorded(kind: &str, name: &str) -> Result<RecordKey, Status> {
    RecordKey::with_history(kind, name).map_err(invalid)
}

pub(super) fn get_history(message: &[u8]) -> Needs {
    let v1::GetHistoryRequest { kind, service } = decode(message)?;
    let key = recorded(&kind, &service)?;
    Ok(vec![key.service().map_or(Need::ViewAll, |service| Need::ViewHistory(service.clone()))])
}

pub(super) fn rollback(message: &[u8]) -> Needs {
    let v1::RollbackRequest { kind, service, .. } = decode(message)?;
    Ok(vec![Need::Write(recorded(&kind, &service)?)])
}

pub(super) fn administration(_: &[u8]) -> Needs {
    Ok(vec![Need::Admin])
}

pub(super) fn view_all(_: &[u8]) -> Needs {
    Ok(vec![Need::ViewAll])
}

pub(super) fn campaign(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::CampaignRequest>(message)?.region)?)])
}

pub(super) fn judge(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::JudgeRequest>(message)?.region)?)])
}

pub(super) fn report_distances(message: &[u8]) -> Needs {
    Ok(vec![Need::Check(region(&decode::<v1::ReportDistancesRequest>(message)?.region)?)])
}

pub(super) fn report_usage(message: &[u8]) -> Needs {
    let v1::ReportUsageRequest { usages, traffic } = decode(message)?;
    let mut needs = instances(usages.iter().map(|one| (one.service.as_str(), one.instance.as_str())))?;
    if let Some(report) = traffic {
        for name in &report.regions {
            needs.push(Need::ReportFor(region(name)?));
        }
        for calls in &report.calls {
            needs.push(Need::CallFrom(service(&calls.service)?));
            needs.push(Need::ReportFor(region(&calls.from)?));
            if !calls.caller.is_empty() {
                needs.push(Need::ServeAny(service(&calls.caller)?));
            }
        }
        // Nothing is planned for these, so it is for those who may say what is called.
        for name in &report.incomplete {
            needs.push(Need::CallFrom(service(name)?));
        }
        // With as many names any service may be one.
        if report.incomplete.len() >= MAX_INCOMPLETE_SERVICES {
            needs.push(Need::CallFromAny);
        }
        for servers in &report.servers {
            needs.push(Need::ServeAny(service(&servers.service)?));
            needs.push(Need::ReportFor(region(&servers.region)?));
        }
    }
    Ok(needs)
}

/// One service, or all.
fn viewed(name: &str) -> Needs {
    Ok(vec![if name.is_empty() { Need::ViewAll } else { Need::View(service(name)?) }])
}

pub(super) fn read_imbalance(message: &[u8]) -> Needs {
    viewed(&decode::<v1::ReadImbalanceRequest>(message)?.service)
}

pub(super) fn traffic_status(message: &[u8]) -> Needs {
    viewed(&decode::<v1::TrafficStatusRequest>(message)?.service)
}

pub(super) fn traffic_calls(message: &[u8]) -> Needs {
    viewed(&decode::<v1::TrafficCallsRequest>(message)?.service)
}

pub(super) fn claim(message: &[u8]) -> Needs {
    let demands = decode::<v1::ClaimRequest>(message)?.demands;
    demands.iter().map(|demand| service(&demand.service).map(Need::Claim)).collect()
}

pub(super) fn register(message: &[u8]) -> Needs {
    let registrations = decode::<v1::RegisterRequest>(message)?.registrations;
    let mut named = Vec::with_capacity(registrations.len());
    for one in &registrations {
        let endpoint = one
            .endpoint
            .as_ref()
            .ok_or_else(|| invalid(Invalid::new("registrations.endpoint", "is missing", "send it")))?;
        named.push((one.service.as_str(), endpoint.instance.as_str()));
    }
    instances(named.into_iter())
}

pub(super) fn renew(message: &[u8]) -> Needs {
    refs(&decode::<v1::RenewRequest>(message)?.instances)
}

pub(super) fn report(message: &[u8]) -> Needs {
    let reports = decode::<v1::ReportRequest>(message)?.reports;
    refs(&reports.into_iter().filter_map(|one| one.instance).collect::<Vec<_>>())
}

pub(super) fn drain(message: &[u8]) -> Needs {
    refs(&decode::<v1::DrainRequest>(message)?.instances)
}

pub(super) fn deregister(message: &[u8]) -> Needs {
    refs(&decode::<v1::DeregisterRequest>(message)?.instances)
}

pub(super) fn report_shards(message: &[u8]) -> Needs {
    one_ref(decode::<v1::ReportShardsRequest>(message)?.instance)
}

pub(super) fn report_shard_load(message: &[u8]) -> Needs {
    one_ref(decode::<v1::ReportShardLoadRequest>(message)?.instance)
}

macro_rules! of_service {
    ($($name:ident: $request:ident => $need:ident;)*) => {$(
        pub(super) fn $name(message: &[u8]) -> Needs {
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
