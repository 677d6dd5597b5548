//! Passes calls on to the control plane by way of the upstream, so that programs need to know one address only.

use std::{error::Error, pin::Pin};

use fairmesh_wire::{
    handshake::{Connection, is_version_refusal},
    identity_of, set_on_behalf_of,
    v1::{
        self, checker_server::Checker, imbalance_server::Imbalance, quota_server::Quota,
        registry_server::Registry,
    },
};
use futures_util::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use crate::upstream::Handle;

/// The metadata that carries a call's deadline.
const TIMEOUT: &str = "grpc-timeout";

/// What streams that are passed on consist of.
type Passed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The registry, the election of health checkers, the imbalance indicator and the limits of a whole mesh, as the control plane behind an upstream answers
/// them.
#[derive(Clone, Debug)]
pub struct Forward {
    upstream: Handle,
    /// What this process is: `agent`.
    kind: &'static str,
    closing: CancellationToken,
}

impl Forward {
    /// Passes on to `upstream`. `kind` is what callers know this process as, such as `agent`; streams end once `closing` is
    /// cancelled.
    pub fn new(upstream: Handle, kind: &'static str, closing: CancellationToken) -> Self {
        Self { upstream, kind, closing }
    }

    fn connection(&self) -> Result<Connection, Status> {
        self.upstream.connection().ok_or_else(|| self.away())
    }

    fn away(&self) -> Status {
        let state = self.upstream.state();
        let reason = state.borrow().error.clone().unwrap_or_else(|| "it was not reached yet".into());
        Status::unavailable(format!(
            "no control plane answers this {}: {reason}; call again when one does",
            self.kind
        ))
    }

    /// A broken connection is told as what it means to the caller; every other answer is passed on as it is.
    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        match answer {
            Ok(answer) => Ok(Response::new(answer.into_inner())),
            Err(status) => Err(self.refusal(&status)),
        }
    }

    fn refusal(&self, status: &Status) -> Status {
        if broke(status) {
            return self.away();
        }
        // It is this process whose version is refused; the caller's was agreed on with this process.
        if is_version_refusal(status) {
            return Status::unavailable(status.message());
        }
        Status::with_details(status.code(), status.message(), status.details().to_vec().into())
    }
}

/// Whether a call ended for want of a connection; what the control plane itself answers has no source here.
fn broke(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown) && status.source().is_some()
}

/// The same message with the caller's deadline and identity, and without its other metadata.
fn passed_on<T>(request: Request<T>) -> Request<T> {
    let deadline = request.metadata().get(TIMEOUT).cloned();
    let identity = identity_of(&request);
    let mut passed = Request::new(request.into_inner());
    set_on_behalf_of(&mut passed, &identity);
    if let Some(deadline) = deadline {
        passed.metadata_mut().insert(TIMEOUT, deadline);
    }
    passed
}

macro_rules! forward {
    ($service:ident by $client:ident: $($method:ident: $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl $service for Forward {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                let mut client = self.connection()?.$client();
                self.answer(client.$method(passed_on(request)).await)
            })*
        }
    };
}

forward! {
    Registry by registry:
    register: RegisterRequest => RegisterResponse;
    renew: RenewRequest => RenewResponse;
    report: ReportRequest => ReportResponse;
    drain: DrainRequest => DrainResponse;
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
    propose_moves: ProposeMovesRequest => ProposeMovesResponse;
}

forward! {
    Imbalance by imbalance:
    report: ReportUsageRequest => ReportUsageResponse;
    read: ReadImbalanceRequest => ReadImbalanceResponse;
}

forward! {
    Quota by quota:
    claim: ClaimRequest => ClaimResponse;
}

#[tonic::async_trait]
impl Checker for Forward {
    type CampaignStream = Passed<v1::CampaignResponse>;

    /// Leadership lasts as long as both halves of the stream: it is lost with either connection.
    async fn campaign(
        &self,
        request: Request<v1::CampaignRequest>,
    ) -> Result<Response<Self::CampaignStream>, Status> {
        let mut client = self.connection()?.checker();
        let leadership = self.answer(client.campaign(passed_on(request)).await)?.into_inner();
        let forward = self.clone();
        let passed = leadership.map(move |message| message.map_err(|status| forward.refusal(&status)));
        let passed: Self::CampaignStream =
            Box::pin(passed.take_until(self.closing.clone().cancelled_owned()));
        Ok(Response::new(passed))
    }

    async fn judge(&self, request: Request<v1::JudgeRequest>) -> Result<Response<v1::JudgeResponse>, Status> {
        let mut client = self.connection()?.checker();
        self.answer(client.judge(passed_on(request)).await)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Identity;
    use fairmesh_wire::on_behalf_of;

    use super::*;

    #[test]
    fn a_call_is_passed_on_for_who_made_it_whatever_it_claims() {
        let mut request = Request::new(());
        set_on_behalf_of(&mut request, &Identity::Local { uid: 0 });
        request.extensions_mut().insert(Identity::Local { uid: 7 });
        let passed = passed_on(request);
        assert_eq!(on_behalf_of(&passed), "local uid 7");
    }
}
