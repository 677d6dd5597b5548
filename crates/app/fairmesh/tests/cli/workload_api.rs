//! Identities from another SPIFFE Workload API, such as that of SPIRE.

use std::{
    fs,
    path::PathBuf,
    pin::Pin,
    process::{Command, Stdio},
};

use fairmesh_identity::CertificateInfo;
use fairmesh_test_support::free_port;
use fairmesh_wire::{
    spiffe::{
        JwtBundlesRequest, JwtBundlesResponse, JwtsvidRequest, JwtsvidResponse, ValidateJwtsvidRequest,
        ValidateJwtsvidResponse, X509BundlesRequest, X509BundlesResponse, X509svid, X509svidRequest,
        X509svidResponse,
        spiffe_workload_api_server::{SpiffeWorkloadApi, SpiffeWorkloadApiServer},
    },
    transport::{Transport, serve},
};
use futures_util::{Stream, stream};
use rcgen::ExtendedKeyUsagePurpose as Eku;
use tokio::{runtime::Runtime, sync::watch};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tonic::{Request, Response, Status, service::Routes};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, joined, request_certificate, token},
    listeners::{params, signed},
    support::{Mesh, Run, wait_until},
};

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Sends the same SVIDs to every program, and again when they change.
struct Api(watch::Receiver<X509svidResponse>);

#[tonic::async_trait]
impl SpiffeWorkloadApi for Api {
    type FetchX509SVIDStream = Streamed<X509svidResponse>;
    type FetchX509BundlesStream = Streamed<X509BundlesResponse>;
    type FetchJWTBundlesStream = Streamed<JwtBundlesResponse>;

    async fn fetch_x509svid(
        &self,
        request: Request<X509svidRequest>,
    ) -> Result<Response<Self::FetchX509SVIDStream>, Status> {
        assert_eq!(request.metadata().get("workload.spiffe.io").unwrap(), "true");
        if self.0.borrow().svids.is_empty() {
            return Err(Status::permission_denied("no identity issued"));
        }
        let mut given = self.0.clone();
        given.mark_changed();
        let all = stream::unfold(given, async |mut given| {
            given.changed().await.ok()?;
            let response = given.borrow_and_update().clone();
            Some((Ok(response), given))
        });
        Ok(Response::new(Box::pin(all)))
    }

    async fn fetch_x509_bundles(
        &self,
        _: Request<X509BundlesRequest>,
    ) -> Result<Response<Self::FetchX509BundlesStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn fetch_jwtsvid(&self, _: Request<JwtsvidRequest>) -> Result<Response<JwtsvidResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn fetch_jwt_bundles(
        &self,
        _: Request<JwtBundlesRequest>,
    ) -> Result<Response<Self::FetchJWTBundlesStream>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn validate_jwtsvid(
        &self,
        _: Request<ValidateJwtsvidRequest>,
    ) -> Result<Response<ValidateJwtsvidResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

/// A mesh with an agent, and a Workload API whose authority is below the mesh's root.
struct Rig {
    mesh: Mesh,
    tcp: String,
    /// Address of the Fairmesh agent.
    agent: String,
    given: watch::Sender<X509svidResponse>,
    _agent: Killed,
    _runtime: Runtime,
}

impl Rig {
    fn start() -> Self {
        let (mesh, tcp) = domain();
        let (running, agent) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let given = watch::Sender::new(X509svidResponse::default());
        let address = format!("unix:{}", mesh.path("api.sock").display()).parse().unwrap();
        let listener = runtime.block_on(Transport::default().bind(&address)).unwrap();
        let routes = Routes::new(SpiffeWorkloadApiServer::new(Api(given.subscribe())));
        runtime.spawn(serve(routes, listener, std::future::pending(), std::time::Duration::ZERO));
        Self { mesh, tcp, agent, given, _agent: running, _runtime: runtime }
    }

    /// Issues new certificates with these identities; returns the serial number of the first.
    fn give(&self, paths: &[&str]) -> String {
        let authority = self.mesh.path("data/ca");
        let root = fs::read(authority.join("bundle.pem")).unwrap();
        let root = CertificateDer::from_pem_slice(&root).unwrap();
        let svid = |path: &&str| {
            let id = format!("spiffe://prod/{path}");
            let mut params = params(&id, (-10, 60), Eku::ClientAuth);
            params.extended_key_usages.push(Eku::ServerAuth);
            let shown = signed(&authority, &params);
            let chain: Vec<&[u8]> = shown.chain.iter().map(|one| &one[..]).collect();
            let (x509_svid, bundle) = (chain.concat().into(), root.to_vec().into());
            let x509_svid_key = shown.key.serialized_der().to_vec().into();
            let serial = CertificateInfo::of(&shown.chain[0]).unwrap().serial;
            (serial, X509svid { spiffe_id: id, x509_svid, x509_svid_key, bundle, ..Default::default() })
        };
        let (serials, svids): (Vec<_>, Vec<_>) = paths.iter().map(svid).unzip();
        self.given.send_replace(X509svidResponse { svids, ..Default::default() });
        serials[0].clone()
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.mesh.path("api.sock").display())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        command.args(args).env_clear().env("FAIRMESH_IDENTITY", format!("spiffe:{}", self.socket()));
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        run(self.command(args))
    }

