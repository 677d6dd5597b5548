//! Passes calls to the registry on to the control plane, so that programs need to know one socket only.

use std::error::Error;

use fairmesh_rib::upstream::Handle;
use fairmesh_wire::{
    handshake::{VersionedChannel, is_version_refusal},
    identity_of, pass_on_for,
    v1::{self, registry_client::RegistryClient, registry_server::Registry},
};
use tonic::{Code, Request, Response, Status};

/// The metadata that carries a call's deadline.
const TIMEOUT: &str = "grpc-timeout";

/// The registry as the control plane behind `upstream` answers it.
#[derive(Clone, Debug)]
pub(crate) struct Forward {
    upstream: Handle,
}

impl Forward {
    pub(crate) fn new(upstream: Handle) -> Self {
        Self { upstream }
    }

    fn registry(&self) -> Result<RegistryClient<VersionedChannel>, Status> {
        match self.upstream.connection() {
            Some(connection) => Ok(connection.registry()),
            None => Err(self.away()),
        }
    }

    fn away(&self) -> Status {
        let state = self.upstream.state();
        let reason = state.borrow().error.clone().unwrap_or_else(|| "it was not reached yet".into());
        Status::unavailable(format!(
            "no control plane answers this agent: {reason}; call again when one does"
        ))
    }

    /// A broken connection is told as what it means to the caller; every other answer is passed on as it is.
    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        match answer {
            Ok(answer) => Ok(Response::new(answer.into_inner())),
            Err(status) if broke(&status) => Err(self.away()),
            // It is this agent whose version is refused; the program's was agreed on with the agent.
            Err(status) if is_version_refusal(&status) => Err(Status::unavailable(status.message())),
            Err(status) => {
                Err(Status::with_details(status.code(), status.message(), status.details().to_vec().into()))
            }
        }
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
    pass_on_for(&mut passed, &identity);
    if let Some(deadline) = deadline {
        passed.metadata_mut().insert(TIMEOUT, deadline);
    }
    passed
}

macro_rules! forward {
    ($($method:ident: $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Registry for Forward {
            $(async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                let mut registry = self.registry()?;
                self.answer(registry.$method(passed_on(request)).await)
            })*
        }
    };
}

forward! {
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
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Identity;
    use fairmesh_wire::on_behalf_of;

    use super::*;

    #[test]
    fn a_call_is_passed_on_for_who_made_it_whatever_it_claims() {
        let mut request = Request::new(());
        pass_on_for(&mut request, &Identity::Local { uid: 0 });
        request.extensions_mut().insert(Identity::Local { uid: 7 });
        let passed = passed_on(request);
        assert_eq!(on_behalf_of(&passed), "local uid 7");
    }
}
