//! Forwards calls to the control plane through the upstream, so that programs need only one address.

use std::{error::Error, pin::Pin};

use fairmesh_wire::{
    ON_BEHALF_OF, RELAYED, STATEMENT,
    handshake::{Connection, is_version_refusal},
    identity_of, set_on_behalf_of,
    transport::Waits,
    v1::{
        self, checker_server::Checker, identity_server::Identity, imbalance_server::Imbalance,
        quota_server::Quota, registry_server::Registry, signals_server::Signals,
    },
};
use futures_util::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, metadata::MetadataValue};

use crate::follower::FollowerHandle;

/// Metadata key of a call's deadline.
const TIMEOUT: &str = "grpc-timeout";

/// A forwarded response stream.
type ForwardedStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Forwards the calls of several gRPC services to the control plane behind an upstream: the registry, the election of
/// health checkers, reports, the imbalance indicator and mesh-wide limits.
///
/// If the upstream does not serve `Signals/Report`, a report is not converted to `Imbalance/Report` here: the
/// original caller signed the method too, and sends the report again with the other method.
#[derive(Clone, Debug)]
pub struct Forwarder {
    upstream: FollowerHandle,
    /// Kind of this process, such as `agent`.
    kind: &'static str,
    closing: CancellationToken,
}

impl Forwarder {
    /// Creates a forwarder to `upstream`. `kind` names this process in errors, such as `agent`. Streams end once
    /// `closing` is cancelled.
    pub fn new(upstream: FollowerHandle, kind: &'static str, closing: CancellationToken) -> Self {
        Self { upstream, kind, closing }
    }

    /// Returns the upstream to which calls are forwarded.
    pub fn upstream(&self) -> &FollowerHandle {
        &self.upstream
    }

    fn connection(&self) -> Result<Connection, Status> {
        self.upstream.connection().ok_or_else(|| self.unavailable())
    }

    fn unavailable(&self) -> Status {
        let state = self.upstream.state();
        let reason = state.borrow().error.clone().unwrap_or_else(|| "it is not connected yet".into());
        Status::unavailable(format!(
            "no control plane answers this {}: {reason}; retry when one does",
            self.kind
        ))
    }

    /// Replaces a connection failure with an error that names its cause. All other responses stay unchanged.
    fn forward_response<T>(&self, response: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        match response {
            Ok(response) => Ok(Response::new(response.into_inner())),
            Err(status) => Err(self.forward_status(&status)),
        }
    }

    fn forward_status(&self, status: &Status) -> Status {
        if is_connection_failure(status) {
            return self.unavailable();
        }
        // The control plane refuses the version of this process, not that of the caller.
        if is_version_refusal(status) {
            return Status::unavailable(status.message());
        }
        Status::with_details(status.code(), status.message(), status.details().to_vec().into())
    }
}

/// Whether the connection failed. A status sent by the control plane has no source error.
fn is_connection_failure(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown) && status.source().is_some()
}

/// Returns the request with the caller's deadline and identity, and without other metadata. A signed statement of the
/// call is forwarded unchanged.
fn forwarded_request<T>(request: Request<T>) -> Request<T> {
    let statement = request.metadata().get_bin(STATEMENT).cloned();
    let stated_for = request.metadata().get(ON_BEHALF_OF).cloned().filter(|_| statement.is_some());
    let deadline = request.metadata().get(TIMEOUT).cloned();
    let identity = identity_of(&request);
    let mut forwarded = Request::new(request.into_inner());
    match statement {
        Some(statement) => {
            forwarded.metadata_mut().insert_bin(STATEMENT, statement);
            forwarded.metadata_mut().insert(RELAYED, MetadataValue::from_static("1"));
            if let Some(program) = stated_for {
                forwarded.metadata_mut().insert(ON_BEHALF_OF, program);
            }
        }
        None => set_on_behalf_of(&mut forwarded, &identity),
    }
    if let Some(deadline) = deadline {
        forwarded.metadata_mut().insert(TIMEOUT, deadline);
    }
    forwarded
}

macro_rules! forward {
    (@run $call:ident) => { $call.await };
    (@run $call:ident, $waits:ident) => { $waits.run($call).await? };
    ($service:ident by $client:ident: $($method:ident: $request:ident => $response:ident $(, $waits:ident)?;)*) => {
        #[tonic::async_trait]
        impl $service for Forwarder {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                let mut client = self.connection()?.$client();
                $(let $waits = Waits::of(&request);)?
                let call = client.$method(forwarded_request(request));
                self.forward_response(forward!(@run call $(, $waits)?))
            })*
        }
    };
}