    /// Starts a process with its log in a file.
    fn start_process(&self, args: &[&str], log: &str) -> Killed {
        let mut command = self.command(args);
        command.stdout(Stdio::null()).stderr(fs::File::create(self.path(log)).unwrap());
        Killed(command.spawn().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mesh.path(name)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn run(mut command: Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn servers_and_callers_get_identity_from_workload_api() {
    let rig = Rig::start();
    let mesh = &rig.mesh;
    mesh.apply("kind: Service\nname: shop/cart\n").ok();
    let serial = rig.give(&["shop/cart", "shop/batch"]);
    let [listen, program] = [free_port(), echo()].map(|port| format!("127.0.0.1:{port}"));
    let register =
        ["register", "shop/cart", "--agent", &rig.agent, "--address", &listen, "--program", &program];
    let _register = rig.start_process(&register, "register.log");
    // Callers of the mesh expect the service's id, and the server has it.
    let call = || mesh.run(&["call", "shop/cart", "/", "--agent", &rig.agent]);
    wait_until("the service is called", || call().code == Some(0));
    // A caller without an agent follows the control plane over TCP.
    let policy =
        "kind: Policy\nservice: shop/cart\nauthorization: {rules: [{name: batch, from: [shop/batch]}]}\n";
    mesh.apply(policy).ok();
    wait_until("the policy is in force", || call().code != Some(0));
    let direct = ["call", "shop/cart", "/", "--control", &rig.tcp];
    let batch = || rig.run(&[&direct[..], &["--as", "shop/batch"]].concat());
    wait_until("the policy permits the caller", || batch().code == Some(0));
    assert_ne!(
        rig.run(&direct).code,
        Some(0),
        "the first identity is that of the cart, which may not call itself"
    );
    // Renewals are followed: the old certificate is revoked, and its successor is accepted.
    rig.give(&["shop/cart", "shop/batch"]);
    mesh.run(&["identity", "revoke", "shop/cart", "--serial", &serial]).ok();
    // A new process knows the revocation before its first call.
    wait_until("the server shows its next certificate", || batch().code == Some(0));
}

#[test]
fn agent_gets_identity_from_workload_api_and_joins_with_it() {
    let rig = Rig::start();
    let listen = format!("unix:{}", rig.path("web-2.sock").display());
    let state = rig.path("web-2").display().to_string();
    let args = ["agent", "--name", "web-2", "--admin", "none", "--control", &rig.tcp, "--listen", &listen];
    let args = [&args[..], &["--state-dir", &state]].concat();
    let begin = |token: Option<&str>| {
        let mut command = rig.command(&args);
        command.stdout(Stdio::null()).stderr(fs::File::create(rig.path("web-2.log")).unwrap());
        if let Some(token) = token {
            command.env("FAIRMESH_JOIN_TOKEN", token);
        }
        Killed(command.spawn().unwrap())
    };
    let agent = begin(None);
    let says = |what: &str| rig.log("web-2.log").contains(what);
    wait_until("it says why it has no identity", || {
        says("gives this program no identity (no identity issued)")
    });
    rig.give(&["shop/cart"]);
    wait_until("it says which one it needs", || says("and not spiffe://TRUST-DOMAIN/fairmesh/agent/web-2"));
    rig.give(&["fairmesh/agent/web-2"]);
    wait_until("it says that it has not joined", || says("fairmesh identity token web-2"));
    drop(agent);
    let _agent = begin(Some(&token(&rig.mesh, &["web-2"])));
    wait_until("it joins", || joined(&rig.mesh).contains(&"spiffe://prod/fairmesh/agent/web-2".to_owned()));
    wait_until("it vouches for programs", || request_certificate(&listen, "shop/cart").is_empty());
    assert!(!has_certificate(&rig.mesh, "web-2"), "the certificate is kept on no disk");
}

#[test]
fn command_explains_why_it_has_no_identity() {
    let rig = Rig::start();
    for (identity, problem) in
        [("spire", "'spire' is unknown"), ("spiffe", "SPIFFE_ENDPOINT_SOCKET names no socket")]
    {
        let mut command = rig.command(&["get", "services"]);
        command.env("FAIRMESH_IDENTITY", identity);
        let error = run(command).fails(2);
        assert!(error.contains(problem) && error.contains("spiffe:unix:/path"), "{error}");
    }
    let mut command = rig.command(&["identity", "whoami", "--control", &rig.tcp]);
    command.env("FAIRMESH_IDENTITY", "spiffe:unix:/nonexistent/api.sock");
    let error = run(command).fails(1);
    assert!(
        error.contains("the SPIFFE Workload API at unix:/nonexistent/api.sock cannot be reached"),
        "{error}"
    );
    rig.give(&["fairmesh/operator/web-9"]);
    let shown = rig.run(&["identity", "whoami", "--control", &rig.tcp]).ok();
    assert!(shown.contains("spiffe://prod/fairmesh/operator/web-9"), "{shown}");
}
