//! The SPIFFE Workload API, for programs unaware of Fairmesh. Each program gets the identities of the services whose records
//! select it. An unselected program of the agent's own user is an operator, as in `workload_certificates.rs`.
//!
//! By the specification the server makes the keys, so they travel over the Unix socket to the program that the kernel
//! identifies, and no further. Each stream has its own keys.

use std::{collections::HashMap, pin::Pin, sync::Arc, time::Duration};

use fairmesh_identity::{Credentials, IdentityError, PrivateKey};
use fairmesh_model::{ProgramFacts, SpiffePath, TrustBundle};
use fairmesh_wire::{
    LogLimiter, identity_of, program_of,
    spiffe::{self, spiffe_workload_api_server::SpiffeWorkloadApi},
    transport::{UserPlace, UserPlaces},
};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use super::{AgentIdentity, Shared, below, jwt_svids, workload_certificates};

/// Metadata key that each call must have, so that a program tricked into requesting a URL cannot make a call (SSRF).
const HEADER: &str = "workload.spiffe.io";
/// Approximate interval at which a program's identities are compared with the records and the time.
const RECHECK: Duration = Duration::from_secs(30);
/// Approximate pause if a certificate could not be replaced.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of open streams of one user.
const MAX_STREAMS: usize = 256;

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service `SpiffeWorkloadAPI`.
#[derive(Clone, Debug)]
pub(crate) struct SpiffeService {
    /// `None` if this agent cannot have an identity.
    identity: Option<AgentIdentity>,
    stopping: CancellationToken,
    streams: UserPlaces,
}

/// The stream of a program, with the identities that were last sent on it.
struct ProgramStream {
    shared: Arc<Shared>,
    program: ProgramFacts,
    /// Each identity with its key and certificate.
    held: Vec<(SpiffePath, Credentials)>,
    bundle: TrustBundle,
    /// Roots that the agent trusted when it last sent a response.
    own_roots: Vec<Vec<u8>>,
    installations: watch::Receiver<bool>,
    revocations: watch::Receiver<u64>,
    /// Time at which the identities are next compared with the records.
    due: Instant,
    _place: UserPlace,
}

impl SpiffeService {
    pub(crate) fn new(identity: Option<AgentIdentity>, stopping: CancellationToken) -> Self {
        Self { identity, stopping, streams: UserPlaces::new(MAX_STREAMS) }
    }

    /// Returns the calling program, if it may open a stream.
    async fn admit<T>(&self, request: &Request<T>) -> Result<(Arc<Shared>, ProgramFacts, UserPlace), Status> {
        if request.metadata().get(HEADER).is_none_or(|value| value != "true") {
            return Err(Status::invalid_argument(format!(
                "the metadata {HEADER}: true is missing, by which a client of the SPIFFE Workload API introduces itself"
            )));
        }
        let uid = workload_certificates::local_user(&identity_of(request))?;
        let program = program_of(request).cloned();
        let program = program
            .ok_or_else(|| Status::permission_denied("the kernel does not say which program this is"))?;
        let place = self.streams.enter(uid).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "the user {uid} has {MAX_STREAMS} streams of the Workload API open, the most of a user"
            ))
        })?;
        // The specification has one code for programs without an identity.
        let none = || Status::permission_denied("no identity issued: this agent knows no trust domain");
        let AgentIdentity { shared } = self.identity.as_ref().ok_or_else(none)?;
        if shared.is_member().await != Some(true) {
            return Err(none());
        }
        Ok((Arc::clone(shared), program, place))
    }

    /// Ends the stream when this agent stops.
    fn until_stopped<T: 'static>(
        &self,
        all: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> Response<Streamed<T>> {
        Response::new(Box::pin(all.take_until(self.stopping.clone().cancelled_owned())))
    }
}

#[tonic::async_trait]
impl SpiffeWorkloadApi for SpiffeService {
    type FetchX509SVIDStream = Streamed<spiffe::X509svidResponse>;
    type FetchX509BundlesStream = Streamed<spiffe::X509BundlesResponse>;
    type FetchJWTBundlesStream = Streamed<spiffe::JwtBundlesResponse>;

    async fn fetch_x509svid(
        &self,
        request: Request<spiffe::X509svidRequest>,
    ) -> Result<Response<Self::FetchX509SVIDStream>, Status> {
        let (shared, program, place) = self.admit(&request).await?;
        let program_stream = ProgramStream::begin(shared, program, place).await?;
        let first = program_stream.svids();
        let rest = stream::try_unfold(program_stream, async |mut program_stream: ProgramStream| {
            program_stream.changed().await?;
            Ok(Some((program_stream.svids(), program_stream)))
        });
        Ok(self.until_stopped(stream::iter([Ok(first)]).chain(rest)))
    }

