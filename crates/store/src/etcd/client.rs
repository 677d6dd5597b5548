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

use fairmesh_rib::upstream::Backoff;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use super::{
    EtcdConfig, EtcdLogin, connect,
    failure::Failure,
    proto::{
        AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest,
        RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
        auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
        watch_request,
    },
};
use crate::{Place, StoreError};

/// How long one member may take to answer; etcd itself gives up a proposal after 7 s.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a call is tried again, over all members.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of an answer: a page of the largest values.
const MAX_ANSWER: usize = 96 << 20;
/// The pauses between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(2) };

/// When a call may be made again after one whose outcome is not known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Always: it reads, or does the same whether once or twice.
    Always,
    /// Only after it was certainly not carried out.
    Unsent,
}

/// The members of a cluster, one of which is called until it fails.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) place: Place,
    members: Vec<Channel>,
    current: AtomicUsize,
    login: Option<EtcdLogin>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

impl Client {
    /// Prepares connections; they are made when they are used.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let place = config.address.place();
        let members = connect::members(config)?;
        // Spreads those who start with the same list.
        let current = AtomicUsize::new(random() as usize % members.len().max(1));
        Ok(Self { place, members, current, login: config.login.clone(), token: Mutex::default() })
    }

    pub(super) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Failure> {
        let call =
            |channel, token| kv(channel, token, range.clone(), async |mut kv, ask| kv.range(ask).await);
        self.repeat(Again::Always, call).await
    }

    pub(super) async fn txn(&self, again: Again, txn: TxnRequest) -> Result<TxnResponse, Failure> {
        let call = |channel, token| kv(channel, token, txn.clone(), async |mut kv, ask| kv.txn(ask).await);
        self.repeat(again, call).await
    }

    /// Grants a lease for so many seconds, and answers its id. One that is granted twice runs out by itself.
    pub(super) async fn grant(&self, seconds: i64) -> Result<i64, Failure> {
        let call = |channel, token| async move {
            LeaseClient::new(channel).lease_grant(request(LeaseGrantRequest { ttl: seconds }, token)).await
        };
        Ok(self.repeat(Again::Always, call).await?.id)
    }

    /// Renews a lease, and answers since when at the latest it runs anew; `None` where it is not there any more.
    pub(super) async fn renew(&self, id: i64) -> Result<Option<Instant>, Failure> {
        let call = |channel, token| async move {
            let sent = Instant::now();
            let asked = request(tokio_stream::once(LeaseKeepAliveRequest { id }), token);
            let mut answers = LeaseClient::new(channel).lease_keep_alive(asked).await?.into_inner();
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("the lease was not renewed"))?;
            Ok(Response::new((answer.ttl > 0).then_some(sent)))
        };
        self.repeat(Again::Always, call).await
    }

    /// Ends a lease and what goes with it.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), Failure> {
        let call = |channel, token| async move {
            LeaseClient::new(channel).lease_revoke(request(LeaseRevokeRequest { id }, token)).await
        };
        self.repeat(Again::Always, call).await.map(drop)
    }

    /// Opens a watch with one attempt; after a failure the next goes to another member.
    pub(super) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<(Streaming<WatchResponse>, Member), Failure> {
        let member = Member(self.current.load(Relaxed));
        let call = |channel, token| async move {
            let create = WatchRequest { request: Some(watch_request::Request::Create(create)) };
            // Etcd ends the watch when it has heard everything.
            let asked = tokio_stream::iter([create]).chain(tokio_stream::pending());
            let mut client = WatchClient::new(channel).max_decoding_message_size(MAX_ANSWER);
            client.watch(request(asked, token)).await
        };
        match self.attempt(member, call).await {
            Ok(stream) => Ok((stream, member)),
            Err(failure) => {
                self.turn_from(member);
                Err(failure)
            }
        }
    }

    /// The next call goes to another member, unless somebody turned already.
    pub(super) fn turn_from(&self, Member(failed): Member) {
        let next = (failed + 1) % self.members.len();
        // Whoever was first has turned.
        let _ = self.current.compare_exchange(failed, next, Relaxed, Relaxed);
    }

    /// The token is not good any more: the next call asks for another.
    pub(super) fn forget_token(&self) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Calls one member after another, until there is an answer or reason to give up.
    async fn repeat<T, F>(&self, again: Again, call: impl Fn(Channel, Token) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + PATIENCE;
        let mut failures = 0;
        loop {
            let member = Member(self.current.load(Relaxed));
            let failure = match self.attempt(member, &call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let hopeless = match failure {
                Failure::Refused(_) | Failure::Replaced => true,
                Failure::Unknown(_) => again == Again::Unsent,
                Failure::Away(_) | Failure::Token(_) => false,
            };
            self.turn_from(member);
            failures += 1;
            let pause = pause(failures);
            if hopeless || Instant::now() + pause > deadline {
                return Err(failure);
            }
            sleep(pause).await;
        }
    }

    async fn attempt<T, F>(
        &self,
        member: Member,
        call: impl FnOnce(Channel, Token) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = self.members[member.0].clone();
        let token = self.token(channel.clone()).await?;
        let answer = timeout(ANSWER, call(channel, token)).await;
        let late = |_| Failure::Unknown(format!("no answer within {} s", ANSWER.as_secs()));
        answer.map_err(late)?.map(Response::into_inner).map_err(|status| {
            let failure = Failure::of(status);
            if matches!(failure, Failure::Token(_)) {
                self.forget_token();
            }
            failure
        })
    }

    /// What a call shows to say who makes it. Two calls that both find none both log in; either token is good.
    async fn token(&self, channel: Channel) -> Result<Token, Failure> {
        let Some(login) = &self.login else { return Ok(None) };
        let held = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if held.is_some() {
            return Ok(held);
        }
        let ask = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let mut client = AuthClient::new(channel);
        let asked = timeout(ANSWER, client.authenticate(request(ask, None))).await;
        let token = match asked.map_err(|_| Failure::Away("no answer to the login".into()))? {
            Ok(answer) => answer.into_inner().token,
            Err(status) if status.code() == Code::FailedPrecondition => {
                tracing::warn!(place = %self.place, "etcd knows no users yet: everybody may write; see 'etcdctl auth enable'");
                return Ok(None);
            }
            Err(status) => {
                return Err(match Failure::of(status) {
                    // Nothing of the call itself was sent.
                    Failure::Unknown(problem) => Failure::Away(problem),
                    other => other,
                });
            }
        };
        let token = MetadataValue::try_from(token).map_err(|e| Failure::Away(format!("its token: {e}")))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }
}

/// One of the members, by its place in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member(usize);

type Token = Option<MetadataValue<Ascii>>;

async fn kv<M, T>(
    channel: Channel,
    token: Token,
    message: M,
    call: impl AsyncFnOnce(KvClient<Channel>, Request<M>) -> Result<Response<T>, Status>,
) -> Result<Response<T>, Status> {
    call(KvClient::new(channel).max_decoding_message_size(MAX_ANSWER), request(message, token)).await
}

fn request<M>(message: M, token: Token) -> Request<M> {
    let mut request = Request::new(message);
    // A member that has lost the others says so at once, and ends its watches.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// How long to wait after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    BACKOFF.delay(failures, random())
}

/// The standard library's hash seeds are random enough to spread attempts.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
