//! Members of a trust domain, each with its own certificate.

use std::{path::Path, sync::Arc, time::Duration};

use fairmesh_control::{ControlConfig, TrustDomainChoice};
use fairmesh_identity::{
    Clock as _, Credentials, JoinToken, Joining, Member, PrivateKey, SystemClock, Workload,
    signed_message::{self, Purpose},
};
use fairmesh_model::{TrustBundle, TrustDomain};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::Transport,
    v1::{self, SignedMessage},
};
use prost::Message as _;

use super::support::{TestControl, config};

/// Starts a control plane with the trust domain `prod`.
pub(crate) async fn start_strict(folder: &Path) -> TestControl {
    let trust_domain = TrustDomainChoice::Given(TrustDomain::new("prod").unwrap());
    TestControl::start(ControlConfig { trust_domain, ..config(folder.into()) }).await
}

/// A member with its transport.
#[derive(Clone, Debug)]
pub(crate) struct TestMember {
    pub(crate) workload: Arc<Workload>,
}

impl TestMember {
    pub(crate) fn transport(&self) -> Transport {
        Transport::tls(Arc::clone(&self.workload) as _)
    }

    pub(crate) async fn connect(&self, control: &TestControl) -> Connection {
        handshake::connect(&self.transport(), &control.grpc[0], "test").await.unwrap()
    }

    /// Requests a certificate for another identity on this agent's machine.
    pub(crate) async fn issue(&self, control: &TestControl, path: &str) -> Result<Self, tonic::Status> {
        let key = PrivateKey::generate().unwrap();
        let issued = self.request_issue(control, (path, &key), &[]).await?;
        Ok(install(key, &issued))
    }

    /// Requests a JWT-SVID of an identity on this agent's machine.
    pub(crate) async fn issue_jwt(&self, control: &TestControl, path: &str) -> Result<String, tonic::Status> {
        let key = PrivateKey::generate().unwrap();
        let issued = self.request_issue(control, (path, &key), &["pay"]).await?;
        Ok(v1::IssueResponse::decode(issued.payload).unwrap().jwt)
    }

    async fn request_issue(
        &self,
        control: &TestControl,
        (path, key): (&str, &PrivateKey),
        jwt_audience: &[&str],
    ) -> Result<SignedMessage, tonic::Status> {
        let own = self.workload.credentials().unwrap();
        let request = v1::IssueRequest {
            path: path.into(),
            csr: key.signing_request().unwrap().into(),
            signed_at: SystemClock.now().as_secs(),
            jwt_audience: jwt_audience.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let message =
            signed_message::sign(&own, Purpose::IssueRequest, b"", request.encode_to_vec()).unwrap();
        Ok(self.connect(control).await.identity().issue(message).await?.into_inner())
    }
}

fn install(key: PrivateKey, issued: &SignedMessage) -> TestMember {
    let v1::IssueResponse { chain, bundle, .. } = v1::IssueResponse::decode(issued.payload.clone()).unwrap();
    let chain = chain.iter().map(|one| one.to_vec().into()).collect();
    let bundle = TrustBundle::try_from(bundle.unwrap()).unwrap();
    let workload = Arc::<Workload>::default();
    workload.install(Credentials::new(key, chain, bundle, SystemClock.now()).unwrap()).unwrap();
    TestMember { workload }
}

/// A connection of the control plane's own user, over its Unix socket.
pub(crate) async fn own(control: &TestControl) -> Connection {
    control.connect_at(control.grpc.len() - 1).await
}

/// Joins a program without an agent, with a token for its service.
pub(crate) async fn join_program(
    control: &TestControl,
    token: &JoinToken,
    service: &str,
) -> Result<TestMember, tonic::Status> {
    let key = PrivateKey::generate().unwrap();
    let csr = key.signing_request().unwrap();
    let transport = Transport::tls(Arc::new(Member::new(Arc::default(), Some(token.clone()))));
    let connection = handshake::connect(&transport, &control.grpc[0], "test").await.unwrap();
    let request = v1::JoinRequest {
        proof: token.proof(&Joining::Service(service.parse().unwrap()), "", &csr).into(),
        csr: csr.into(),
        token: token.id().to_vec().into(),
        service: service.into(),
        ..Default::default()
    };
    Ok(install(key, &connection.identity().join(request).await?.into_inner()))
}

/// A join token for a program of a service.
pub(crate) async fn token_for(control: &TestControl, service: &str) -> JoinToken {
    let request = v1::CreateTokenRequest { service: service.into(), ttl_seconds: 600, ..Default::default() };
    let made = own(control).await.authority().create_token(request).await.unwrap();
    made.into_inner().token.parse().unwrap()
}

/// Joins an agent from a region, with a token for these tenants.
pub(crate) async fn join(control: &TestControl, name: &str, tenants: &[&str], region: &str) -> TestMember {
    let request = v1::CreateTokenRequest {
        agent: name.into(),
        tenants: tenants.iter().map(ToString::to_string).collect(),
        ttl_seconds: Duration::from_secs(600).as_secs(),
        region: region.into(),
        ..Default::default()
    };
    let token = own(control).await.authority().create_token(request).await.unwrap().into_inner().token;
    join_with(control, &token.parse().unwrap(), (name, region)).await.unwrap()
}

/// Joins an agent from a region with this token.
pub(crate) async fn join_with(
    control: &TestControl,
    token: &JoinToken,
    (name, region): (&str, &str),
) -> Result<TestMember, tonic::Status> {
    let key = PrivateKey::generate().unwrap();
    let csr = key.signing_request().unwrap();
    let transport = Transport::tls(Arc::new(Member::new(Arc::default(), Some(token.clone()))));
    let connection = handshake::connect(&transport, &control.grpc[0], "test").await.unwrap();
    let joining = Joining::Agent(name.parse().unwrap());
    let request = v1::JoinRequest {
        agent: name.into(),
        csr: csr.clone().into(),
        token: token.id().to_vec().into(),
        proof: token.proof(&joining, region, &csr).into(),
        region: region.into(),
        ..Default::default()
    };
    Ok(install(key, &connection.identity().join(request).await?.into_inner()))
}