    async fn fetch_x509_bundles(
        &self,
        request: Request<spiffe::X509BundlesRequest>,
    ) -> Result<Response<Self::FetchX509BundlesStream>, Status> {
        let (shared, _, place) = self.admit(&request).await?;
        let installations = shared.workload.installations();
        let state = (shared, installations, None, place);
        let all = stream::try_unfold(state, async |(shared, mut installations, last_sent, place)| {
            loop {
                installations.mark_unchanged();
                let bundle = shared.trusted();
                if bundle.is_some() && bundle != last_sent {
                    let response = bundle.as_ref().map(bundles).unwrap_or_default();
                    return Ok(Some((response, (shared, installations, bundle, place))));
                }
                if installations.changed().await.is_err() {
                    return Ok(None);
                }
            }
        });
        Ok(self.until_stopped(all))
    }

    async fn fetch_jwtsvid(
        &self,
        request: Request<spiffe::JwtsvidRequest>,
    ) -> Result<Response<spiffe::JwtsvidResponse>, Status> {
        let (shared, program, _place) = self.admit(&request).await?;
        let spiffe::JwtsvidRequest { audience, spiffe_id } = request.into_inner();
        shared.jwt_svids(&program, (audience, &spiffe_id)).await.map(Response::new)
    }

    async fn fetch_jwt_bundles(
        &self,
        request: Request<spiffe::JwtBundlesRequest>,
    ) -> Result<Response<Self::FetchJWTBundlesStream>, Status> {
        let (shared, _, place) = self.admit(&request).await?;
        Ok(self.until_stopped(jwt_svids::bundles(shared, place)))
    }

    async fn validate_jwtsvid(
        &self,
        request: Request<spiffe::ValidateJwtsvidRequest>,
    ) -> Result<Response<spiffe::ValidateJwtsvidResponse>, Status> {
        let (shared, _, _place) = self.admit(&request).await?;
        let spiffe::ValidateJwtsvidRequest { audience, svid } = request.into_inner();
        let spiffe_id = shared.validate_jwt(&svid, &audience).await?;
        // Clients read the claims from the token.
        Ok(Response::new(spiffe::ValidateJwtsvidResponse { spiffe_id, claims: None }))
    }
}

fn bundles(bundle: &TrustBundle) -> spiffe::X509BundlesResponse {
    let id = format!("spiffe://{}", bundle.domain);
    spiffe::X509BundlesResponse { bundles: [(id, bundle.roots.concat().into())].into(), ..Default::default() }
}

/// Returns the time of the next check. It has jitter, because the streams of a fleet begin together after an outage.
fn next_check() -> Instant {
    Instant::now() + RECHECK * 9 / 10 + below(RECHECK / 5)
}

impl ProgramStream {
    /// Determines the identities of a program at its first request.
    async fn begin(shared: Arc<Shared>, program: ProgramFacts, place: UserPlace) -> Result<Self, Status> {
        let paths = shared.identities_of(&program).await?;
        let (installations, revocations) =
            (shared.workload.installations(), shared.workload.revocation_changes());
        let bundle = shared.trusted().ok_or_else(|| Status::unavailable(shared.no_certificate()))?;
        let own_roots = bundle.roots.clone();
        let (held, due) = (Vec::new(), next_check());
        let mut program_stream =
            Self { shared, program, held, bundle, own_roots, installations, revocations, due, _place: place };
        for path in paths {
            let issued = program_stream.issue(&path).await?;
            program_stream.held.push((path, issued));
        }
        Ok(program_stream)
    }

    fn svids(&self) -> spiffe::X509svidResponse {
        let svids = self.held.iter().map(|(_, own)| own.to_svid(&self.bundle));
        spiffe::X509svidResponse { svids: svids.collect(), ..Default::default() }
    }

    /// Waits until there are changes to send.
    ///
    /// # Errors
    /// The program no longer has an identity.
    async fn changed(&mut self) -> Result<(), Status> {
        loop {
            // The senders live in the agent's identity, which this holds.
            let is_due = tokio::select! {
                () = sleep_until(self.due) => true,
                // Most revocations are of others and cost no request.
                _ = self.revocations.changed() => self.holds_revoked(),
                // Roots come with the certificate of the agent.
                _ = self.installations.changed() => false,
            };
            let mut changed = false;
            if is_due {
                self.due = next_check();
                changed = self.refresh_identities().await?;
            }
            if self.refresh_roots() || changed {
                return Ok(());
            }
        }
    }

    fn holds_revoked(&self) -> bool {
        let revocations = self.shared.workload.revocations();
        self.held.iter().any(|(_, held)| revocations.revokes(held))
    }

