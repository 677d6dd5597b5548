//! Calls to the members of one etcd cluster.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_rib::follower::Backoff;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use super::{
    EtcdConfig, EtcdLogin,
    call_error::CallError,
    connect::Members,
    proto::{
        AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest,
        RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
        auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
        watch_request,
    },
};
use crate::{StoreError, StoreLocation};

/// Time limit for one call to one member. Etcd itself abandons a proposal after 7 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for all attempts of a call, over all members.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes: a page full of the largest values.
const MAX_RESPONSE: usize = 96 << 20;
/// Backoff between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(2) };

/// Whether a call is retried after an unknown outcome, as in etcd's own client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// Always: the call reads, or is idempotent.
    Repeatable,
    /// Only if the call was certainly not applied.
    NonRepeatable,
}

/// The members of a cluster. Calls go to one member until it fails.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) location: StoreLocation,
    members: Members,
    current: AtomicUsize,
    login: Option<EtcdLogin>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl Client {
    /// Prepares connections to the members. Each connection is opened on first use.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let location = config.address.location();
        let members = Members::new(config)?;
        // Spreads processes with the same list of members over the members.
        let current = AtomicUsize::new(random() as usize % members.len().max(1));
        Ok(Self { location, members, current, login: config.login.clone(), token: Mutex::default() })
    }

    pub(super) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, CallError> {
        let call = |channel, token| {
            kv(channel, token, range.clone(), async |mut kv, request| kv.range(request).await)
        };
        self.call_with_retry(RetryPolicy::Repeatable, call).await
    }

    pub(super) async fn txn(
        &self,
        retry_policy: RetryPolicy,
        txn: TxnRequest,
    ) -> Result<TxnResponse, CallError> {
        let call =
            |channel, token| kv(channel, token, txn.clone(), async |mut kv, request| kv.txn(request).await);
        self.call_with_retry(retry_policy, call).await
    }

    /// Grants a lease with a TTL in seconds, and returns the lease's id. If a retry grants a second lease, the unused
    /// one expires.
    pub(super) async fn grant(&self, seconds: i64) -> Result<i64, CallError> {
        let call = |channel, token| async move {
            LeaseClient::new(channel)
                .lease_grant(with_metadata(LeaseGrantRequest { ttl: seconds }, token))
                .await
        };
        Ok(self.call_with_retry(RetryPolicy::Repeatable, call).await?.id)
    }

    /// Renews a lease. Returns when the request was sent: the new TTL starts no earlier. `None` if the lease has
    /// expired.
    pub(super) async fn renew(&self, id: i64) -> Result<Option<Instant>, CallError> {
        let call = |channel, token| async move {
            let sent = Instant::now();
            let request_stream = with_metadata(tokio_stream::once(LeaseKeepAliveRequest { id }), token);
            let mut responses =
                LeaseClient::new(channel).lease_keep_alive(request_stream).await?.into_inner();
            let response = responses.message().await?;
            let response = response.ok_or_else(|| Status::unavailable("the lease was not renewed"))?;
            Ok(Response::new((response.ttl > 0).then_some(sent)))
        };
        self.call_with_retry(RetryPolicy::Repeatable, call).await
    }

    /// Revokes a lease, which deletes its keys.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), CallError> {
        let call = |channel, token| async move {
            LeaseClient::new(channel).lease_revoke(with_metadata(LeaseRevokeRequest { id }, token)).await
        };
        self.call_with_retry(RetryPolicy::Repeatable, call).await.map(drop)
    }

    /// Opens a watch with a single attempt. After a failure, the next call goes to another member.
    pub(super) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<(Streaming<WatchResponse>, MemberIndex), CallError> {
        let member = MemberIndex(self.current.load(Relaxed));
        let call = |channel, token| async move {
            let create = WatchRequest { request: Some(watch_request::Request::Create(create)) };
            // Etcd ends the watch when the request stream ends.
            let request_stream = tokio_stream::iter([create]).chain(tokio_stream::pending());
            let mut client = WatchClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
            client.watch(with_metadata(request_stream, token)).await
        };
        match self.attempt(member, call).await {
            Ok(stream) => Ok((stream, member)),
            Err(error) => {
                self.fail_over_from(member);
                Err(error)
            }
        }
    }

    /// Directs the next call to another member, unless a concurrent call has already done that.
    pub(super) fn fail_over_from(&self, MemberIndex(failed): MemberIndex) {
        let next = (failed + 1) % self.members.len();
        // If several calls fail concurrently, only the first of them switches the member.
        let _ = self.current.compare_exchange(failed, next, Relaxed, Relaxed);
    }

    /// Drops an invalid token. The next call requests a new one.
    pub(super) fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Calls one member after another until one responds or an error is final.
    async fn call_with_retry<T, F>(
        &self,
        retry_policy: RetryPolicy,
        call: impl Fn(Channel, Token) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + RETRY_TIMEOUT;
        let mut failures = 0;
        loop {
            let member = MemberIndex(self.current.load(Relaxed));
            let error = match self.attempt(member, &call).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let final_error = match error {
                CallError::Refused(_) | CallError::StoreReplaced => true,
                CallError::Unknown(_) => retry_policy == RetryPolicy::NonRepeatable,
                CallError::Unavailable(_) | CallError::InvalidToken(_) => false,
            };
            self.fail_over_from(member);
            failures += 1;
            let pause = backoff(failures);
            if final_error || Instant::now() + pause > deadline {
                return Err(error);
            }
            sleep(pause).await;
        }
    }

    async fn attempt<T, F>(
        &self,
        member: MemberIndex,
        call: impl FnOnce(Channel, Token) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = self.members.channel(member.0).await;
        let token = self.token(channel.clone()).await?;
        let response = timeout(CALL_TIMEOUT, call(channel, token)).await;
        let late = |_| CallError::Unknown(format!("no response within {} s", CALL_TIMEOUT.as_secs()));
        response.map_err(late)?.map(Response::into_inner).map_err(|status| {
            let error = CallError::from_status(status);
            if matches!(error, CallError::InvalidToken(_)) {
                self.forget_token();
            }
            error
        })
    }

    /// Returns the token that authenticates a call. Two concurrent calls without a token both log in; either token is
    /// valid.
    async fn token(&self, channel: Channel) -> Result<Token, CallError> {
        let Some(login) = &self.login else { return Ok(None) };
        let cached = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if cached.is_some() {
            return Ok(cached);
        }
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let mut client = AuthClient::new(channel);
        let authenticated = timeout(CALL_TIMEOUT, client.authenticate(with_metadata(request, None))).await;
        let token = match authenticated
            .map_err(|_| CallError::Unavailable("no response to the login".into()))?
        {
            Ok(response) => response.into_inner().token,
            Err(status) if status.code() == Code::FailedPrecondition => {
                tracing::warn!(location = %self.location, "etcd has no authentication enabled: any client may write; see 'etcdctl auth enable'");
                return Ok(None);
            }
            Err(status) => {
                return Err(match CallError::from_status(status) {
                    // The login failed, so the call itself was not sent.
                    CallError::Unknown(problem) => CallError::Unavailable(problem),
                    other => other,
                });
            }
        };
        let token =
            MetadataValue::try_from(token).map_err(|e| CallError::Unavailable(format!("its token: {e}")))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }
}

/// Index of a member in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberIndex(usize);

type Token = Option<MetadataValue<Ascii>>;

async fn kv<M, T>(
    channel: Channel,
    token: Token,
    message: M,
    call: impl AsyncFnOnce(KvClient<Channel>, Request<M>) -> Result<Response<T>, Status>,
) -> Result<Response<T>, Status> {
    call(KvClient::new(channel).max_decoding_message_size(MAX_RESPONSE), with_metadata(message, token)).await
}

fn with_metadata<M>(message: M, token: Token) -> Request<M> {
    let mut request = Request::new(message);
    // A member without a leader then refuses at once, and ends its watches.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// Returns the backoff after `failures` consecutive failures.
pub(super) fn backoff(failures: u32) -> Duration {
    BACKOFF.delay(failures, random())
}

/// Random number from the standard library's hash seeds, which suffices to spread attempts.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
