//! The SPIFFE Workload API of agents, used by go-spiffe.

use std::{
    fs::{Permissions, copy, hard_link, set_permissions},
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use fairmesh_test_support::{free_port, skipped, tool};
use fairmesh_wire::{
    spiffe::{JwtsvidRequest, X509svidRequest, spiffe_workload_api_client::SpiffeWorkloadApiClient},
    transport::connect_channel,
    v1::{Endpoint, Location, endpoint::State},
};
use tonic::{Code, Request};

use super::{
    calls::echo,
    identities::{Killed, agent, domain, has_certificate, runtime, start},
    support::{Mesh, Run, wait_until},
};

/// A user id that no machine has.
pub(super) const USER: u32 = 54_002;
/// Longest time until a changed record reaches an open stream.
const LIMIT: Duration = Duration::from_secs(25);

/// A mesh with an agent, and a program that uses go-spiffe.
pub(super) struct Rig {
    pub(super) mesh: Mesh,
    /// Address of the agent.
    pub(super) agent: String,
    program: PathBuf,
    _agent: Killed,
}

impl Rig {
    /// `None` if go-spiffe is not installed.
    pub(super) fn start() -> Option<Self> {
        let Some(built) = tool("go-spiffe") else {
            skipped(
                "identities cannot be fetched by go-spiffe",
                "`scripts/setup.sh go-spiffe` builds it, where Go is installed",
            );
            return None;
        };
        let (mesh, _) = domain();
        // Other users must be able to run the program.
        set_permissions(mesh.path("."), Permissions::from_mode(0o755)).unwrap();
        let program = mesh.path("go-spiffe");
        if hard_link(&built, &program).is_err() {
            copy(&built, &program).unwrap();
        }
        let (running, agent) = agent(&mesh, "web-1", &mesh.address(), None);
        wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
        Some(Self { mesh, agent, program, _agent: running })
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().env("SPIFFE_ENDPOINT_SOCKET", &self.agent);
        command
    }

    pub(super) fn go(&self, args: &[&str]) -> Run {
        run(self.command(args))
    }

    /// Starts a go-spiffe program that keeps running; returns it with its output.
    pub(super) fn running(&self, args: &[&str]) -> (Killed, Printed) {
        let mut child: Child = self.command(args).stdout(Stdio::piped()).spawn().unwrap();
        let printed = Printed::of(child.stdout.take().unwrap());
        (Killed(child), printed)
    }

    /// Makes a service's record select the program.
    pub(super) fn select(&self, service: &str) {
        let uid = rustix::process::geteuid().as_raw();
        let program = self.program.display();
        let selector = format!("programs: [{{uid: {uid}, executable: {program}}}]");
        self.mesh.apply(&format!("kind: Workload\nservice: {service}\n{selector}\n")).ok();
    }
}

pub(super) fn run(mut command: Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Lines that a program prints.
pub(super) struct Printed(Receiver<String>);

impl Printed {
    fn of(output: ChildStdout) -> Self {
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line.trim().to_owned());
            }
        });
        Self(lines)
    }

    /// The next line for which `wanted` is true.
    pub(super) fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        let mut seen = Vec::new();
        while let Ok(line) = self.0.recv_timeout(LIMIT) {
            if wanted(&line) {
                return line;
            }
            seen.push(line);
        }
        panic!("only {seen:?} was printed within {LIMIT:?}");
    }
}