    /// Takes over the agent's roots if they changed.
    fn refresh_roots(&mut self) -> bool {
        let changed = self.shared.trusted().filter(|bundle| bundle.roots != self.own_roots);
        let Some(bundle) = changed else { return false };
        self.own_roots.clone_from(&bundle.roots);
        self.bundle = bundle;
        true
    }

    /// Replaces certificates that are due or revoked, and follows the records. While no control plane is reachable, present
    /// certificates stay.
    async fn refresh_identities(&mut self) -> Result<bool, Status> {
        let paths = match self.shared.identities_of(&self.program).await {
            Ok(paths) => paths,
            Err(status) if status.code() == Code::PermissionDenied => return Err(status),
            Err(status) => {
                tracing::debug!(reason = status.message(), "the identities of a program are not compared");
                self.held.iter().map(|(path, _)| path.clone()).collect()
            }
        };
        let mut before: HashMap<_, _> = self.held.drain(..).collect();
        let mut changed = false;
        for path in paths {
            let held = before.remove(&path);
            let is_current = held.as_ref().is_some_and(|held| !self.shared.is_outdated(held));
            let issued = if is_current { None } else { self.renew(&path).await };
            changed |= issued.is_some();
            // A certificate that is due but not renewed stays usable; a revoked one does not.
            let usable = held.filter(|held| !self.shared.workload.revocations().revokes(held));
            if !is_current && issued.is_none() && usable.is_none() {
                self.due = self.due.min(Instant::now() + RETRY + below(RETRY));
            }
            let held = issued.or(usable);
            self.held.extend(held.map(|held| (path, held)));
        }
        // The remaining identities were withdrawn.
        Ok(changed || !before.is_empty())
    }

    /// Returns the replacement of a certificate; `None` if it cannot be issued, for example while no control plane is
    /// reachable.
    async fn renew(&mut self, path: &SpiffePath) -> Option<Credentials> {
        let refused = |reason: &str| tracing::warn!(%path, reason, "a program's certificate is not renewed");
        match self.issue(path).await {
            // The control plane's clock is behind the clock of the revoking command.
            Ok(issued) if self.shared.workload.revocations().revokes(&issued) => {
                refused("the new one is revoked too");
                None
            }
            Ok(issued) => Some(issued),
            Err(status) => {
                refused(status.message());
                None
            }
        }
    }

    /// Issues a certificate with a new key.
    async fn issue(&mut self, path: &SpiffePath) -> Result<Credentials, Status> {
        let failed = |error: IdentityError| Status::internal(error.to_string());
        let key = PrivateKey::generate().map_err(failed)?;
        let request = key.signing_request().map_err(failed)?;
        let certified = self.shared.issue(path.clone(), request).await?;
        let now = self.shared.workload.now();
        let issued = Credentials::new(key, certified.chain, certified.bundle, now).map_err(failed)?;
        self.bundle = issued.trust().bundle().clone();
        tracing::debug!(%path, program = %self.program, "a certificate was issued over the Workload API");
        Ok(issued)
    }
}

impl Shared {
    /// The roots that this agent trusts; `None` before it has joined.
    fn trusted(&self) -> Option<TrustBundle> {
        self.workload.credentials().map(|own| own.trust().bundle().clone())
    }

    /// Whether a certificate should be replaced.
    fn is_outdated(&self, held: &Credentials) -> bool {
        held.renewal_due() <= self.workload.now() || self.workload.revocations().revokes(held)
    }

    /// Returns the identities of a program, at least one.
    pub(super) async fn identities_of(&self, program: &ProgramFacts) -> Result<Vec<SpiffePath>, Status> {
        let services = self.services_of(program).await?;
        let mut paths: Vec<_> = services.into_iter().map(SpiffePath::Service).collect();
        let ProgramFacts { uid, .. } = *program;
        if paths.is_empty() && workload_certificates::is_own_user(uid) {
            let operator = workload_certificates::requested_path("", &self.name, uid);
            paths.push(operator.map_err(|error| Status::internal(error.to_string()))?);
        }
        if paths.is_empty() {
            let kind = "kind: Workload";
            let problem = format!(
                "no identity issued: no {kind} selects this program ({program}); apply one, such as {{{kind}, service: \
                 TENANT/SERVICE, programs: [{{uid: {uid}}}]}}"
            );
            // A program may ask again and again.
            static REFUSED: LogLimiter = LogLimiter::new();
            if let Some(suppressed) = REFUSED.next() {
                tracing::warn!(problem, suppressed, "a program gets no identity over the Workload API");
            }
            return Err(Status::permission_denied(problem));
        }
        let revocations = self.workload.revocations().current();
        paths.retain(|path| !revocations.revokes_identity(path));
        match paths.is_empty() {
            true => Err(Status::permission_denied(
                "no identity issued: the identities of this program are revoked",
            )),
            false => Ok(paths),
        }
    }
}