forward! {
    Registry by registry:
    register: RegisterRequest => RegisterResponse;
    renew: RenewRequest => RenewResponse;
    report: ReportRequest => ReportResponse;
    drain: DrainRequest => DrainResponse, waits;
    deregister: DeregisterRequest => DeregisterResponse;
    get_shards: GetShardsRequest => GetShardsResponse;
    put_shards: PutShardsRequest => PutShardsResponse;
    split_shard: SplitShardRequest => PutShardsResponse;
    merge_shards: MergeShardsRequest => PutShardsResponse;
    move_shard: MoveShardRequest => MoveShardResponse;
    list_moves: ListMovesRequest => ListMovesResponse;
    report_shards: ReportShardsRequest => ReportShardsResponse;
    report_shard_load: ReportShardLoadRequest => ReportShardLoadResponse;
    read_shard_loads: ReadShardLoadsRequest => ReadShardLoadsResponse;
    read_plaintext_callers: ReadPlaintextCallersRequest => ReadPlaintextCallersResponse;
    propose_moves: ProposeMovesRequest => ProposeMovesResponse;
}

forward! {
    Signals by signals:
    report: ReportSignalsRequest => ReportSignalsResponse;
    report_gateway: ReportGatewayRequest => ReportGatewayResponse;
}

forward! {
    Imbalance by imbalance:
    report: ReportUsageRequest => ReportUsageResponse;
    read: ReadImbalanceRequest => ReadImbalanceResponse;
}

forward! {
    Identity by identity:
    join: JoinRequest => SignedMessage;
    issue: SignedMessage => SignedMessage;
}

forward! {
    Quota by quota:
    claim: ClaimRequest => ClaimResponse;
}

#[tonic::async_trait]
impl Checker for Forwarder {
    type CampaignStream = ForwardedStream<v1::CampaignResponse>;

    /// Leadership ends when the connection on either side of the stream ends.
    async fn campaign(
        &self,
        request: Request<v1::CampaignRequest>,
    ) -> Result<Response<Self::CampaignStream>, Status> {
        let mut client = self.connection()?.checker();
        let leadership =
            self.forward_response(client.campaign(forwarded_request(request)).await)?.into_inner();
        let forward = self.clone();
        let forwarded =
            leadership.map(move |message| message.map_err(|status| forward.forward_status(&status)));
        let forwarded: Self::CampaignStream =
            Box::pin(forwarded.take_until(self.closing.clone().cancelled_owned()));
        Ok(Response::new(forwarded))
    }

    async fn judge(&self, request: Request<v1::JudgeRequest>) -> Result<Response<v1::JudgeResponse>, Status> {
        let mut client = self.connection()?.checker();
        self.forward_response(client.judge(forwarded_request(request)).await)
    }

    async fn report_distances(
        &self,
        request: Request<v1::ReportDistancesRequest>,
    ) -> Result<Response<v1::ReportDistancesResponse>, Status> {
        let mut client = self.connection()?.checker();
        self.forward_response(client.report_distances(forwarded_request(request)).await)
    }

    async fn report_probes(
        &self,
        request: Request<v1::ReportProbesRequest>,
    ) -> Result<Response<v1::ReportProbesResponse>, Status> {
        let mut client = self.connection()?.checker();
        self.forward_response(client.report_probes(forwarded_request(request)).await)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Identity;
    use fairmesh_wire::on_behalf_of;
    use tonic::metadata::MetadataValue;

    use super::*;

    #[test]
    fn forwarded_call_carries_verified_caller_instead_of_metadata() {
        let mut request = Request::new(());
        set_on_behalf_of(&mut request, &Identity::Local { uid: 0 });
        request.extensions_mut().insert(Identity::Local { uid: 7 });
        let forwarded = forwarded_request(request);
        assert_eq!(on_behalf_of(&forwarded), "local uid 7");
    }

    #[test]
    fn forwarded_signed_statement_keeps_program_it_names() {
        let mut request = Request::new(());
        set_on_behalf_of(&mut request, &Identity::Local { uid: 7 });
        request.metadata_mut().insert_bin(STATEMENT, MetadataValue::from_bytes(b"signed"));
        request.extensions_mut().insert(Identity::Spiffe("spiffe://prod/fairmesh/agent/a".parse().unwrap()));
        let forwarded = forwarded_request(request);
        assert_eq!(on_behalf_of(&forwarded), "local uid 7");
        assert_eq!(forwarded.metadata().get_bin(STATEMENT).unwrap().to_bytes().unwrap(), &b"signed"[..]);
    }
}