#[test]
fn go_spiffe_gets_identities_assigned_to_program_by_workload_records() {
    let Some(rig) = Rig::start() else { return };
    let uid = rustix::process::geteuid().as_raw();
    let operator = format!("spiffe://prod/fairmesh/operator/web-1.uid-{uid} 1\n");
    assert_eq!(rig.go(&["fetch"]).ok(), operator, "one of the agent's own user that no record selects");
    rig.select("shop/web");
    rig.select("bank/cart");
    assert_eq!(rig.go(&["fetch"]).ok(), "spiffe://prod/bank/cart 1\nspiffe://prod/shop/web 1\n");
    assert_eq!(rig.go(&["bundles"]).ok(), "prod 1\n");

    // Changes of identities, roots and certificates are streamed, without waiting for the comparison every 30 s.
    let (_watch, printed) = rig.running(&["watch"]);
    let before = printed.line(|_| true);
    assert!(before.starts_with("spiffe://prod/bank/cart ") && before.ends_with(" roots 1"), "{before}");
    rig.mesh.run(&["delete", "workload", "bank/cart"]).ok();
    rig.mesh.run(&["identity", "revoke", "bank/cart", "--issued-before", "now"]).ok();
    let alone = printed.line(|line| line.starts_with("spiffe://prod/shop/web "));
    rig.mesh.run(&["identity", "rotate", "--root"]).ok();
    printed.line(|line| line.ends_with(" roots 2"));
    let serial = |line: &str| line.split("shop/web ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(serial(&before), serial(&alone), "what was not revoked is kept");
    rig.mesh.run(&["identity", "revoke", "shop/web", "--issued-before", "now"]).ok();
    let renewed = printed.line(|line| serial(line) != serial(&alone));
    assert!(renewed.starts_with("spiffe://prod/shop/web ") && renewed.ends_with(" roots 2"), "{renewed}");
    assert_eq!(rig.go(&["bundles"]).ok(), "prod 2\n");

    if !rustix::process::geteuid().is_root() {
        return skipped("programs cannot be run as another user", "this is not root");
    }
    let mut other = rig.command(&["fetch"]);
    other.uid(USER).gid(USER);
    let refused = run(other).fails(1);
    let why = format!("no identity issued: no kind: Workload selects this program (uid {USER}");
    assert!(refused.contains("PermissionDenied") && refused.contains(&why), "{refused}");
}

#[test]
fn go_spiffe_calls_and_is_called_over_mutual_tls() {
    let Some(rig) = Rig::start() else { return };
    let mesh = &rig.mesh;
    mesh.apply("kind: Service\nname: shop/catalog\n---\nkind: Service\nname: shop/cart\n").ok();
    rig.select("shop/cart");
    let (address, program) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", echo()));
    let register = ["register", "shop/catalog", "--agent", &rig.agent, "--address", &address];
    let _register = start(&[&register[..], &["--program", &program]].concat(), None);
    let call = |service: &str| mesh.run(&["call", service, "/items", "--agent", &rig.agent]);
    wait_until("the catalog is called", || call("shop/catalog").code == Some(0));
    let url = format!("https://{address}/items");
    let called = rig.go(&["call", &url, "spiffe://prod/shop/catalog"]).ok();
    assert!(called.starts_with("200 ") && called.contains("/items"), "{called}");
    let refused = rig.go(&["call", &url, "spiffe://prod/shop/cart"]).fails(1);
    assert!(refused.contains("unexpected ID"), "{refused}");
    // The service's policy decides by the program's identity.
    let policy =
        "kind: Policy\nservice: shop/catalog\nauthorization: {rules: [{name: web, from: [shop/web]}]}\n";
    mesh.apply(policy).ok();
    wait_until("the policy is in force", || {
        rig.go(&["call", &url, "spiffe://prod/shop/catalog"]).ok().starts_with("403 ")
    });

    let (_server, printed) = rig.running(&["serve"]);
    let endpoint = Endpoint {
        mtls: true,
        instance: "go".into(),
        address: printed.line(|_| true),
        location: Some(Location { region: "eu".into(), ..Location::default() }),
        state: State::Serving.into(),
        ..Endpoint::default()
    };
    mesh.announce("shop/cart", endpoint);
    wait_until("the program is called", || call("shop/cart").code == Some(0));
    let answer = call("shop/cart").ok();
    assert!(answer.contains("called by spiffe://prod/fairmesh/operator/web-1.uid-"), "{answer}");
}

#[test]
fn workload_api_requires_security_header_and_audience_of_tokens() {
    let (mesh, _) = domain();
    let (_agent, address) = agent(&mesh, "web-1", &mesh.address(), None);
    wait_until("the agent joins", || has_certificate(&mesh, "web-1"));
    runtime().block_on(async {
        let channel = connect_channel(&Default::default(), &address.parse().unwrap()).await.unwrap();
        let mut client = SpiffeWorkloadApiClient::new(channel);
        let refused = client.fetch_x509svid(X509svidRequest {}).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("workload.spiffe.io: true"), "{refused}");
        let refused = client.fetch_jwtsvid(JwtsvidRequest::default()).await.unwrap_err();
        assert!(refused.message().contains("workload.spiffe.io: true"), "{refused}");
        let mut request = Request::new(JwtsvidRequest::default());
        request.metadata_mut().insert("workload.spiffe.io", "true".parse().unwrap());
        let refused = client.fetch_jwtsvid(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("audiences"), "{refused}");
        let mut request = Request::new(X509svidRequest {});
        request.metadata_mut().insert("workload.spiffe.io", "true".parse().unwrap());
        let mut responses = client.fetch_x509svid(request).await.unwrap().into_inner();
        let first = responses.message().await.unwrap().unwrap();
        assert_eq!(first.svids.len(), 1);
        assert!(!format!("{first:?}").contains("x509_svid_key"), "a private key is in no log");
    });
}
