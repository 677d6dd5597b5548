//! The service `Authority`: lets users of this machine operate the certificate authority.

use std::sync::Arc;

use fairmesh_identity::{IdentityError, Joining, TokenGrant};
use fairmesh_model::{Invalid, Label, MAX_ROOTS, MAX_TENANTS, Region, ServiceName, Tenant};
use fairmesh_wire::v1::{self, authority_server};
use tokio::{task::spawn_blocking, time::sleep};
use tonic::{Code, Request, Response, Status};

use crate::audit::AuditEvent;

use super::{
    CertificateIssuer, IdentityService, RETRY_INTERVAL, failed, no_domain, recorded_bundle,
    service::is_own_user,
};

/// Maximum attempts to record roots while the record changes concurrently.
const PUBLISH_ATTEMPTS: usize = 5;

#[tonic::async_trait]
impl authority_server::Authority for IdentityService {
    async fn describe_authority(
        &self,
        _: Request<v1::DescribeAuthorityRequest>,
    ) -> Result<Response<v1::DescribeAuthorityResponse>, Status> {
        self.describe().map(Response::new)
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let issuer = self.permitted(&request)?;
        let v1::CreateTokenRequest { agent, tenants, ttl_seconds, region, service } = request.into_inner();
        let invalid = |error: Invalid| Status::invalid_argument(error.to_string());
        if tenants.len() > MAX_TENANTS {
            return Err(Status::invalid_argument(format!(
                "give at most {MAX_TENANTS} tenants, or none for all"
            )));
        }
        let joining = match (agent.is_empty(), service.is_empty()) {
            (_, true) => Joining::Agent(Label::new(agent).map_err(invalid)?),
            (true, false) if tenants.is_empty() && region.is_empty() => {
                Joining::Service(ServiceName::new(&service).map_err(invalid)?)
            }
            _ => {
                return Err(Status::invalid_argument(
                    "a token is for an agent or for a service; tenants and a region are those of an agent",
                ));
            }
        };
        let joins = joining.to_string();
        let tenants: Result<Vec<Tenant>, _> = tenants.into_iter().map(Tenant::new).collect();
        let region = Some(region).filter(|region| !region.is_empty()).map(Region::new).transpose();
        let grant = TokenGrant {
            joining,
            tenants: tenants.map_err(invalid)?,
            region: region.map_err(invalid)?,
            expires_at: issuer.clock.now().as_secs().saturating_add(ttl_seconds),
        };
        let made = on_disk(move || {
            let root = issuer.authority.signing_root();
            issuer.tokens.create(grant, &root, issuer.clock.now())
        });
        let (token, expires_at) = made.await?;
        self.audit.note(AuditEvent::Token { joins }).await;
        Ok(Response::new(v1::CreateTokenResponse { token: token.reveal(), expires_at }))
    }

    async fn rotate_authority(
        &self,
        request: Request<v1::RotateAuthorityRequest>,
    ) -> Result<Response<v1::DescribeAuthorityResponse>, Status> {
        let issuer = self.permitted(&request)?;
        let v1::RotateAuthorityRequest { root: with_root, force } = request.into_inner();
        if with_root && issuer.bundle(&self.node).roots.len() >= MAX_ROOTS {
            return Err(failed(&IdentityError::TooManyRoots(MAX_ROOTS)));
        }
        let rotating = Arc::clone(&issuer);
        on_disk(move || {
            let now = rotating.clock.now();
            if with_root {
                return rotating.authority.begin_root(now);
            }
            if !force {
                rotating.authority.check_next_root(now)?;
            }
            rotating.authority.rotate_issuer(now)?;
            rotating.authority.rotate_jwt_key(now, force)
        })
        .await?;
        self.publish(&issuer).await?;
        issuer.renew_own(&self.node).map_err(|error| failed(&error))?;
        tracing::warn!(root = with_root, "the key of the certificate authority was rotated");
        self.describe().map(Response::new)
    }

    async fn retire_root(
        &self,
        request: Request<v1::RetireRootRequest>,
    ) -> Result<Response<v1::DescribeAuthorityResponse>, Status> {
        let issuer = self.permitted(&request)?;
        self.retire(&issuer, request.into_inner()).await.map(Response::new)
    }
}

impl IdentityService {
    /// Records the roots. Retries if the record changes concurrently.
    async fn publish(&self, issuer: &CertificateIssuer) -> Result<(), Status> {
        for _ in 1..PUBLISH_ATTEMPTS {
            match issuer.publish(&self.node, &*self.store).await {
                Err(status) if status.code() == Code::Aborted => sleep(RETRY_INTERVAL).await,
                published => return published,
            }
        }
        issuer.publish(&self.node, &*self.store).await
    }

    pub(super) fn permitted<T>(&self, request: &Request<T>) -> Result<Arc<CertificateIssuer>, Status> {
        if !is_own_user(request) {
            return Err(Status::permission_denied(
                "only the user of the control plane may do this, over its Unix socket: give --control unix:/path, the \
                 control.sock in its data directory",
            ));
        }
        self.issuer.clone().ok_or_else(no_domain)
    }

    pub(super) fn describe(&self) -> Result<v1::DescribeAuthorityResponse, Status> {
        let Some(issuer) = &self.issuer else {
            let bundle = recorded_bundle(&self.node).map(Into::into);
            return Ok(v1::DescribeAuthorityResponse { bundle, ..Default::default() });
        };
        let open_tokens = issuer.tokens.count(issuer.clock.now()).map_err(|error| failed(&error))?;
        Ok(v1::DescribeAuthorityResponse {
            bundle: Some(issuer.bundle(&self.node).into()),
            issuer: issuer.authority.issuer().to_vec().into(),
            root_key_present: issuer.authority.root_key_present(),
            open_tokens: open_tokens as u64,
        })
    }
}

/// Runs a blocking call that writes files.
pub(super) async fn on_disk<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, IdentityError> + Send + 'static,
) -> Result<T, Status> {
    let done = spawn_blocking(call).await.map_err(|stopped| Status::internal(stopped.to_string()))?;
    done.map_err(|error| failed(&error))
}
